"""A pipelined, fully unrolled adder tree."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.spec.formats import Format, is_power_of_two


def shape_of(number: Format):
    """Amaranth shape of a number format."""
    return signed(number.width) if number.signed else unsigned(number.width)


def delayed(m: Module, value, name: str) -> Signal:
    """One data register rank of the `sync` domain, without reset."""
    register = Signal(value.shape(), name=name, reset_less=True)
    m.d.sync += register.eq(value)
    return register


class AdderTree(wiring.Component):
    """Sum of `terms` numbers, one register rank per level.

    Formula: o = Σ_j i[j].
    Timing: latency log2(terms), interval 1, free-running: it never stalls, and validity travels beside it.
    Numerics: exact; every level grows by one bit, so the result has format `term.sum_of(terms)`.

    Args:
        term: format of one number.
        terms: how many, a power of two from 1 (1 is a wire).

    Members:
        i: `terms` numbers.
        o: their sum, `latency` cycles later.

    Raises ValueError if `terms` is not a power of two.

    """

    def __init__(self, term: Format, terms: int) -> None:
        if not is_power_of_two(terms):
            raise ValueError(f"terms is {terms}; allowed: a power of two from 1")
        self.term = term
        self.terms = terms
        super().__init__(
            {
                # One signal per term: a packed vector of all would slow compiled simulation by ten.
                "i": In(shape_of(term)).array(terms),
                "o": Out(shape_of(term.sum_of(terms))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `i` to `o`: one per level."""
        return self.terms.bit_length() - 1

    @property
    def interval(self) -> int:
        """Cycles between two sums."""
        return 1

    def elaborate(self, platform):
        m = Module()
        level = list(self.i)
        ranks = 0
        while len(level) > 1:
            ranks += 1
            number = shape_of(self.term.sum_of(self.terms // (len(level) // 2)))
            sums = [Signal(number, name=f"level{ranks}_{j}", reset_less=True) for j in range(len(level) // 2)]
            m.d.sync += [s.eq(level[2 * j] + level[2 * j + 1]) for j, s in enumerate(sums)]
            level = sums
        assert ranks == self.latency
        m.d.comb += self.o.eq(level[0])
        return m

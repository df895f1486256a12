"""A pipelined, fully unrolled adder tree."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, signed, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.spec.formats import Format


def shape_of(number: Format):
    """Amaranth shape of a number format."""
    return signed(number.width) if number.signed else unsigned(number.width)


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
        if terms < 1 or terms & (terms - 1):
            raise ValueError(f"terms is {terms}; allowed: a power of two from 1")
        self.term = term
        self.terms = terms
        super().__init__(
            {
                "i": In(data.ArrayLayout(shape_of(term), terms)),
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
        level = [self.i[j] for j in range(self.terms)]
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

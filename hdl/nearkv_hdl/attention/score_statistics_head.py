"""Score statistics of one query head: maximum and sum of weights, per parity of the group of binades."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.arith.exp_polynomial import Exp2Polynomial
from nearkv_hdl.spec.exp_table import EXP_FRACTION
from nearkv_hdl.spec.formats import SCORE
from nearkv_hdl.spec.score_statistics import (
    DROPPED_WEIGHT_BITS,
    GROUP_BITS,
    GROUP_SUM,
    MAX_SCORE_FRACTION_BITS,
    SHIFTED_WEIGHT,
)

PARITIES = 2
# What is needed of a score beside its rank: fraction, binade in its group, parity of the group.
_WINDOW_BITS = EXP_FRACTION.width + GROUP_BITS + 1
# The window's offset in a score with _WINDOW_BITS zeros below: L + 6, and 0 where the group is the score
# itself, or beyond, and the window empty.
_OFFSET_BIAS = GROUP_BITS + 1
OFFSETS = MAX_SCORE_FRACTION_BITS + _OFFSET_BIAS + 1
_FINE_BITS = 2  # low bits of the offset, done in the second of its two ranks
_NEAR_BITS = GROUP_BITS - 1  # low bits of the binade, done in the first of its two ranks


def window_offset(fraction_bits):
    """Offset of the window for a signed L."""
    return Mux(fraction_bits < -_OFFSET_BIAS, 0, fraction_bits + _OFFSET_BIAS)


def group_mask(offset):
    """Bits of a score that number its group: from L + 5 upwards."""
    return Cat(bit + 1 >= offset for bit in range(SCORE.width))


class HeadAccumulator(wiring.Component):
    """Maximum and sum of one head's scores, for even and for odd groups of 32 binades.

    Formula: x = s·2^-L, group floor(x / 32). For each parity: of the tokens whose group has it, those of the
    highest such group count: maximum = max s, sum = Σ floor(m(f)·2^-3) · 2^p. Of two neighbouring groups each
    has a parity of its own, so the group of the head's maximum and the one below are both kept.
    Timing: a maximum is there `maximum_latency` = 4 cycles after its token, a sum `latency` = 6 and that of
    the polynomial; interval 1, free-running. `offset`, `mask` and `active` must hold until the maximum.
    Numerics: the fraction is cut to 16 bits, the weight m to UQ1.12 (both round down); sums are exact.
    Reset: the valid bits and `nonempty`.

    Args:
        degree: of the polynomial.

    Members:
        offset, mask: of L, by `window_offset` and `group_mask`.
        active: the head takes part.
        clear: the next token is a job's first.
        valid, score: a token.
        maximum, nonempty: per parity.
        sum: per parity; what it holds of an empty one has no meaning.

    """

    def __init__(self, degree: int) -> None:
        self._core = Exp2Polynomial(degree)
        super().__init__(
            {
                "offset": In(range(OFFSETS)),
                "mask": In(SCORE.width),
                "active": In(1),
                "clear": In(1),
                "valid": In(1),
                "score": In(shape_of(SCORE)),
                "maximum": Out(shape_of(SCORE)).array(PARITIES),
                "nonempty": Out(1).array(PARITIES),
                "sum": Out(shape_of(GROUP_SUM)).array(PARITIES),
            }
        )

    @property
    def maximum_latency(self) -> int:
        """Cycles from a token to the maximum that covers it: score, two ranks of window, comparison."""
        return 4

    @property
    def latency(self) -> int:
        """Cycles from a token to the sum that contains it: window, polynomial, two shifts, addition."""
        return self.maximum_latency - 1 + self._core.latency + 3

    @property
    def interval(self) -> int:
        """Cycles between two tokens."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.core = core = self._core

        # The window: fraction, binade in the group, parity of the group.
        valid, score = self.valid & self.active, self.score
        scores, valids = [], []
        for rank in range(self.maximum_latency - 1):
            score = delayed(m, score, f"score{rank}")
            scores.append(score)
            valids.append(Signal(name=f"valid{rank}"))
            m.d.sync += valids[rank].eq(valids[rank - 1] if rank else valid)
        extended = Cat(Const(0, _WINDOW_BITS), scores[0]).as_signed()
        coarse_bits = _WINDOW_BITS + (1 << _FINE_BITS) - 1
        coarse_shift = Cat(Const(0, _FINE_BITS), self.offset[_FINE_BITS:])
        coarse = delayed(m, (extended >> coarse_shift)[:coarse_bits], "coarse")
        window = delayed(m, (coarse >> self.offset[:_FINE_BITS])[:_WINDOW_BITS], "window")
        fraction, binade = window[: EXP_FRACTION.width], window[EXP_FRACTION.width : -1]
        parity = window[-1]

        # Each parity keeps its highest group: a token of that group adds, of a higher one replaces.
        token = scores[-1]
        kept = Mux(parity, self.maximum[1], self.maximum[0])
        holds = Mux(parity, self.nonempty[1], self.nonempty[0])
        joins = holds & (((token ^ kept) & self.mask) == 0)
        rises = ~holds | (token > kept)
        for p in range(PARITIES):
            with m.If(valids[-1] & rises & (parity == p)):
                m.d.sync += [self.maximum[p].eq(token), self.nonempty[p].eq(1)]
            with m.If(self.clear):
                m.d.sync += self.nonempty[p].eq(0)

        # The weight, shifted to its binade; beside it what was decided.
        m.d.comb += [core.enable.eq(1), core.f.eq(fraction)]
        counts = [valids[-1] & (rises | joins) & (parity == p) for p in range(PARITIES)]
        decision, shift = Cat(*counts, ~joins), binade
        for rank in range(core.latency):
            decision, shift = delayed(m, decision, f"decision{rank}"), delayed(m, shift, f"shift{rank}")
        weight = core.m[DROPPED_WEIGHT_BITS:]
        near = delayed(m, weight << shift[:_NEAR_BITS], "near")
        decision, far = delayed(m, decision, "near_decision"), delayed(m, shift[_NEAR_BITS:], "far")
        shifted = delayed(m, (near << Cat(Const(0, _NEAR_BITS), far))[: SHIFTED_WEIGHT.width], "shifted")
        *adds, first = delayed(m, decision, "shifted_decision")

        # Both parities share an adder: a token counts in one of them.
        old = Mux(first, 0, Mux(adds[1], self.sum[1], self.sum[0]))
        total = Signal(shape_of(GROUP_SUM))
        m.d.comb += total.eq(shifted + old)
        for p in range(PARITIES):
            with m.If(adds[p]):
                m.d.sync += self.sum[p].eq(total)
        return m

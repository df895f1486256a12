"""From aligned products to a logit: the key phase of a processing unit."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import AdderTree, shape_of
from nearkv_hdl.spec.attention import DOT, LOGIT, LOGIT_SCALE_FRACTION_BITS, PRODUCT
from nearkv_hdl.spec.layout import HEAD_DIMS


class ScorePath(wiring.Component):
    """Adds a row's products and turns their sum into a base-2 logit.

    Formula: Σ over the row's beats and lanes, s = rhu(Σ · scale, 24), saturated to Q15.16.
    Timing: latency 3 + log2(lanes) from a row's final products to its logit (tree, sum, scaling, rounding),
    interval 1, free-running.
    Numerics: the sum is exact; one that does not fit signed 48 bits raises `overflow` with its logit. One
    rounding half up (½ · 2^−16), then saturation, shown by `saturated`.
    Reset: the valid bits.

    Args:
        lanes: products per beat.

    Members:
        products: aligned products of one beat.
        valid, first, final: products are there, and they are a row's first, last.
        scale: round(2^24 · log2(e)/√d).
        score: logit, with score_valid high for one cycle.
        score_valid, saturated, overflow: its flags.

    """

    def __init__(self, lanes: int) -> None:
        self._tree = AdderTree(PRODUCT, lanes)
        self.sum = PRODUCT.sum_of(HEAD_DIMS[-1])
        self.scaled_bits = DOT.width + LOGIT_SCALE_FRACTION_BITS
        super().__init__(
            {
                "products": In(shape_of(PRODUCT)).array(lanes),
                "valid": In(1),
                "first": In(1),
                "final": In(1),
                "scale": In(LOGIT_SCALE_FRACTION_BITS),
                "score": Out(shape_of(LOGIT)),
                "score_valid": Out(1),
                "saturated": Out(1),
                "overflow": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a row's final products to its logit."""
        return self._tree.latency + 3

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = self._tree
        m.d.comb += [tree.i[lane].eq(self.products[lane]) for lane in range(tree.terms)]
        valid, first, final = self.valid, self.first, self.final
        for rank in range(tree.latency):
            delayed = [Signal(name=f"valid{rank}")]
            delayed += [Signal(name=f"{name}{rank}", reset_less=True) for name in ("first", "final")]
            m.d.sync += [register.eq(v) for register, v in zip(delayed, (valid, first, final), strict=True)]
            valid, first, final = delayed

        total = Signal(shape_of(self.sum), reset_less=True)
        complete = Signal()
        with m.If(valid):
            m.d.sync += total.eq(Mux(first, 0, total) + tree.o)
        m.d.sync += complete.eq(valid & final)

        dot = total[: DOT.width].as_signed()
        scaled = Signal(signed(self.scaled_bits), reset_less=True)
        overflow, scaled_valid = Signal(reset_less=True), Signal()
        m.d.sync += [scaled.eq(dot * self.scale), overflow.eq(total != dot), scaled_valid.eq(complete)]

        rounded = (scaled + (1 << LOGIT_SCALE_FRACTION_BITS - 1)) >> LOGIT_SCALE_FRACTION_BITS
        score, saturated = Signal(shape_of(LOGIT), reset_less=True), Signal(reset_less=True)
        flagged, score_valid = Signal(reset_less=True), Signal()
        above, below = rounded > LOGIT.max, rounded < LOGIT.min
        m.d.sync += [
            score.eq(Mux(above, Const(LOGIT.max), Mux(below, Const(LOGIT.min), rounded))),
            saturated.eq(above | below),
            flagged.eq(overflow),
            score_valid.eq(scaled_valid),
        ]
        m.d.comb += [
            self.score.eq(score),
            self.saturated.eq(saturated),
            self.overflow.eq(flagged),
            self.score_valid.eq(score_valid),
        ]
        return m

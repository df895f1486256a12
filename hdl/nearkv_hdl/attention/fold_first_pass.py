"""First pass of folding: a head's products in half units, the shift that fits them all, and q·anchor."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import AdderTree, delayed, shape_of
from nearkv_hdl.attention.dot_product import accumulated
from nearkv_hdl.attention.fold_config import (
    TERM,
    UNIT,
    anchor,
    fold_lanes,
    half_units,
)
from nearkv_hdl.attention.fold_product import FoldProduct
from nearkv_hdl.spec.attention import FP16_BITS
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import BIAS_GUARD_BITS, CODE, QUERY_MANTISSA, SHIFT


class FoldFirstPass(wiring.Component):
    """Takes the channels of one query head, `fold_lanes` a cycle, and tells what holds for all of them.

    Formula: shift = the smallest e in 0…7 for which no code saturates; anchor = rhu(Σ term, 8). With
    h = half_units, rhu(p, unit + e) lies within ±(2^(w−1) − 1) if and only if h < 2^e·(2^w − 1) for h ≥ 0
    and ~h < 2^e·(2^w − 1) below: halves round up, which is what ~h = −h − 1 allows. So one maximum stands
    for both extremes.

    Timing: half_units `half_latency` cycles after their operands; shift and anchor `latency` cycles after the
    head's last operands: product, maximum and adder trees, accumulators, rounding. Interval 1, free-running.
    Numerics: exact; terms are rounded once each and their sum once more.

    Args:
        design: channels per cycle, width of a query code, largest head_dim.

    Members:
        i_valid, i_first, i_last: operands of a head; its first; its last.
        mantissa, unit, centre, scale, mean: of `fold_lanes` channels.
        o_valid, o_last: half_units; those of the head's last channels.
        half_units: of these channels.
        o_done: a head's results.
        o_shift: its e.
        o_anchor: its q·anchor in score units.
        o_overflow: no e fits, or an operand was not finite or belonged to another `unit`.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self.lanes = fold_lanes(design)
        self._products = [FoldProduct(design) for _ in range(self.lanes)]
        self._tree = AdderTree(TERM, self.lanes)
        super().__init__(
            {
                "i_valid": In(1),
                "i_first": In(1),
                "i_last": In(1),
                "mantissa": In(shape_of(QUERY_MANTISSA)).array(self.lanes),
                "unit": In(shape_of(UNIT)),
                "centre": In(FP16_BITS).array(self.lanes),
                "scale": In(FP16_BITS).array(self.lanes),
                "mean": In(shape_of(CODE)).array(self.lanes),
                "o_valid": Out(1),
                "o_last": Out(1),
                "half_units": Out(shape_of(half_units(design))).array(self.lanes),
                "o_done": Out(1),
                "o_shift": Out(shape_of(SHIFT)),
                "o_anchor": Out(shape_of(anchor(design))),
                "o_overflow": Out(1),
            }
        )

    @property
    def half_latency(self) -> int:
        """Cycles from operands to half_units."""
        return self._products[0].half_latency

    @property
    def latency(self) -> int:
        """Cycles from a head's last operands to its shift and anchor."""
        return self._products[0].latency + self._tree.latency + 2

    @property
    def interval(self) -> int:
        """Cycles between two groups of channels."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = self._tree
        design = self.design

        # flags[rank]: valid, first and last of what has passed that many ranks.
        flags = [(self.i_valid, self.i_first, self.i_last)]
        for rank in range(1, self.latency + 1):
            valid, before = Signal(name=f"valid{rank}"), flags[-1]
            m.d.sync += valid.eq(before[0])
            flags.append((valid, delayed(m, before[1], f"first{rank}"), delayed(m, before[2], f"last{rank}")))
        valid, _, last = flags[self.half_latency]
        m.d.comb += [self.o_valid.eq(valid), self.o_last.eq(valid & last)]

        reaches, overflow = [], 0
        for lane, product in enumerate(self._products):
            m.submodules[f"product{lane}"] = product
            m.d.comb += [
                product.mantissa.eq(self.mantissa[lane]),
                product.unit.eq(self.unit),
                product.centre.eq(self.centre[lane]),
                product.scale.eq(self.scale[lane]),
                product.mean.eq(self.mean[lane]),
                self.half_units[lane].eq(product.half_units),
                tree.i[lane].eq(product.term),
            ]
            reach = Mux(product.half_units < 0, ~product.half_units, product.half_units)
            reaches.append(reach[: half_units(design).width - 1])
            overflow |= product.overflow

        # Largest reach and sum of terms over the lanes, then over the head.
        rank = self.half_latency
        level = [delayed(m, reach, f"reach{lane}") for lane, reach in enumerate(reaches)]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=True)
            level = [delayed(m, Mux(a > b, a, b), f"max{len(level)}_{j}") for j, (a, b) in enumerate(pairs)]
        rank += 1 + tree.latency
        valid, first, _ = flags[rank]
        largest = Signal.like(level[0], reset_less=True)
        with m.If(valid & (first | (level[0] > largest))):
            m.d.sync += largest.eq(level[0])
        # Codes that fit e fit every larger e: their number tells the smallest.
        bounds = [((1 << design.query_code.width) - 1) << e for e in range(SHIFT.max + 1)]
        misfits = sum(largest >= bound for bound in bounds)
        misfits = delayed(m, misfits[: SHIFT.width + 1], "misfits")
        for extra in range(self.latency - (rank + 2)):
            misfits = delayed(m, misfits, f"misfits{extra}")
        m.d.comb += self.o_shift.eq(misfits)

        rank = self._products[0].latency + tree.latency
        valid, first, _ = flags[rank]
        total = accumulated(m, TERM.sum_of(design.head_dims[-1]), tree.o, valid, first, "total")
        rounded = (total + (1 << (BIAS_GUARD_BITS - 1))) >> BIAS_GUARD_BITS
        m.d.comb += self.o_anchor.eq(delayed(m, rounded, "anchor"))

        # An overflow counts when it comes by; the head's results need no mark of their own.
        done, _, last = flags[self.latency]
        m.d.comb += self.o_done.eq(done & last)
        product_valid = flags[self._products[0].latency][0]
        m.d.comb += self.o_overflow.eq((product_valid & overflow) | (self.o_done & misfits[SHIFT.width]))
        return m

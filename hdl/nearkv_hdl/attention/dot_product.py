"""Dot product of one query head with a stream of keys, `lanes` channels a cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import AdderTree, delayed, shape_of
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE


class DotProduct(wiring.Component):
    """Multiplies, adds over the lanes and accumulates over the chunks of a token.

    Formula: o = Σ over the valid beats since `first` of Σ_lane codes[lane]·query[lane].
    Timing: latency 2 + log2(lanes) (product, tree, accumulator), interval 1, free-running; `valid` and
    `first` enter with the operands and are delayed inside. Cycles without `valid` leave the sum as it is.
    Numerics: exact; o has format `design.dot`, wide enough for the largest head_dim.

    Args:
        design: lanes and formats.

    Members:
        codes: signed key codes.
        query: signed query codes.
        valid: the operands are a lane beat.
        first: this beat is the first of its token.
        o: accumulated sum, `latency` cycles after the operands.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._tree = AdderTree(design.product, design.lanes)
        super().__init__(
            {
                "codes": In(shape_of(CODE)).array(design.lanes),
                "query": In(shape_of(design.query_code)).array(design.lanes),
                "valid": In(1),
                "first": In(1),
                "o": Out(shape_of(design.dot)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from operands to accumulated sum."""
        return 1 + self._tree.latency + 1

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = self._tree
        valid, first = self.valid, self.first
        for rank in range(self.latency - 1):
            valid = delayed(m, valid, f"valid{rank}")
            first = delayed(m, first, f"first{rank}")
        for lane in range(self.design.lanes):
            product = delayed(m, self.codes[lane] * self.query[lane], f"product{lane}")
            m.d.comb += tree.i[lane].eq(product)
        accumulator = Signal(shape_of(self.design.dot), reset_less=True)
        with m.If(valid):
            m.d.sync += accumulator.eq(Mux(first, 0, accumulator) + tree.o)
        m.d.comb += self.o.eq(accumulator)
        return m

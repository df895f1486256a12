"""Dot product of one query head with a stream of keys, `lanes` channels a cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import AdderTree, delayed, shape_of
from nearkv_hdl.arith.mult18x18d import Mult18x18d
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE, Format
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_hdl.spec.scorer_pipeline import INFERRED_MULTIPLIER_RANKS


def accumulated(m: Module, number: Format, value, valid, first, name: str) -> Signal:
    """Register of that format which holds the sum of the valid values since the `first`."""
    accumulator = Signal(shape_of(number), name=name, reset_less=True)
    with m.If(valid):
        m.d.sync += accumulator.eq(Mux(first, 0, accumulator) + value)
    return accumulator


class DotProduct(wiring.Component):
    """Multiplies, adds over the lanes and accumulates over the chunks of a token.

    Formula: o = Σ over the valid beats since `first` of Σ_lane codes[lane]·query[lane].
    Timing: latency 2 + log2(lanes) (product, tree, accumulator), 2 more with MULT18X18D; interval 1,
    free-running; `valid` and `first` enter with the operands and are delayed inside. Cycles without `valid`
    leave the sum as it is.
    Numerics: exact; o has format `design.dot`, wide enough for the largest head_dim.

    Args:
        design: lanes, formats and whether products are `mult18x18d`; plain otherwise.
        primitives: instantiate vendor blocks instead of their behavioural twins.

    Members:
        codes: signed key codes.
        query: signed query codes.
        valid: the operands are a lane beat.
        first: this beat is the first of its token.
        o: accumulated sum, `latency` cycles after the operands.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        self.design = design
        self._tree = AdderTree(design.product, design.lanes)
        self._blocks: list[Mult18x18d] = []
        if design.mac_variant is MacVariant.MULT18X18D:
            widths = CODE.width, design.query_code.width
            self._blocks = [Mult18x18d(*widths, primitive=primitives) for _ in range(design.lanes)]
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
        multiply = self._blocks[0].latency if self._blocks else INFERRED_MULTIPLIER_RANKS
        return multiply + self._tree.latency + 1

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
            code, query_code = self.codes[lane], self.query[lane]
            if self._blocks:
                m.submodules[f"block{lane}"] = block = self._blocks[lane]
                m.d.comb += [block.a.eq(code), block.b.eq(query_code), tree.i[lane].eq(block.o)]
            else:
                m.d.comb += tree.i[lane].eq(delayed(m, code * query_code, f"product{lane}"))
        m.d.comb += self.o.eq(accumulated(m, self.design.dot, tree.o, valid, first, "accumulator"))
        return m

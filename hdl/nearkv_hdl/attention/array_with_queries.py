"""The scorer's MAC array alone: query buffer, multipliers, adder trees and accumulators."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.attention.mac_array import MacArray, array_members, beat_layout
from nearkv_hdl.attention.paired_mac_array import PairedMacArray
from nearkv_hdl.attention.query_buffer import BANKS, QueryBuffer, command_layout, query_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.multiplier import MacVariant


class ArrayWithQueries(wiring.Component):
    """Query buffer and MAC array as in the scorer, connected; for counting resources.

    Formula, timing, numerics: those of QueryBuffer and of the design's variant of MacArray.

    Args:
        design: what to build.
        primitives: instantiate vendor blocks instead of their behavioural twins.

    Members: those of the two parts that do not meet.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        self._queries = QueryBuffer(design)
        self._array: MacArray | PairedMacArray
        if design.mac_variant is MacVariant.PACKED_KEYS:
            self._array = PairedMacArray(design)
        else:
            self._array = MacArray(design, primitives=primitives)
        self._outputs = [name for name in array_members(design) if name.startswith("o")]
        super().__init__(
            {
                "i_block": In(stream.Signature(command_layout(design))),
                "i_query": In(stream.Signature(query_layout(design))),
                "used": In(BANKS),
                "release": In(BANKS),
                "ready": Out(BANKS),
                "i_valid": In(1),
                "i_beat": In(beat_layout(design)),
                "codes": In(data.ArrayLayout(shape_of(CODE), design.lanes)),
                **{name: array_members(design)[name] for name in self._outputs},
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queries = queries = self._queries
        m.submodules.array = array = self._array
        wiring.connect(m, wiring.flipped(self.i_block), queries.i_block)
        wiring.connect(m, wiring.flipped(self.i_query), queries.i_query)
        m.d.comb += [
            queries.used.eq(self.used),
            queries.release.eq(self.release),
            self.ready.eq(queries.ready),
            array.i_valid.eq(self.i_valid),
            array.i_beat.eq(self.i_beat),
            queries.read_bank.eq(array.read_bank),
            queries.read_chunk.eq(array.read_chunk),
        ]
        m.d.comb += [code.eq(self.codes[lane]) for lane, code in enumerate(array.codes)]
        m.d.comb += [mine.eq(theirs) for mine, theirs in zip(array.query, queries.query, strict=True)]
        for name in self._outputs:
            mine, theirs = getattr(self, name), getattr(array, name)
            pairs = zip(mine, theirs, strict=True) if name == "o" else [(mine, theirs)]
            m.d.comb += [target.eq(source) for target, source in pairs]
        return m

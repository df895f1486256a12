"""Sends a processing unit's results while the unit goes on working."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.pim.partial import MAXIMUM_LANE, MAXIMUM_WORD, TOTAL_LANE, partial_layout
from nearkv_hdl.spec.attention import SUM
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.stream.skid import SkidBuffer

REQUEST = data.StructLayout({"maximum_only": 1, "slot": 1, "merge": 1})


class ResultReader(wiring.Component):
    """Turns a unit's maximum, or its m, l and o, into a partial on a stream.

    Formula: header (l, m, E_V), then the accumulator rows, partial_lanes / lanes of them a beat; a maximum
    alone is a header with `last`.
    Timing: waits for `settled`, then the header after 1 cycle and a beat every partial_lanes / lanes cycles;
    latency from an accepted request to the header, if settled, = `latency`.
    Stalls: a pause of `o` holds the rows in the memory's output register.
    Numerics: none.
    Reset: control and valid bits.

    Args:
        design: lanes and head_dim.

    Members:
        request, request_valid: begin; may come only while not `busy`.
        active: the request being served.
        settled: what it asks for is complete.
        word, total, empty: header fields, and whether all sums are 0.
        row, advance: accumulator row wanted, and the read enable of its memory.
        sums: that row, one cycle later.
        busy: a request is being served.
        o: partials.

    """

    def __init__(self, design: PimDesign) -> None:
        self.design = design
        self.rows_per_beat = design.partial_lanes // design.lanes
        self._skid = SkidBuffer(partial_layout(design.partial_lanes))
        super().__init__(
            {
                "request": In(REQUEST),
                "request_valid": In(1),
                "active": Out(REQUEST),
                "settled": In(1),
                "word": In(MAXIMUM_WORD),
                "total": In(shape_of(SUM)),
                "empty": In(1),
                "row": Out(range(design.beats)),
                "advance": Out(1),
                "sums": In(shape_of(SUM)).array(design.lanes),
                "busy": Out(1),
                "o": Out(stream.Signature(partial_layout(design.partial_lanes))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a request to its header: wait, header, buffer."""
        return 2 + self._skid.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats of sums."""
        return self.rows_per_beat

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = self._skid
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        out = skid.i.payload
        active = Signal(REQUEST, reset_less=True)
        m.d.comb += [self.active.eq(active), out.merge.eq(active.merge)]

        # Rows: `row` is the address, `at_output` says that the memory shows the row before it.
        row = Signal(range(self.design.beats))
        at_output, is_last_row = Signal(), Signal(reset_less=True)
        group = Signal(range(self.rows_per_beat))
        earlier = [
            Signal(self.design.lanes * SUM.width, name=f"row{position}", reset_less=True)
            for position in range(self.rows_per_beat - 1)
        ]
        completes = group == self.rows_per_beat - 1
        sums = Mux(self.empty, 0, Cat(*self.sums))
        m.d.comb += self.row.eq(row)

        with m.FSM():
            with m.State("idle"), m.If(self.request_valid):
                m.d.sync += active.eq(self.request)
                m.next = "wait"
            with m.State("wait"):
                m.d.comb += self.busy.eq(1)
                with m.If(self.settled):
                    m.next = "header"
            with m.State("header"):
                m.d.comb += [
                    self.busy.eq(1),
                    skid.i.valid.eq(1),
                    out.last.eq(active.maximum_only),
                    out.data[TOTAL_LANE].eq(Mux(active.maximum_only | self.empty, 0, self.total)),
                    out.data[MAXIMUM_LANE].eq(Value.cast(self.word)),
                ]
                with m.If(skid.i.ready):
                    m.d.sync += [row.eq(0), group.eq(0), at_output.eq(0), is_last_row.eq(0)]
                    with m.If(active.maximum_only):
                        m.next = "idle"
                    with m.Else():
                        m.next = "rows"
            with m.State("rows"):
                m.d.comb += [
                    self.busy.eq(1),
                    self.advance.eq(~at_output | ~completes | skid.i.ready),
                    skid.i.valid.eq(at_output & completes),
                    out.last.eq(is_last_row),
                    Value.cast(out.data).eq(Cat(*earlier, sums)),
                ]
                with m.If(self.advance):
                    m.d.sync += [
                        at_output.eq(1),
                        is_last_row.eq(row == self.design.beats - 1),
                        row.eq(row + 1),
                    ]
                    with m.If(at_output):
                        m.d.sync += group.eq(Mux(completes, 0, group + 1))
                        for position, register in enumerate(earlier):
                            with m.If(group == position):
                                m.d.sync += register.eq(sums)
                        with m.If(is_last_row):
                            m.next = "idle"
        return m

"""Records of INT8 codes back to FP16 tiles."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.migrate.expand_lane import ExpandLane
from nearkv_hdl.migrate.quantise_lane import SCALE, is_finite
from nearkv_hdl.migrate.row_quantiser import check_beat
from nearkv_hdl.spec.attention import FP16_BITS, FP16_FRACTION_BITS
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.layout import FP16_BYTES
from nearkv_hdl.spec.migration import PARTS, SCALE_HEADER_BYTES, PimLayout
from nearkv_hdl.stream.pipeline import PipelineControl
from nearkv_hdl.stream.width import Narrow


class RowExpander(wiring.Component):
    """Makes FP16 tiles in order ROWS of RowQuantiser's records.

    Formula: code · scale of its row, to FP16 nearest even, `nearkv_sim.golden.migrate_rows.expand_rows`.
    Timing: latency `latency` from a record's first beat of codes to its first numbers; interval one beat in
    per two out. A record's header is taken when the numbers of the one before have left its register: in all
    `record_cycles` cycles a record.
    Stalls: a stalled `o` stops `i` after the beats that the pipeline holds.
    Numerics: one rounding; saturates at ±65504. A scale that is negative, Inf or NaN raises `o_invalid`; its
    row is then undefined.
    Cuts: `o` comes from registers; `i.ready` follows `o.ready` through gates.
    Reset: control; a record under way is lost.

    Args:
        layout: rows and tile.
        beat_bytes: of both streams, as for RowQuantiser.

    Members:
        i: bytes of records.
        o: FP16 numbers.
        o_invalid: a bad scale came by since reset.

    Raises ValueError for another width.

    """

    def __init__(self, layout: PimLayout, beat_bytes: int) -> None:
        self.row_beats = check_beat(layout, beat_bytes)
        self.layout = layout
        self.beat_bytes = beat_bytes
        self.lanes = beat_bytes // FP16_BYTES
        self._narrow = Narrow(beat_bytes, self.lanes)
        self._lane = [ExpandLane() for _ in range(self.lanes)]
        self._multiplying = PipelineControl(self._lane[0].latency)
        super().__init__(
            {
                "i": In(stream.Signature(8 * beat_bytes)),
                "o": Out(stream.Signature(8 * beat_bytes)),
                "o_invalid": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a beat of codes to its first numbers."""
        return self._narrow.latency + self._multiplying.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats out."""
        return 1

    @property
    def header_beats(self) -> int:
        """Beats of a record before its codes."""
        return SCALE_HEADER_BYTES // self.beat_bytes

    @property
    def record_cycles(self) -> int:
        """Cycles per record at full rate."""
        return self.layout.tile_bytes // self.beat_bytes + self.header_beats + self._narrow.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.narrow = narrow = self._narrow
        m.submodules.multiplying = multiplying = self._multiplying
        row_beats = self.row_beats
        tile_rows = PARTS * self.layout.tile_tokens
        code_beats = self.layout.tile_bytes // FP16_BYTES // self.beat_bytes

        # Header into a register, as soon as the numbers of the record before have left it.
        header = Signal(8 * SCALE_HEADER_BYTES, reset_less=True)
        header_left = Signal(range(self.header_beats + 1), init=self.header_beats)
        codes_left = Signal(range(code_beats + 1))
        rows_left = Signal(range(tile_rows + 1))
        in_header = Signal()
        takes = Signal()
        m.d.comb += [
            in_header.eq(codes_left == 0),
            self.i.ready.eq(Mux(in_header, rows_left == 0, narrow.i.ready)),
            takes.eq(self.i.valid & self.i.ready),
            narrow.i.valid.eq(self.i.valid & ~in_header),
            narrow.i.payload.eq(self.i.payload),
        ]
        with m.If(takes & in_header):
            m.d.sync += [
                header.eq(Cat(header[8 * self.beat_bytes :], self.i.payload)),
                header_left.eq(header_left - 1),
            ]
            with m.If(header_left == 1):
                m.d.sync += [
                    header_left.eq(self.header_beats),
                    codes_left.eq(code_beats),
                    rows_left.eq(tile_rows),
                ]
        with m.Elif(takes):
            m.d.sync += codes_left.eq(codes_left - 1)

        # Multiply, row by row.
        beat_index = Signal(range(row_beats))
        issues, row_ends = Signal(), Signal()
        m.d.comb += [
            multiplying.i_valid.eq(narrow.o.valid),
            narrow.o.ready.eq(multiplying.i_ready),
            issues.eq(narrow.o.valid & narrow.o.ready),
            row_ends.eq(issues & (beat_index == row_beats - 1)),
        ]
        with m.If(issues):
            m.d.sync += beat_index.eq(Mux(row_ends, 0, beat_index + 1))
        with m.If(row_ends):
            m.d.sync += [header.eq(header >> FP16_BITS), rows_left.eq(rows_left - 1)]
        bits = header[:FP16_BITS]
        field = bits[FP16_FRACTION_BITS : FP16_BITS - 1]
        scale = data.View(SCALE, Cat(bits[:FP16_FRACTION_BITS], field.any(), Mux(field.any(), field, 1)))
        with m.If(issues & (bits[-1] | ~is_finite(bits))):
            m.d.sync += self.o_invalid.eq(1)
        for index, lane in enumerate(self._lane):
            m.submodules[f"lane{index}"] = lane
            m.d.comb += [
                lane.enable.eq(multiplying.enable),
                lane.code.eq(narrow.o.payload.word_select(index, CODE.width).as_signed()),
                lane.scale.eq(scale),
            ]
        m.d.comb += [
            self.o.valid.eq(multiplying.o_valid),
            self.o.payload.eq(Cat(lane.o for lane in self._lane)),
            multiplying.o_ready.eq(self.o.ready),
        ]
        return m

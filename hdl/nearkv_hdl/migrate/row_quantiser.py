"""FP16 tiles to records of INT8 codes, each row under a scale of its own."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.migrate.quantise_lane import SCALE, QuantiseLane, RowScale, fp16_of, is_finite
from nearkv_hdl.spec.attention import FP16_BITS
from nearkv_hdl.spec.formats import CODE, is_power_of_two
from nearkv_hdl.spec.layout import FP16_BYTES
from nearkv_hdl.spec.migration import PARTS, SCALE_HEADER_BYTES, PimLayout
from nearkv_hdl.stream.credit import BUFFER_LATENCY
from nearkv_hdl.stream.pipeline import PipelineControl
from nearkv_hdl.stream.width import Widen

_SCALES_AHEAD = 4  # rows whose scale waits for their beats to leave


def check_beat(layout: PimLayout, beat_bytes: int) -> int:
    """Beats of an FP16 row; ValueError unless beats divide rows and headers."""
    most = min(layout.row_bytes // 2, SCALE_HEADER_BYTES)
    if not (is_power_of_two(beat_bytes) and 4 <= beat_bytes <= most) or layout.row_bytes % (2 * beat_bytes):
        raise ValueError(
            f"beat_bytes is {beat_bytes} for {layout.name}; allowed: a power of two from 4 to {most}, twice"
            " which divides a row"
        )
    return layout.row_bytes // beat_bytes


class RowQuantiser(wiring.Component):
    """Makes records of FP16 tiles in order ROWS. Lossy.

    Formula: `nearkv_sim.golden.migrate_rows`: a record is a header of one FP16 scale per row, padded with
    zeros to 64 bytes, then one code a number. scale = smallest FP16 ≥ max|x| / 127; code = x / scale, rounded
    half away from zero.
    Timing: a row waits for its largest number, a record for its last row: `latency` from a tile's last beat
    to its header, without stalls. Interval 1 beat in, two beats in per beat out, tiles back to back.
    Stalls: a stalled `o` stops `i` when a second tile of codes is complete.
    Numerics: exact to the rounding: |x − code · scale| ≤ scale / 2. Inf and NaN raise `o_invalid`; their row
    is then undefined.
    Cuts: every path but those within the width conversion and the dividers' clock enable.
    Reset: control and queues; a tile under way is lost.

    Args:
        layout: rows and tile.
        beat_bytes: of both streams, at least two beats a row, at most a header.

    Members:
        i: FP16 numbers.
        o: bytes of records.
        o_invalid: Inf or NaN came by since reset.

    Raises ValueError for another width.

    """

    def __init__(self, layout: PimLayout, beat_bytes: int) -> None:
        self.row_beats = check_beat(layout, beat_bytes)
        self.layout = layout
        self.beat_bytes = beat_bytes
        self.lanes = beat_bytes // FP16_BYTES
        self._levels = (self.lanes - 1).bit_length()
        self._scale = RowScale()
        self._lane = [QuantiseLane() for _ in range(self.lanes)]
        self._dividing = PipelineControl(self._lane[0].latency)
        self._widen = Widen(self.lanes, beat_bytes)
        super().__init__(
            {
                "i": In(stream.Signature(8 * beat_bytes)),
                "o": Out(stream.Signature(8 * beat_bytes)),
                "o_invalid": Out(1),
            }
        )

    @property
    def scale_latency(self) -> int:
        """Cycles from a row's last beat to its scale at the queue's head."""
        return self._levels + 1 + self._scale.latency + BUFFER_LATENCY

    @property
    def latency(self) -> int:
        """Cycles from a tile's last beat to the header of its record."""
        return self.scale_latency + self.row_beats + 1

    @property
    def interval(self) -> int:
        """Cycles between two beats in."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.scale = row_scale = self._scale
        m.submodules.dividing = dividing = self._dividing
        m.submodules.widen = widen = self._widen
        lanes, row_beats = self.lanes, self.row_beats
        tile_rows = PARTS * self.layout.tile_tokens
        code_beats = self.layout.tile_bytes // FP16_BYTES // self.beat_bytes
        m.submodules.beats = beats = fifo.SyncFIFOBuffered(
            width=8 * self.beat_bytes, depth=2 * row_beats + self.scale_latency
        )
        m.submodules.scales = scales = fifo.SyncFIFOBuffered(
            width=SCALE.size, depth=_SCALES_AHEAD + self.scale_latency
        )
        m.submodules.codes = codes = fifo.SyncFIFOBuffered(width=8 * self.beat_bytes, depth=2 * code_beats)

        # A row's beats wait; its largest number gives its scale. A scale leaves with its row, so there are at
        # most as many as whole rows wait.
        arrives = Signal()
        row_index = Signal(range(row_beats))
        m.d.comb += [
            self.i.ready.eq(beats.w_rdy),
            arrives.eq(self.i.valid & beats.w_rdy),
            beats.w_en.eq(arrives),
            beats.w_data.eq(self.i.payload),
        ]
        with m.If(arrives):
            m.d.sync += row_index.eq(Mux(row_index == row_beats - 1, 0, row_index + 1))
        numbers = [self.i.payload.word_select(lane, FP16_BITS) for lane in range(lanes)]
        with m.If(arrives & ~Cat(is_finite(number) for number in numbers).all()):
            m.d.sync += self.o_invalid.eq(1)
        terms = [number[: FP16_BITS - 1] for number in numbers]
        flags = Cat(arrives & (row_index == row_beats - 1), arrives & (row_index == 0), arrives)
        for level in range(self._levels):
            larger = [Mux(a > b, a, b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
            terms = _registers(m, f"largest{level}", larger, reset_less=True)
            (flags,) = _registers(m, f"flags{level}", [flags], reset_less=False)
        largest = Signal(FP16_BITS - 1, reset_less=True)
        complete = Signal()
        m.d.sync += complete.eq(flags[0])
        with m.If(flags[2] & (flags[1] | (terms[0] > largest))):
            m.d.sync += largest.eq(terms[0])
        under_way = Signal(row_scale.latency)
        m.d.sync += under_way.eq(Cat(complete, under_way[:-1]))
        m.d.comb += [
            row_scale.largest.eq(largest),
            scales.w_en.eq(under_way[-1]),
            scales.w_data.eq(Value.cast(row_scale.o)),
        ]

        # Divide, row by row; collect the scales of a tile.
        collected = Signal(tile_rows * FP16_BITS, reset_less=True)
        rows = Signal(range(tile_rows + 1))
        header_taken = Signal()
        beat_index = Signal(range(row_beats))
        issues, row_ends = Signal(), Signal()
        m.d.comb += [
            dividing.i_valid.eq(beats.r_rdy & scales.r_rdy & ((rows != tile_rows) | header_taken)),
            issues.eq(dividing.i_valid & dividing.i_ready),
            row_ends.eq(issues & (beat_index == row_beats - 1)),
            beats.r_en.eq(issues),
            scales.r_en.eq(row_ends),
        ]
        scale = data.View(SCALE, scales.r_data)
        with m.If(issues):
            m.d.sync += beat_index.eq(Mux(row_ends, 0, beat_index + 1))
        with m.If(row_ends):
            m.d.sync += [
                rows.eq(rows + 1),
                collected.eq(Cat(collected[FP16_BITS:], fp16_of(scale), Const(0, 1))),
            ]
        with m.Elif(header_taken):
            m.d.sync += rows.eq(0)
        for index, lane in enumerate(self._lane):
            m.submodules[f"lane{index}"] = lane
            m.d.comb += [
                lane.enable.eq(dividing.enable),
                lane.number.eq(beats.r_data.word_select(index, FP16_BITS)),
                lane.scale.eq(scale),
            ]
        m.d.comb += [
            widen.i.valid.eq(dividing.o_valid),
            widen.i.payload.eq(Cat(lane.o[: CODE.width] for lane in self._lane)),
            dividing.o_ready.eq(widen.i.ready),
            codes.w_en.eq(widen.o.valid),
            codes.w_data.eq(widen.o.payload),
            widen.o.ready.eq(codes.w_rdy),
        ]

        # Send: header, then codes.
        header_beats = SCALE_HEADER_BYTES // self.beat_bytes
        header = Signal(8 * SCALE_HEADER_BYTES, reset_less=True)
        header_left = Signal(range(header_beats + 1))
        codes_left = Signal(range(code_beats + 1))
        sends = self.o.valid & self.o.ready
        m.d.comb += [
            header_taken.eq((rows == tile_rows) & (header_left == 0) & (codes_left == 0)),
            self.o.valid.eq((header_left != 0) | ((codes_left != 0) & codes.r_rdy)),
            self.o.payload.eq(Mux(header_left != 0, header[: 8 * self.beat_bytes], codes.r_data)),
            codes.r_en.eq((header_left == 0) & (codes_left != 0) & self.o.ready),
        ]
        with m.If(header_taken):
            m.d.sync += [header.eq(collected), header_left.eq(header_beats), codes_left.eq(code_beats)]
        with m.Elif(sends & (header_left != 0)):
            m.d.sync += [header.eq(header >> 8 * self.beat_bytes), header_left.eq(header_left - 1)]
        with m.Elif(sends):
            m.d.sync += codes_left.eq(codes_left - 1)
        return m


def _registers(m: Module, name: str, values: list[Value], *, reset_less: bool) -> list[Signal]:
    """One free-running register rank."""
    registers = []
    for index, value in enumerate(values):
        register = Signal.like(Value.cast(value), name=f"{name}_{index}", reset_less=reset_less)
        m.d.sync += register.eq(value)
        registers.append(register)
    return registers

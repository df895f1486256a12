"""Partial results to records of 8-bit codes, for a link."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.pim.packed import HEADER, change_width, check_lanes, packed_layout, record_interval
from nearkv_hdl.pim.partial import MAXIMUM_LANE, MAXIMUM_WORD, TOTAL_LANE, partial_layout
from nearkv_hdl.pim.sum_codes import GroupShift, SumToCode
from nearkv_hdl.spec.attention import SUM
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.packed_partial import HEADER_BYTES, PackedPartial
from nearkv_hdl.stream.credit import BUFFER_LATENCY
from nearkv_hdl.stream.pipeline import PipelineControl

_HEADERS_AHEAD = 4  # partials, or maxima alone, that wait for their turn


class PartialPacker(wiring.Component):
    """Makes records of partial results: l, m and E_V as they are, sums as 8-bit codes. Lossy.

    Formula: `nearkv_hdl.spec.packed_partial`: a shift per group of 32 channels, the smallest e with
    max |o| < 127.5 · 2^e, and codes rhu(o, e). A maximum alone becomes a prefix alone.
    Timing: a group waits for its largest sum, a record for its last group's: `latency` from a partial's last
    beat to its record's first, without stalls; 3 cycles for a maximum alone. Interval: `record_interval`, as
    a rule the longer of 1 + beats of sums in and the record's beats out, but two partials take at least
    5 + beats of sums; a maximum alone takes its prefix's beats.
    Stalls: a pause of `o` stops `i` when codes of two partials wait and sums fill their queue, or headers do.
    Within a record `o` pauses only if sums come slower than codes leave, or for the pipeline's depth behind a
    prefix of few beats.
    Numerics: |o − code · 2^e| ≤ 2^(e−1); exact for e = 0. The exact merge of rounded partials depends on the
    partition.
    Cuts: every path but those from `o.ready` through the record's end, and within the width conversion.
    Reset: control and queues; a partial under way is lost.

    Args:
        head_dim: channels, up to 32 or a multiple of 32.
        partial_lanes: sums per beat, a power of two from 2 that divides a group.
        beat_bytes: of `o`, a power of two from 4 to 64 that divides head_dim.

    Members:
        i: partials of head_dim sums.
        o: bytes of records.
        o_framing_error: since reset a partial had more or fewer sums; they are counted, `last` is not heeded
            but for a header's, so what follows is cut in wrong places until a reset.

    Raises ValueError for other sizes.

    """

    def __init__(self, head_dim: int, partial_lanes: int, beat_bytes: int) -> None:
        self.sizes = PackedPartial(head_dim, beat_bytes)
        self.group_beats = check_lanes(self.sizes, partial_lanes)
        self.partial_lanes = partial_lanes
        self.partial_beats = head_dim // partial_lanes
        self._shift = GroupShift(partial_lanes)
        self._lanes = [SumToCode() for _ in range(partial_lanes)]
        self._coding = PipelineControl(self._lanes[0].latency)
        self._regroup = change_width(partial_lanes, beat_bytes)
        super().__init__(
            {
                "i": In(stream.Signature(partial_layout(partial_lanes))),
                "o": Out(stream.Signature(packed_layout(beat_bytes))),
                "o_framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a partial's last beat to its record's first: shift, its queue, collected, sent."""
        return self._shift.latency + BUFFER_LATENCY + 2

    @property
    def interval(self) -> int:
        """Cycles between two partials at full rate; where they alternate, the mean rounded up.

        Shifts are collected for one partial ahead, so the first code of every second one leaves only when it
        has passed coding, queue and width conversion since its predecessor's record began.
        """
        code_cycles = self._coding.latency + BUFFER_LATENCY + self._regroup.latency
        of_two = code_cycles + self.partial_beats - 1
        return max(record_interval(self.sizes, self.partial_lanes), -(-of_two // 2))

    def elaborate(self, platform):
        m = Module()
        waiting_beats = 2 * self.group_beats + self._shift.latency
        m.submodules.headers = headers = fifo.SyncFIFOBuffered(width=HEADER.size, depth=_HEADERS_AHEAD)
        m.submodules.sums = sums = fifo.SyncFIFOBuffered(
            width=self.partial_lanes * SUM.width, depth=waiting_beats
        )
        # A shift leaves with its group's last beat, so there are never more shifts than beats.
        m.submodules.shifts = shifts = fifo.SyncFIFOBuffered(width=len(self._shift.o), depth=waiting_beats)
        m.submodules.codes = codes = fifo.SyncFIFOBuffered(
            width=CODE.width * self.partial_lanes, depth=2 * self.partial_beats
        )
        self._take(m, headers, sums, shifts)
        known, collected, header_taken = self._encode(m, sums, shifts, codes)
        self._send(m, headers, codes, known, collected, header_taken)
        return m

    def _take(self, m: Module, headers, sums, shifts) -> None:
        """Sort beats into headers and sums; find the shifts of groups."""
        m.submodules.shift = shift = self._shift
        beat = self.i.payload
        left = Signal(range(self.partial_beats + 1))
        group_beat = Signal(range(self.group_beats))
        is_header, takes = Signal(), Signal()
        ends_group = group_beat == self.group_beats - 1
        word = data.View(MAXIMUM_WORD, beat.data[MAXIMUM_LANE].as_unsigned())
        header = data.View(HEADER, headers.w_data)
        m.d.comb += [
            is_header.eq(left == 0),
            self.i.ready.eq(Mux(is_header, headers.w_rdy, sums.w_rdy)),
            takes.eq(self.i.valid & self.i.ready),
            headers.w_en.eq(takes & is_header),
            header.total.eq(beat.data[TOTAL_LANE]),
            header.maximum.eq(word.maximum),
            header.value_exponent.eq(word.value_exponent),
            header.merge.eq(beat.merge),
            header.alone.eq(beat.last),
            sums.w_en.eq(takes & ~is_header),
            sums.w_data.eq(Value.cast(beat.data)),
            shift.present.eq(sums.w_en),
            shift.first.eq(group_beat == 0),
            shift.last.eq(ends_group),
            *(shift.sums[lane].eq(beat.data[lane]) for lane in range(self.partial_lanes)),
            shifts.w_en.eq(shift.o_valid),
            shifts.w_data.eq(shift.o),
        ]
        with m.If(headers.w_en):
            m.d.sync += left.eq(Mux(beat.last, 0, self.partial_beats))
        with m.If(sums.w_en):
            m.d.sync += [left.eq(left - 1), group_beat.eq(Mux(ends_group, 0, group_beat + 1))]
            with m.If(beat.last != (left == 1)):
                m.d.sync += self.o_framing_error.eq(1)

    def _encode(self, m: Module, sums, shifts, codes) -> tuple[Signal, Signal, Signal]:
        """Codes of group after group; a partial's shifts are collected until its record begins."""
        m.submodules.coding = coding = self._coding
        groups = self.sizes.groups
        collected = Signal(8 * groups, reset_less=True)
        count = Signal(range(groups + 1))
        header_taken = Signal()
        group_beat = Signal(range(self.group_beats))
        known, starts, issues, ends_group = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            known.eq(count == groups),
            coding.i_valid.eq(sums.r_rdy & shifts.r_rdy & ((group_beat != 0) | ~known | header_taken)),
            issues.eq(coding.i_valid & coding.i_ready),
            starts.eq(issues & (group_beat == 0)),
            ends_group.eq(issues & (group_beat == self.group_beats - 1)),
            sums.r_en.eq(issues),
            shifts.r_en.eq(ends_group),
        ]
        m.d.sync += count.eq(Mux(header_taken, 0, count) + starts)
        with m.If(issues):
            m.d.sync += group_beat.eq(Mux(ends_group, 0, group_beat + 1))
        with m.If(starts):
            padding = Const(0, 8 - len(shifts.r_data))
            m.d.sync += collected.eq(Cat(collected[8:], shifts.r_data, padding))
        for index, lane in enumerate(self._lanes):
            m.submodules[f"lane{index}"] = lane
            m.d.comb += [
                lane.enable.eq(coding.enable),
                lane.sum.eq(sums.r_data.word_select(index, SUM.width)),
                lane.shift.eq(shifts.r_data),
            ]
        m.d.comb += [
            codes.w_en.eq(coding.o_valid),
            codes.w_data.eq(Cat(lane.o[: CODE.width] for lane in self._lanes)),
            coding.o_ready.eq(codes.w_rdy),
        ]
        return known, collected, header_taken

    def _send(self, m: Module, headers, codes, known, collected, header_taken) -> None:
        """Prefix, then codes; the next record begins in the cycle after a record's end."""
        m.submodules.regroup = regroup = self._regroup
        sizes = self.sizes
        header = data.View(HEADER, headers.r_data)
        prefix = Signal(8 * sizes.prefix_bytes, reset_less=True)
        prefix_left = Signal(range(sizes.prefix_beats + 1))
        codes_left = Signal(range(sizes.code_beats + 1))
        in_prefix, begins, sends = Signal(), Signal(), Signal()
        o = self.o.payload
        m.d.comb += [
            in_prefix.eq(prefix_left != 0),
            regroup.i.valid.eq(codes.r_rdy),
            regroup.i.payload.eq(codes.r_data),
            codes.r_en.eq(regroup.i.ready),
            self.o.valid.eq(in_prefix | ((codes_left != 0) & regroup.o.valid)),
            o.data.eq(Mux(in_prefix, prefix[: 8 * sizes.beat_bytes], regroup.o.payload)),
            o.last.eq(Mux(in_prefix, (prefix_left == 1) & (codes_left == 0), codes_left == 1)),
            sends.eq(self.o.valid & self.o.ready),
            regroup.o.ready.eq(~in_prefix & (codes_left != 0) & self.o.ready),
            begins.eq(
                headers.r_rdy & (header.alone | known) & ((~in_prefix & (codes_left == 0)) | (sends & o.last))
            ),
            headers.r_en.eq(begins),
            header_taken.eq(begins & ~header.alone),
        ]
        with m.If(sends & in_prefix):
            m.d.sync += [prefix.eq(prefix >> 8 * sizes.beat_bytes), prefix_left.eq(prefix_left - 1)]
        with m.Elif(sends):
            m.d.sync += codes_left.eq(codes_left - 1)
        with m.If(begins):
            shifts = Mux(header.alone, 0, collected)
            m.d.sync += [
                prefix.eq(Cat(headers.r_data[: 8 * HEADER_BYTES], shifts)),
                prefix_left.eq(sizes.prefix_beats),
                codes_left.eq(Mux(header.alone, 0, sizes.code_beats)),
            ]

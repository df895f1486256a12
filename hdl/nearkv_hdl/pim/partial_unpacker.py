"""Records of 8-bit codes back to partial results."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.ranks import Ranks
from nearkv_hdl.pim.packed import HEADER, change_width, check_lanes, packed_layout, record_interval
from nearkv_hdl.pim.partial import MAXIMUM_LANE, MAXIMUM_WORD, TOTAL_LANE, partial_layout
from nearkv_hdl.pim.sum_codes import CodeToSum
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.packed_partial import HEADER_BYTES, MAX_SHIFT, PackedPartial
from nearkv_hdl.stream.pipeline import PipelineControl


class PartialUnpacker(wiring.Component):
    """Makes partial results of PartialPacker's records, for a reduction unit.

    Formula: `nearkv_hdl.spec.packed_partial`: o = code · 2^e, saturating at signed 48 bits; l, m and E_V as
    they are.
    Timing: latency `latency` from a prefix's last beat to the partial's header. Interval: `record_interval`,
    as a rule the longer of the record's beats in and 1 + beats of sums out; a maximum alone takes one cycle
    more than its prefix's beats.
    Stalls: a pause of `o` stops the pipeline under its clock enable, and `i` once prefix or width conversion
    are full. No ready depends on a valid.
    Numerics: exact, but for sums that would be 2^47 or more. A shift above 41 raises `o_invalid`; its group
    is then undefined.
    Cuts: `o` comes from registers through one gate; `i.ready` follows `o.ready` through gates.
    Reset: control; a record under way is lost.

    Args:
        head_dim, partial_lanes, beat_bytes: as for PartialPacker; beat_bytes of `i`.

    Members:
        i: bytes of records.
        o: partials of head_dim sums.
        o_invalid: a bad shift came by since reset.
        o_framing_error: since reset `last` was not on a record's final beat alone; beats are counted, `last`
            is not heeded, so after a beat lost or doubled records are cut in wrong places until a reset. A
            record lost whole is not seen.

    Raises ValueError for other sizes.

    """

    def __init__(self, head_dim: int, partial_lanes: int, beat_bytes: int) -> None:
        self.sizes = PackedPartial(head_dim, beat_bytes)
        self.group_beats = check_lanes(self.sizes, partial_lanes)
        self.partial_lanes = partial_lanes
        self.partial_beats = head_dim // partial_lanes
        self._lanes = [CodeToSum() for _ in range(partial_lanes)]
        self._shifting = PipelineControl(self._lanes[0].latency)
        self._regroup = change_width(beat_bytes, partial_lanes)
        super().__init__(
            {
                "i": In(stream.Signature(packed_layout(beat_bytes))),
                "o": Out(stream.Signature(partial_layout(partial_lanes))),
                "o_invalid": Out(1),
                "o_framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a prefix's last beat to its header: register, pipeline."""
        return 1 + self._shifting.latency

    @property
    def interval(self) -> int:
        """Cycles between two partials at full rate."""
        return record_interval(self.sizes, self.partial_lanes)

    def elaborate(self, platform):
        m = Module()
        m.submodules.regroup = self._regroup
        prefix = Signal(8 * self.sizes.prefix_bytes, reset_less=True)
        waits, taken = Signal(), Signal()
        self._take(m, prefix, waits, taken)
        self._expand(m, prefix, waits, taken)
        return m

    def _take(self, m: Module, prefix, waits, taken) -> None:
        """Prefix into its register, once the one before has been taken; codes into the width conversion."""
        sizes, regroup = self.sizes, self._regroup
        prefix_left = Signal(range(sizes.prefix_beats + 1), init=sizes.prefix_beats)
        codes_left = Signal(range(sizes.code_beats + 1))
        in_prefix, takes, completes, is_last = Signal(), Signal(), Signal(), Signal()
        filled = Cat(prefix[8 * sizes.beat_bytes :], self.i.payload.data)
        alone = data.View(HEADER, filled[: HEADER.size]).alone
        m.d.comb += [
            in_prefix.eq(codes_left == 0),
            self.i.ready.eq(Mux(in_prefix, ~waits, regroup.i.ready)),
            takes.eq(self.i.valid & self.i.ready),
            completes.eq(in_prefix & (prefix_left == 1)),
            is_last.eq(Mux(in_prefix, completes & alone, codes_left == 1)),
            regroup.i.valid.eq(self.i.valid & ~in_prefix),
            regroup.i.payload.eq(self.i.payload.data),
        ]
        with m.If(taken):
            m.d.sync += waits.eq(0)
        with m.If(takes & in_prefix):
            m.d.sync += [
                prefix.eq(filled),
                prefix_left.eq(Mux(completes, sizes.prefix_beats, prefix_left - 1)),
            ]
            with m.If(completes):
                m.d.sync += [waits.eq(1), codes_left.eq(Mux(alone, 0, sizes.code_beats))]
        with m.Elif(takes):
            m.d.sync += codes_left.eq(codes_left - 1)
        with m.If(takes & (self.i.payload.last != is_last)):
            m.d.sync += self.o_framing_error.eq(1)

    def _expand(self, m: Module, prefix, waits, taken) -> None:
        """A header, then sums group by group."""
        m.submodules.shifting = shifting = self._shifting
        regroup, groups = self._regroup, self.sizes.groups
        header = data.View(HEADER, prefix[: HEADER.size])
        given = prefix[8 * HEADER_BYTES : 8 * (HEADER_BYTES + groups)]
        shifts = Signal(8 * groups, reset_less=True)
        merge = Signal(reset_less=True)
        left = Signal(range(self.partial_beats + 1))
        group_beat = Signal(range(self.group_beats))
        is_header, issues, ends_group = Signal(), Signal(), Signal()
        m.d.comb += [
            is_header.eq(left == 0),
            shifting.i_valid.eq(Mux(is_header, waits, regroup.o.valid)),
            regroup.o.ready.eq(~is_header & shifting.i_ready),
            issues.eq(shifting.i_valid & shifting.i_ready),
            taken.eq(issues & is_header),
            ends_group.eq(group_beat == self.group_beats - 1),
        ]
        with m.If(taken):
            m.d.sync += [
                shifts.eq(given),
                merge.eq(header.merge),
                left.eq(Mux(header.alone, 0, self.partial_beats)),
            ]
            bad = Cat(given.word_select(group, 8) > MAX_SHIFT for group in range(groups)).any()
            with m.If(bad & ~header.alone):
                m.d.sync += self.o_invalid.eq(1)
        with m.Elif(issues):
            m.d.sync += [left.eq(left - 1), group_beat.eq(Mux(ends_group, 0, group_beat + 1))]
            with m.If(ends_group):
                m.d.sync += shifts.eq(shifts >> 8)

        rank = Ranks(m, shifting.enable)
        at = {
            "is_header": is_header,
            "last": Mux(is_header, header.alone, left == 1),
            "merge": Mux(is_header, header.merge, merge),
            "total": header.total,
            "maximum": header.maximum,
            "value_exponent": header.value_exponent,
        }
        while rank.count < shifting.latency:
            at = rank(**at)
        out = self.o.payload
        word = Signal(MAXIMUM_WORD)
        m.d.comb += [
            shifting.o_ready.eq(self.o.ready),
            self.o.valid.eq(shifting.o_valid),
            out.merge.eq(at["merge"]),
            out.last.eq(at["last"]),
            word.maximum.eq(at["maximum"]),
            word.value_exponent.eq(at["value_exponent"]),
        ]
        for index, lane in enumerate(self._lanes):
            m.submodules[f"lane{index}"] = lane
            m.d.comb += [
                lane.enable.eq(shifting.enable),
                lane.code.eq(regroup.o.payload.word_select(index, CODE.width)),
                lane.shift.eq(shifts[: len(lane.shift)]),
                out.data[index].eq(Mux(at["is_header"], 0, lane.o)),
            ]
        with m.If(at["is_header"]):
            m.d.comb += [
                out.data[TOTAL_LANE].eq(at["total"]),
                out.data[MAXIMUM_LANE].eq(Value.cast(word)),
            ]

"""From AXI write bursts to the payloads of memory writes that PCIe allows."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.transfer import lane_mask
from nearkv_hdl.pcie.formats import BEAT_BYTES, BEAT_DWORDS
from nearkv_hdl.pcie.read_splitter import BURST, LANE_BITS, PLACE_BITS, is_refused, piece_mask
from nearkv_hdl.stream.pipeline import PipelineControl

MOST_ROWS = 16  # of the largest payload that the integrated block offers, 1024 bytes

BEAT = data.StructLayout({"data": 8 * BEAT_BYTES, "strobes": BEAT_BYTES})

PAYLOAD = data.StructLayout(
    {
        "dword_address": 62,
        "dwords": range(MOST_ROWS * BEAT_DWORDS + 1),
        "first_be": 4,
        "last_be": 4,
        "rows": range(MOST_ROWS + 1),  # 0: nothing is to be written
        "id": 1,
        "last": 1,
        "failed": 1,
    }
)


class WritePacker(wiring.Component):
    """Stores beats as rows and cuts bursts at multiples of the maximum payload size.

    Formula: the strobed bytes of a burst, one run without gaps, are given in rising order as payloads, each
    up to the next multiple of 128 << max_payload bytes. A burst's last item may have no rows.
    Errors: of a burst that is refused (as reads are) nothing is stored. A beat whose strobes have a gap, or
    that does not continue the burst's run, is not stored either. The burst's last item says `failed`.
    Timing: latency 2 from a payload's last beat; interval 1 between beats, bursts included. A payload is
    offered when all of its rows are stored. A stalled `o`, or a memory without a free row, stops `beats`.
    Numerics: unsigned.
    Cuts: every path but the `ready` outputs, which depend on o.ready. WLAST is not looked at.
    Reset: all.

    Args:
        rows: rows of the memory, a power of two from twice the largest payload's.

    Members:
        bursts, beats: AW and W.
        max_payload: log2 of the maximum payload size in units of 128 bytes.
        bus_master_enable: bursts taken without it are refused.
        row, row_data, row_enable: to the memory, with the cycle's row number.
        freed: rows that are read from in this cycle for the last time.
        o: payloads in the order of their rows.

    Raises ValueError for another number of rows.

    """

    def __init__(self, rows: int = 64) -> None:
        if rows < 2 * MOST_ROWS or rows & rows - 1:
            raise ValueError(f"rows is {rows}; allowed: a power of two from {2 * MOST_ROWS}")
        self.rows = rows
        super().__init__(
            {
                "bursts": In(stream.Signature(BURST)),
                "beats": In(stream.Signature(BEAT)),
                "max_payload": In(2),
                "bus_master_enable": In(1),
                "row": Out(range(rows)),
                "row_data": Out(8 * BEAT_BYTES),
                "row_enable": Out(1),
                "freed": In(range(MOST_ROWS + 1)),
                "o": Out(stream.Signature(PAYLOAD)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a payload's last beat to the payload."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.control = control = PipelineControl(1)

        # Rank 1: a beat, and where its strobes begin and end.
        offered = self.beats.payload
        strobes = offered.strobes
        word = Signal(8 * BEAT_BYTES, reset_less=True)
        first, final, some, whole = Signal(LANE_BITS), Signal(LANE_BITS), Signal(), Signal()
        lowest, highest = Signal(LANE_BITS), Signal(LANE_BITS)
        for lane in range(BEAT_BYTES):
            with m.If(strobes[lane]):
                m.d.comb += highest.eq(lane)
            with m.If(strobes[BEAT_BYTES - 1 - lane]):
                m.d.comb += lowest.eq(BEAT_BYTES - 1 - lane)
        m.d.comb += [control.i_valid.eq(self.beats.valid), self.beats.ready.eq(control.i_ready)]
        with m.If(control.enable):
            m.d.sync += [
                *(word.eq(offered.data), first.eq(lowest), final.eq(highest), some.eq(strobes.any())),
                whole.eq(strobes == lane_mask(lowest, highest, BEAT_BYTES)),
            ]

        # Rank 2: which payload it belongs to.
        active, failed, refused = Signal(), Signal(), Signal()
        burst = Signal(BURST, reset_less=True)  # its address moves on with the beats, `len` is what is left
        begun, open_run = Signal(), Signal()  # bytes were stored; the last of them was a beat's last
        rows = Signal(range(MOST_ROWS + 1))
        start = Signal(64, reset_less=True)  # of the payload
        end_lane = Signal(LANE_BITS, reset_less=True)
        used = Signal(range(self.rows + 1))
        place = burst.addr[LANE_BITS : LANE_BITS + PLACE_BITS]
        page = burst.addr[LANE_BITS + PLACE_BITS :]
        is_last, fills, keeps, takes, cuts = Signal(), Signal(), Signal(), Signal(), Signal()
        payload_rows, payload_start, payload_end = Signal.like(rows), Signal(64), Signal(LANE_BITS)
        next_failed = Signal()
        m.d.comb += [
            is_last.eq(burst.len == 0),
            keeps.eq(~refused & some & whole & (~begun | (open_run & (first == 0)))),
            next_failed.eq(failed | refused | (some & ~keeps)),
            fills.eq((place | piece_mask(self.max_payload)) == place),
            payload_rows.eq(rows + keeps),
            payload_start.eq(Mux(rows == 0, Cat(first, place, page), start)),
            payload_end.eq(Mux(keeps, final, end_lane)),
            cuts.eq(is_last | (fills & (payload_rows != 0))),
            takes.eq(control.o_valid & active & (used != self.rows) & (~cuts | ~self.o.valid | self.o.ready)),
            control.o_ready.eq(takes),
            self.row_data.eq(word),
            self.row_enable.eq(takes & keeps),
            self.bursts.ready.eq(~active | (takes & is_last)),
        ]
        with m.If(takes):
            m.d.sync += [
                self.row.eq(self.row + keeps),
                burst.addr.eq(Cat(Const(0, LANE_BITS), (place + 1)[:PLACE_BITS], page)),
                burst.len.eq(burst.len - 1),
                *(failed.eq(next_failed), begun.eq(begun | keeps)),
                *(rows.eq(Mux(cuts, 0, payload_rows)), start.eq(payload_start), end_lane.eq(payload_end)),
                open_run.eq(keeps & (final == BEAT_BYTES - 1)),
            ]
        with m.If(self.bursts.ready):
            m.d.sync += [
                *(active.eq(self.bursts.valid), burst.eq(self.bursts.payload)),
                *(failed.eq(0), begun.eq(0)),
                refused.eq(is_refused(self.bursts.payload, self.bus_master_enable)),
            ]
        m.d.sync += used.eq(used + self.row_enable - self.freed)

        payload = self.o.payload
        last_dword = Cat(payload_end[2:], Const(0, 1)) + ((payload_rows - 1) << 4)
        dwords = Signal(payload.dwords.shape())
        first_be, last_be = Signal(4), Signal(4)
        m.d.comb += [
            dwords.eq(last_dword - payload_start[2:LANE_BITS] + 1),
            first_be.eq(Const(0b1111, 4) << payload_start[:2]),
            last_be.eq(Const(0b1111, 4) >> ~payload_end[:2]),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(takes & cuts):
            m.d.sync += [
                self.o.valid.eq(1),
                payload.dword_address.eq(payload_start[2:]),
                payload.dwords.eq(dwords),
                payload.first_be.eq(Mux(dwords == 1, first_be & last_be, first_be)),
                payload.last_be.eq(Mux(dwords == 1, 0, last_be)),
                payload.rows.eq(payload_rows),
                payload.id.eq(burst.id),
                payload.last.eq(is_last),
                payload.failed.eq(next_failed),
            ]
        return m

"""From AXI read bursts to memory reads that PCIe allows."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import BURST_INCR, MAX_BURST_BEATS, PAGE_BYTES
from nearkv_hdl.pcie.formats import BEAT_BYTES
from nearkv_hdl.stream.skid import SkidBuffer

LANE_BITS = (BEAT_BYTES - 1).bit_length()
PAGE_BEATS = PAGE_BYTES // BEAT_BYTES
PLACE_BITS = (PAGE_BEATS - 1).bit_length()  # of a beat in its page

# What an address channel says of a burst, by AXI's names.
BURST = data.StructLayout({"addr": 64, "len": 8, "size": 3, "burst": 2, "id": 1})

PIECE = data.StructLayout(
    {
        "address": 64,  # of the first byte
        "more_beats": range(MAX_BURST_BEATS),  # beats − 1
        "headers": range(PAGE_BEATS + 1),  # most completions it can be answered in
        "id": 1,
        "last": 1,
        "refused": 1,
    }
)


def is_refused(burst: data.View, bus_master_enable: Value) -> Value:
    """Whether a burst gets SLVERR: no bus master, not INCR, not of whole beats, or beyond its page."""
    place = burst.addr[LANE_BITS : LANE_BITS + PLACE_BITS]
    is_whole = (burst.burst == BURST_INCR) & (burst.size == LANE_BITS)
    return ~bus_master_enable | ~is_whole | (place + burst.len >= PAGE_BEATS)


def piece_mask(log2_beats: Value) -> Cat:
    """Beats of a piece − 1, as ones: of 2, 4, … beats for 0, 1, …, up to a page."""
    return Cat(Const(1, 1), *(log2_beats >= bit for bit in range(1, PLACE_BITS)))


class ReadSplitter(wiring.Component):
    """Cuts bursts at multiples of the maximum read request size.

    Formula: the pieces of a burst cover it in rising order, each up to the next multiple of 128 << max_read
    bytes: so none is longer, and none crosses a page if its burst does not. The first begins with the burst's
    own, unaligned address; the last one ends with a whole beat. A completer may end a completion at every
    multiple of the read completion boundary (PCI Express Base Specification 3.1, 2.3.1.1), which bounds
    `headers`. A burst that is refused gives one piece.
    Timing: latency 2, interval 1 between pieces, also of different bursts. A stalled `o` stops `i`.
    Numerics: unsigned.
    Cuts: every path but i.ready, which a register and the end of a burst decide; `o` comes from registers.
    Reset: valid bits.

    Members:
        i: bursts.
        max_read: log2 of the maximum read request size in units of 128 B; beyond 5 as 5.
        boundary_128: the read completion boundary is 128 bytes, else 64.
        bus_master_enable: bursts taken without it are refused.
        o: pieces.

    """

    def __init__(self) -> None:
        self._skid = SkidBuffer(PIECE)
        super().__init__(
            {
                "i": In(stream.Signature(BURST)),
                "max_read": In(3),
                "boundary_128": In(1),
                "bus_master_enable": In(1),
                "o": Out(stream.Signature(PIECE)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a burst to its first piece."""
        return 1 + self._skid.latency

    @property
    def interval(self) -> int:
        """Cycles between two pieces."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = self._skid
        busy = Signal()
        address = Signal(64, reset_less=True)
        left = Signal(8, reset_less=True)  # beats − 1 from `address` to the burst's end
        burst_id, refused = Signal(reset_less=True), Signal(reset_less=True)

        place = address[LANE_BITS : LANE_BITS + PLACE_BITS]
        block_last = Signal(PLACE_BITS)  # last beat of the block of `place`
        piece_last = Signal(PLACE_BITS)
        ends = Signal()
        piece = skid.i.payload
        m.d.comb += [
            block_last.eq(place | piece_mask(self.max_read)),
            ends.eq(refused | (left <= block_last - place)),
            piece_last.eq(Mux(ends, place + left, block_last)),
            piece.address.eq(address),
            piece.more_beats.eq(Mux(ends, left, block_last - place)),
            piece.headers.eq(
                Mux(self.boundary_128, piece_last[1:] - place[1:], piece_last - place)[:PLACE_BITS] + 1
            ),
            piece.id.eq(burst_id),
            piece.last.eq(ends),
            piece.refused.eq(refused),
            skid.i.valid.eq(busy),
            self.i.ready.eq(~busy | (skid.i.ready & ends)),
        ]
        burst = self.i.payload
        with m.If(self.i.ready):
            m.d.sync += [
                busy.eq(self.i.valid),
                address.eq(burst.addr),
                left.eq(burst.len),
                burst_id.eq(burst.id),
                refused.eq(is_refused(burst, self.bus_master_enable)),
            ]
        with m.Elif(skid.i.ready):
            word = address[LANE_BITS:]
            m.d.sync += [
                address.eq(Cat(Const(0, LANE_BITS), Cat(block_last, word[PLACE_BITS:]) + 1)),
                left.eq(left - (block_last - place) - 1),
            ]
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        return m

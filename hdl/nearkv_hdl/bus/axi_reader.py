"""AXI4 read manager: commands in, beats and statuses out."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_read, offer_address
from nearkv_hdl.bus.burst import BurstSplitter
from nearkv_hdl.bus.transfer import (
    LEAST_DEPTH,
    StatusQueue,
    code_of,
    command_layout,
    lane_mask,
    status_layout,
)
from nearkv_hdl.bus.window import WindowCheck
from nearkv_hdl.stream.credit import BUFFER_LATENCY


def read_beat_layout(bus_bytes: int):
    """A beat as it stood on the bus: lane l holds the byte at address ≡ l (mod bus_bytes)."""
    return data.StructLayout({"data": 8 * bus_bytes, "keep": bus_bytes, "last": 1})


class AxiReader(wiring.Component):
    """Reads any number of bytes from any address, with many bursts under way.

    Formula: a command gives the beats that hold its bytes, in order, `keep` marking those bytes, `last` the
    final beat; then one status. A command of 0 bytes, or one that would leave the window, gives its status
    alone. Bytes are not moved to other lanes: commands that are multiples of bus_bytes give full beats.
    Errors: a beat with SLVERR or DECERR is delivered like any other, so that framing never breaks; the status
    has code and address of the command's first one. The bursts behind it are still read: once the status is
    there, nothing of the command is left on the bus.
    Flow: a burst is requested only if the queue has room for all of it, besides everything requested before.
    So `rready` is low only where no burst is owed, or for a cycle when a command that issued nothing comes
    by; never because `o_data` is slow. At most `outstanding` bursts and as many commands are under way.
    Order: one identifier, so responses come in order of request and the queue is a FIFO. With an identifier
    per burst, a memory could answer in any order; that would cost a slot of burst_beats beats per burst
    instead of the shared queue, a write pointer per slot and a done bit, and only pays where the
    interconnect would otherwise hold back data of faster banks.
    Timing: latency 5 from command to `arvalid`, 2 from an R beat to `o_data`, 2 from the last one to
    `o_status`; interval 1 between beats, bursts and commands included. R has a beat in every cycle if
    outstanding · burst_beats and `depth` are the memory's latency in cycles + burst_beats + 8 or more.
    Numerics: none.
    Cuts: every path; `rready` comes from registers through a gate, `keep` through decoders.
    Reset: valid bits, counters, queues. Only together with the bus: it forgets what it has requested.

    Args:
        bus_bytes: bytes of a beat, a power of two from 4 to 128.
        burst_beats: see BurstSplitter.
        outstanding: bursts requested and not yet answered, from 2.
        depth: beats of the queue, from burst_beats; by default outstanding · burst_beats.
        address_bits, length_bits: see WindowCheck.

    Members:
        i_command: transfers.
        window_base, window_bytes: bytes the command may touch, taken with it.
        o_data: beats.
        o_status: one per command, in order.
        m_axi: AR and R.

    Raises ValueError for an argument outside its range.

    """

    def __init__(
        self,
        bus_bytes: int,
        burst_beats: int = 16,
        outstanding: int = 32,
        depth: int | None = None,
        address_bits: int = 64,
        length_bits: int = 32,
    ) -> None:
        if outstanding < 2:
            raise ValueError(f"outstanding is {outstanding}; allowed: from 2")
        self._window = WindowCheck(outstanding, address_bits, length_bits)
        self._splitter = BurstSplitter(bus_bytes, burst_beats, address_bits, length_bits)
        self._statuses = StatusQueue(address_bits, outstanding)
        if depth is None:
            depth = outstanding * burst_beats
        if depth < burst_beats:
            raise ValueError(f"depth is {depth}; allowed: from burst_beats, {burst_beats}")
        self.bus_bytes = bus_bytes
        self.burst_beats = burst_beats
        self.outstanding = outstanding
        self.depth = depth
        super().__init__(
            {
                "i_command": In(stream.Signature(command_layout(address_bits, length_bits))),
                "window_base": In(address_bits),
                "window_bytes": In(address_bits),
                "o_data": Out(stream.Signature(read_beat_layout(bus_bytes))),
                "o_status": Out(stream.Signature(status_layout(address_bits))),
                "m_axi": Out(axi_read(address_bits, bus_bytes)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a command to its first address."""
        return self._window.latency + self._splitter.latency + 1

    @property
    def data_latency(self) -> int:
        """Cycles from a beat on the bus to `o_data`, and from the last one to `o_status`."""
        return BUFFER_LATENCY

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        bus, bus_bytes = self.m_axi, self.bus_bytes
        m.submodules.window = window = self._window
        m.submodules.splitter = splitter = self._splitter
        lane_bits = splitter.lane_bits
        owed_layout = data.StructLayout(
            {
                "address": splitter.address_bits,
                "beats": range(self.burst_beats + 1),
                "last_lane": lane_bits,
                "last": 1,
                "issued": 1,
                "refused": 1,
            }
        )
        beat_layout = data.StructLayout(
            {"data": 8 * bus_bytes, "first_lane": lane_bits, "last_lane": lane_bits, "last": 1}
        )
        m.submodules.owed = owed = fifo.SyncFIFOBuffered(width=owed_layout.size, depth=self.outstanding)
        m.submodules.beats = beats = fifo.SyncFIFOBuffered(
            width=beat_layout.size, depth=max(self.depth, LEAST_DEPTH)
        )
        m.submodules.statuses = statuses = self._statuses

        wiring.connect(m, wiring.flipped(self.i_command), window.i)
        wiring.connect(m, window.o, splitter.i)
        m.d.comb += [
            window.window_base.eq(self.window_base),
            window.window_bytes.eq(self.window_bytes),
            window.status_taken.eq(self.o_status.valid & self.o_status.ready),
        ]

        # Requests, if the queue has room for the whole burst.
        burst = splitter.o.payload
        room = Signal(range(self.depth + 1), init=self.depth)
        requests = Signal()
        issues = Signal()
        pops = Signal()
        m.d.comb += [
            splitter.o.ready.eq(
                owed.w_rdy & (~burst.issued | ((~bus.arvalid | bus.arready) & (room >= burst.beats)))
            ),
            requests.eq(splitter.o.valid & splitter.o.ready),
            issues.eq(requests & burst.issued),
            owed.w_en.eq(requests),
        ]
        entry = data.View(owed_layout, owed.w_data)
        m.d.comb += [getattr(entry, name).eq(getattr(burst, name)) for name in owed_layout.members]
        m.d.sync += room.eq(room - Mux(issues, burst.beats, 0) + pops)
        offer_address(m, bus, "ar", issues, burst.address, burst.beats, lane_bits)

        # Answers: beats of the oldest burst.
        head = data.View(owed_layout, owed.r_data)
        index = Signal(range(self.burst_beats))
        takes = Signal()
        ends = Signal()  # the oldest burst, or command that issued nothing
        m.d.comb += [
            bus.rready.eq(owed.r_rdy & head.issued),
            takes.eq(bus.rvalid & bus.rready),
            ends.eq(owed.r_rdy & Mux(head.issued, takes & (index + 1 == head.beats), 1)),
            owed.r_en.eq(ends),
        ]
        with m.If(takes):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
        beat = data.View(beat_layout, beats.w_data)
        m.d.comb += [
            beats.w_en.eq(takes),
            beat.data.eq(bus.rdata),
            beat.first_lane.eq(Mux(index == 0, head.address[:lane_bits], 0)),
            beat.last_lane.eq(Mux(ends, head.last_lane, bus_bytes - 1)),
            beat.last.eq(ends & head.last),
        ]

        # Status: the first error of the command. A burst stays within burst_beats aligned beats, so that the
        # address of a beat needs no carry beyond them.
        word = head.address[lane_bits:]
        place = word[: splitter.place_bits]
        beat_address = Cat(beat.first_lane, (place + index)[: len(place)], word[len(place) :])
        report = statuses.i.payload
        m.d.comb += [
            statuses.i.valid.eq(takes | ends),
            report.status.code.eq(code_of(head.issued, head.refused, bus.rresp)),
            report.status.address.eq(beat_address),
            report.last.eq(ends & head.last),
        ]
        wiring.connect(m, statuses.o, wiring.flipped(self.o_status))

        # Out.
        kept = data.View(beat_layout, beats.r_data)
        m.d.comb += [
            self.o_data.valid.eq(beats.r_rdy),
            self.o_data.payload.data.eq(kept.data),
            self.o_data.payload.keep.eq(lane_mask(kept.first_lane, kept.last_lane, bus_bytes)),
            self.o_data.payload.last.eq(kept.last),
            beats.r_en.eq(self.o_data.ready),
            pops.eq(self.o_data.valid & self.o_data.ready),
        ]
        return m

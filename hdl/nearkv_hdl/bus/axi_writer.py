"""AXI4 write manager: commands and beats in, statuses out."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_write, offer_address
from nearkv_hdl.bus.burst import BurstSplitter
from nearkv_hdl.bus.transfer import StatusQueue, code_of, command_layout, lane_mask, status_layout
from nearkv_hdl.bus.window import WindowCheck
from nearkv_hdl.stream.skid import SkidBuffer

_BURSTS_AHEAD = 4  # addresses that may be issued before their data


class AxiWriter(wiring.Component):
    """Writes any number of bytes to any address.

    Formula: a command takes the beats that hold its bytes from `i_data`, in order, and writes exactly those
    bytes; then it gives one status. Lane l of a beat is the byte for the address ≡ l (mod bus_bytes); lanes
    outside the command are not written, whatever they hold. A command of 0 bytes takes no beat.
    Errors: a command that would leave the window is refused: nothing is issued, its beats are taken and
    dropped, so that the next command meets its own. After SLVERR or DECERR the command goes on to its end;
    the status has code and address of the first burst that failed (a burst has one response).
    Flow: addresses may run up to 4 bursts ahead of the data, so a slow source holds the interconnect; collect
    a burst before sending it where that matters. At most `outstanding` bursts and as many commands are under
    way; the status comes when all of a command is acknowledged.
    Timing: latency 5 from command to `awvalid`, 1 from a beat on `i_data` to `wvalid`, 2 from the last
    response to `o_status`; interval 1 between beats, bursts and commands included.
    Numerics: none.
    Cuts: every path except `bready` and `i_data.ready`, which come from registers through gates.
    Reset: valid bits, counters, queues. Only together with the bus: it forgets what it has issued.

    Args:
        bus_bytes: bytes of a beat, a power of two from 4 to 128.
        burst_beats: see BurstSplitter.
        outstanding: bursts issued and not yet acknowledged, from 2.
        address_bits, length_bits: see WindowCheck.

    Members:
        i_command: transfers.
        window_base, window_bytes: bytes the command may touch, taken with it.
        i_data: beats.
        o_status: one per command, in order.
        m_axi: AW, W and B.

    Raises ValueError for an argument outside its range.

    """

    def __init__(
        self,
        bus_bytes: int,
        burst_beats: int = 16,
        outstanding: int = 32,
        address_bits: int = 64,
        length_bits: int = 32,
    ) -> None:
        if outstanding < 2:
            raise ValueError(f"outstanding is {outstanding}; allowed: from 2")
        self._window = WindowCheck(outstanding, address_bits, length_bits)
        self._splitter = BurstSplitter(bus_bytes, burst_beats, address_bits, length_bits)
        self._statuses = StatusQueue(address_bits, outstanding)
        self.bus_bytes = bus_bytes
        self.burst_beats = burst_beats
        self.outstanding = outstanding
        self._skid = SkidBuffer(data.StructLayout({"data": 8 * bus_bytes, "strobes": bus_bytes, "last": 1}))
        super().__init__(
            {
                "i_command": In(stream.Signature(command_layout(address_bits, length_bits))),
                "window_base": In(address_bits),
                "window_bytes": In(address_bits),
                "i_data": In(stream.Signature(8 * bus_bytes)),
                "o_status": Out(stream.Signature(status_layout(address_bits))),
                "m_axi": Out(axi_write(address_bits, bus_bytes)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a command to its first address."""
        return self._window.latency + self._splitter.latency + 1

    @property
    def data_latency(self) -> int:
        """Cycles from a beat on `i_data` to the bus."""
        return self._skid.latency

    @property
    def status_latency(self) -> int:
        """Cycles from a command's last response to `o_status`."""
        return self._statuses.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        bus, bus_bytes = self.m_axi, self.bus_bytes
        m.submodules.window = window = self._window
        m.submodules.splitter = splitter = self._splitter
        m.submodules.skid = skid = self._skid
        lane_bits, address_bits = splitter.lane_bits, splitter.address_bits
        run_layout = data.StructLayout(
            {
                "first_lane": lane_bits,
                "last_lane": lane_bits,
                "beats": splitter.beats_bits,
                "issued": 1,
            }
        )
        owed_layout = data.StructLayout({"address": address_bits, "last": 1, "issued": 1, "refused": 1})
        m.submodules.runs = runs = fifo.SyncFIFOBuffered(width=run_layout.size, depth=_BURSTS_AHEAD)
        m.submodules.owed = owed = fifo.SyncFIFOBuffered(width=owed_layout.size, depth=self.outstanding)
        m.submodules.statuses = statuses = self._statuses

        wiring.connect(m, wiring.flipped(self.i_command), window.i)
        wiring.connect(m, window.o, splitter.i)
        m.d.comb += [
            window.window_base.eq(self.window_base),
            window.window_bytes.eq(self.window_bytes),
            window.status_taken.eq(self.o_status.valid & self.o_status.ready),
        ]

        # Addresses; beside them what is to happen to the data, and which response is owed.
        burst = splitter.o.payload
        passes = Signal()
        run = data.View(run_layout, runs.w_data)
        entry = data.View(owed_layout, owed.w_data)
        m.d.comb += [
            splitter.o.ready.eq(runs.w_rdy & owed.w_rdy & (~burst.issued | ~bus.awvalid | bus.awready)),
            passes.eq(splitter.o.valid & splitter.o.ready),
            runs.w_en.eq(passes & (burst.beats != 0)),
            run.first_lane.eq(burst.address[:lane_bits]),
            run.last_lane.eq(burst.last_lane),
            run.beats.eq(burst.beats),
            run.issued.eq(burst.issued),
            owed.w_en.eq(passes),
        ]
        m.d.comb += [getattr(entry, name).eq(getattr(burst, name)) for name in owed_layout.members]
        offer_address(m, bus, "aw", passes & burst.issued, burst.address, burst.beats, lane_bits)

        # Data: beats of the oldest run, to the bus or, if it was refused, nowhere.
        head = data.View(run_layout, runs.r_data)
        index = Signal(splitter.beats_bits)
        is_last = Signal()
        first_lane = Mux(index == 0, head.first_lane, 0)
        last_lane = Mux(is_last, head.last_lane, bus_bytes - 1)
        moves = Signal()
        beat = skid.i.payload
        m.d.comb += [
            is_last.eq(index + 1 == head.beats),
            skid.i.valid.eq(self.i_data.valid & runs.r_rdy & head.issued),
            self.i_data.ready.eq(runs.r_rdy & (skid.i.ready | ~head.issued)),
            moves.eq(self.i_data.valid & self.i_data.ready),
            runs.r_en.eq(moves & is_last),
            beat.data.eq(self.i_data.payload),
            beat.strobes.eq(lane_mask(first_lane, last_lane, bus_bytes)),
            beat.last.eq(is_last),
        ]
        with m.If(moves):
            m.d.sync += index.eq(Mux(is_last, 0, index + 1))
        m.d.comb += [
            bus.wvalid.eq(skid.o.valid),
            bus.wdata.eq(skid.o.payload.data),
            bus.wstrb.eq(skid.o.payload.strobes),
            bus.wlast.eq(skid.o.payload.last),
            skid.o.ready.eq(bus.wready),
        ]

        # Responses, and the first error among those of a command.
        debt = data.View(owed_layout, owed.r_data)
        ends = Signal()
        report = statuses.i.payload
        m.d.comb += [
            bus.bready.eq(owed.r_rdy & debt.issued),
            ends.eq(owed.r_rdy & (bus.bvalid | ~debt.issued)),
            owed.r_en.eq(ends),
            statuses.i.valid.eq(ends),
            report.status.code.eq(code_of(debt.issued, debt.refused, bus.bresp)),
            report.status.address.eq(debt.address),
            report.last.eq(debt.last),
        ]
        wiring.connect(m, statuses.o, wiring.flipped(self.o_status))
        return m

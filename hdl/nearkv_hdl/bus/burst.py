"""From transfers of any address and length to AXI4 bursts."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import MAX_BURST_BEATS, PAGE_BYTES, check_bus_bytes
from nearkv_hdl.bus.window import checked_layout
from nearkv_hdl.spec.formats import is_power_of_two
from nearkv_hdl.stream.skid import SkidBuffer


class BurstSplitter(wiring.Component):
    """Cuts checked commands into bursts.

    Formula: the bursts of a command cover its bytes in rising order, each up to the next multiple of
    burst_beats beats: so no burst is longer, none crosses a page, and all but the first are aligned. A
    refused or empty command gives one item that issues nothing. The address of the first burst is the
    command's own, unaligned, so that no address before it appears.
    Timing: latency 2, interval 1 between bursts, also of different commands. A stalled `o` stops `i`.
    Numerics: unsigned.
    Cuts: every path but i.ready, which a register and the end of a command decide; `o` comes from registers.
    Reset: valid bits.

    Args:
        bus_bytes: bytes of a beat, a power of two from 4 to 128.
        burst_beats: beats of the longest burst, a power of two up to 256 and to a page.
        address_bits: width of addresses, above that of a burst's bytes.
        length_bits: width of a command's byte count.

    Members:
        i: commands.
        o: bursts: address of the first byte; beats (of a refused command: as many as it would have had); the
            last lane of the last beat; whether it is its command's last; whether it is issued; whether the
            command was refused.

    Raises ValueError for an argument outside its range.

    """

    def __init__(self, bus_bytes: int, burst_beats: int, address_bits: int, length_bits: int) -> None:
        check_bus_bytes(bus_bytes)
        most = min(MAX_BURST_BEATS, PAGE_BYTES // bus_bytes)
        if not (is_power_of_two(burst_beats) and burst_beats <= most):
            raise ValueError(f"burst_beats is {burst_beats}; allowed: a power of two up to {most}")
        burst_bytes = bus_bytes * burst_beats
        if address_bits < burst_bytes.bit_length():
            raise ValueError(f"address_bits is {address_bits}; allowed: from {burst_bytes.bit_length()}")
        self.bus_bytes = bus_bytes
        self.burst_beats = burst_beats
        self.address_bits = address_bits
        self.lane_bits = (bus_bytes - 1).bit_length()
        self.place_bits = (burst_beats - 1).bit_length()
        most_beats = ((1 << length_bits) + 2 * bus_bytes) // bus_bytes  # with a lane before and behind
        self.beats_bits = max(most_beats, burst_beats).bit_length()
        self.burst_layout = data.StructLayout(
            {
                "address": address_bits,
                "beats": self.beats_bits,
                "last_lane": self.lane_bits,
                "last": 1,
                "issued": 1,
                "refused": 1,
            }
        )
        self._skid = SkidBuffer(self.burst_layout)
        super().__init__(
            {
                "i": In(stream.Signature(checked_layout(address_bits))),
                "o": Out(stream.Signature(self.burst_layout)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a command to its first burst."""
        return 1 + self._skid.latency

    @property
    def interval(self) -> int:
        """Cycles between two bursts."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = self._skid
        command = Signal(checked_layout(self.address_bits), reset_less=True)
        busy = Signal()
        block_lsb = self.lane_bits + self.place_bits

        # `command.address` moves on to the next block until that is the block of the last byte.
        word = command.address[self.lane_bits :]
        last_word = command.last[self.lane_bits :]
        whole = Signal(len(word) + 1)  # beats up to the last byte
        nothing = Signal()
        ends = Signal()
        m.d.comb += [
            whole.eq((last_word - word)[: len(word)] + 1),
            nothing.eq(command.empty | command.refused),
            ends.eq(nothing | (command.address[block_lsb:] == command.last[block_lsb:])),
        ]
        burst = skid.i.payload
        place = word[: self.place_bits]
        m.d.comb += [
            burst.address.eq(command.address),
            burst.beats.eq(Mux(command.empty, 0, Mux(ends, whole, self.burst_beats - place))),
            burst.last_lane.eq(Mux(ends, command.last[: self.lane_bits], self.bus_bytes - 1)),
            burst.last.eq(ends),
            burst.issued.eq(~nothing),
            burst.refused.eq(command.refused),
            skid.i.valid.eq(busy),
            self.i.ready.eq(~busy | (skid.i.ready & ends)),
        ]
        with m.If(self.i.ready):
            m.d.sync += [busy.eq(self.i.valid), command.eq(self.i.payload)]
        with m.Elif(skid.i.ready):
            m.d.sync += command.address.eq(Cat(Const(0, block_lsb), command.address[block_lsb:] + 1))
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        return m

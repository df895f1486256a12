"""From transfers of any address and length to AXI4 bursts that may be issued."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import MAX_BURST_BEATS, PAGE_BYTES, check_bus_bytes
from nearkv_hdl.bus.transfer import command_layout
from nearkv_hdl.spec.formats import is_power_of_two
from nearkv_hdl.stream.skid import SkidBuffer


class BurstSplitter(wiring.Component):
    """Checks each command against the window, then cuts it into bursts.

    Formula: a command is refused unless window_base <= address and address + bytes <= window_base +
    window_bytes, without overflow. Otherwise its bursts cover its bytes in rising order, each up to the next
    multiple of burst_beats beats: so no burst is longer, none crosses a page, and all but the first are
    aligned. A refused or empty command gives one item that issues nothing. The address of a burst is the
    command's own, unaligned in the first one, so that no address below the window appears.
    Timing: latency 3, interval 1 between bursts, 2 more between commands. A stalled `o` stops `i` after the
    command that waits, and so do `commands` commands whose statuses have not been taken.
    Numerics: unsigned; sums are taken one bit wider than their operands.
    Cuts: every path; `o` comes from registers, see SkidBuffer. Base and size of the window are used in the
    cycle in which the command is taken, and only then.
    Reset: state and valid bits.

    Args:
        bus_bytes: bytes of a beat, a power of two from 4 to 128.
        burst_beats: beats of the longest burst, a power of two up to 256 and to a page.
        commands: commands that may be under way, from 2.
        address_bits: width of addresses, from 6 (small ones are for proofs).
        length_bits: width of a command's byte count.

    Members:
        i: commands.
        window_base, window_bytes: what the command may touch.
        status_taken: a command is over.
        o: bursts: first address; beats (of a refused command: as many as it would have had); the last lane
            of its last beat; whether it is its command's last; whether it is issued; whether refused.

    Raises ValueError for an argument outside its range.

    """

    def __init__(
        self, bus_bytes: int, burst_beats: int, commands: int, address_bits: int = 64, length_bits: int = 32
    ) -> None:
        check_bus_bytes(bus_bytes)
        most = min(MAX_BURST_BEATS, PAGE_BYTES // bus_bytes)
        if not (is_power_of_two(burst_beats) and burst_beats <= most):
            raise ValueError(f"burst_beats is {burst_beats}; allowed: a power of two up to {most}")
        if commands < 2:
            raise ValueError(f"commands is {commands}; allowed: from 2")
        if not 6 <= address_bits <= 64:
            raise ValueError(f"address_bits is {address_bits}; allowed: 6 to 64")
        if not 1 <= length_bits <= address_bits:
            raise ValueError(f"length_bits is {length_bits}; allowed: 1 to address_bits, {address_bits}")
        self.bus_bytes = bus_bytes
        self.burst_beats = burst_beats
        self.commands = commands
        self.address_bits = address_bits
        self.length_bits = length_bits
        self.lane_bits = (bus_bytes - 1).bit_length()
        # Bytes and a lane before them, rounded up to beats.
        self.beats_bits = max((((1 << length_bits) + 2 * bus_bytes) // bus_bytes).bit_length(), 2)
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
                "i": In(stream.Signature(command_layout(address_bits, length_bits))),
                "window_base": In(address_bits),
                "window_bytes": In(address_bits),
                "status_taken": In(1),
                "o": Out(stream.Signature(self.burst_layout)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a command to its first burst: difference, comparison, output register."""
        return 2 + self._skid.latency

    @property
    def interval(self) -> int:
        """Cycles between two bursts of a command."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = self._skid
        command = self.i.payload
        beat_bits = (self.burst_beats - 1).bit_length()

        accepts = Signal()
        under_way = Signal(range(self.commands + 1))
        m.d.comb += accepts.eq(self.i.valid & self.i.ready)
        m.d.sync += under_way.eq(under_way + accepts - self.status_taken)

        # First cycle: differences, each with its borrow or carry as the top bit.
        taken = Signal()
        address = Signal(self.address_bits, reset_less=True)
        offset = Signal(self.address_bits + 1, reset_less=True)
        slack = Signal(self.address_bits + 1, reset_less=True)
        overflow = Signal(reset_less=True)
        empty = Signal(reset_less=True)
        left = Signal(self.beats_bits, reset_less=True)
        last_lane = Signal(self.lane_bits, reset_less=True)
        end = Signal(self.address_bits + 1)
        bytes_and_lane = command.address[: self.lane_bits] + command.bytes
        m.d.comb += end.eq(command.address + command.bytes)
        with m.If(accepts):
            m.d.sync += [
                taken.eq(1),
                address.eq(command.address),
                offset.eq(command.address - self.window_base),
                slack.eq(self.window_bytes - command.bytes),
                overflow.eq(end > 1 << self.address_bits),
                empty.eq(command.bytes == 0),
                left.eq((bytes_and_lane + (self.bus_bytes - 1)) >> self.lane_bits),
                last_lane.eq(bytes_and_lane - 1),
            ]

        # Second cycle: the decision.
        outside = Signal(reset_less=True)
        issuing = Signal()
        with m.If(taken):
            m.d.sync += [
                taken.eq(0),
                issuing.eq(1),
                outside.eq(offset[-1] | slack[-1] | (offset > slack) | overflow),
            ]
        m.d.comb += self.i.ready.eq(~taken & ~issuing & (under_way != self.commands))

        # From the third on: a burst per cycle.
        burst = skid.i.payload
        nothing = Signal()
        fits = Signal()
        room = Signal(range(self.burst_beats + 1))
        place = address[self.lane_bits :][:beat_bits]
        m.d.comb += [
            nothing.eq(outside | empty),
            room.eq(self.burst_beats - place),
            fits.eq(left <= room),
            burst.address.eq(address),
            burst.beats.eq(Mux(fits | nothing, Mux(empty, 0, left), room)),
            burst.last.eq(fits | nothing),
            burst.last_lane.eq(Mux(burst.last, last_lane, self.bus_bytes - 1)),
            burst.issued.eq(~nothing),
            burst.refused.eq(outside & ~empty),
            skid.i.valid.eq(issuing),
        ]
        with m.If(skid.i.valid & skid.i.ready):
            aligned = self.lane_bits + beat_bits
            m.d.sync += [
                left.eq(left - room),
                address.eq(Cat(Const(0, aligned), address[aligned:] + 1)),
            ]
            with m.If(burst.last):
                m.d.sync += issuing.eq(0)
        wiring.connect(m, skid.o, wiring.flipped(self.o))
        return m

"""Reads a job's descriptor list ahead."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.control import ARGUMENTS
from nearkv_hdl.bus.transfer import command_layout
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES
from nearkv_hdl.top.job_check import DESCRIPTOR

CHUNK = 16  # descriptors of one read: a burst of a 64-byte bus
# With 200 cycles of latency the first pass takes 3 cycles a descriptor, a fortieth of the shortest block.
_PLACES = 4 * CHUNK


class DescriptorFetch(wiring.Component):
    """Asks for the descriptors of a job, in list order, and puts their beats together.

    Formula: reads of CHUNK descriptors, the last one of what is left; one is asked for when the queue has
    room for all of it, so that its beats never wait. A descriptor leaves when the read that brought it is
    known to have gone well, so that nobody judges what a failed one delivered.
    Timing: a beat a cycle in; a descriptor leaves at the earliest two cycles after its last beat, interval 1.
    Numerics: none.
    Reset: all; a reset job begins at the first descriptor.

    Args:
        bus_bytes: bytes of a beat, up to those of a descriptor.

    Members:
        arguments: of the job, stable out of reset.
        o_command: reads.
        o_count: descriptors of that read.
        i_data: their beats.
        landed: descriptors of a read that has ended well in this cycle.
        o: descriptors.

    """

    def __init__(self, bus_bytes: int) -> None:
        self.bus_bytes = bus_bytes
        self.parts = DESCRIPTOR_BYTES // bus_bytes
        super().__init__(
            {
                "arguments": In(ARGUMENTS),
                "o_command": Out(stream.Signature(command_layout(64, 32))),
                "o_count": Out(range(CHUNK + 1)),
                "i_data": In(stream.Signature(8 * bus_bytes, always_ready=True)),
                "landed": In(range(CHUNK + 1)),
                "o": Out(stream.Signature(DESCRIPTOR)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a descriptor's last beat to `o`."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two descriptors."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=DESCRIPTOR.size, depth=_PLACES)
        asked = Signal(32)  # descriptors
        left = Signal(32)
        room = Signal(range(_PLACES + 1), init=_PLACES)
        known = Signal(range(_PLACES + 1))
        asks, leaves = Signal(), Signal()
        m.d.comb += [
            left.eq(self.arguments.block_count - asked),
            self.o_count.eq(Mux(left < CHUNK, left, CHUNK)),
            self.o_command.valid.eq((left != 0) & (room >= self.o_count)),
            self.o_command.payload.address.eq(self.arguments.descriptor_address + asked * DESCRIPTOR_BYTES),
            self.o_command.payload.bytes.eq(self.o_count * DESCRIPTOR_BYTES),
            asks.eq(self.o_command.valid & self.o_command.ready),
            leaves.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += [
            room.eq(room - Mux(asks, self.o_count, 0) + leaves),
            known.eq(known + self.landed - leaves),
        ]
        with m.If(asks):
            m.d.sync += asked.eq(asked + self.o_count)

        parts = Signal(DESCRIPTOR.size, reset_less=True)
        part = Signal(range(max(self.parts, 2)))
        whole = Cat(parts, self.i_data.payload)[-DESCRIPTOR.size :]
        m.d.comb += [
            queue.w_en.eq(self.i_data.valid & (part == self.parts - 1)),
            queue.w_data.eq(whole),
            self.o.valid.eq(queue.r_rdy & (known != 0)),
            Value.cast(self.o.payload).eq(queue.r_data),
            queue.r_en.eq(leaves),
        ]
        with m.If(self.i_data.valid):
            m.d.sync += [parts.eq(whole), part.eq(Mux(part == self.parts - 1, 0, part + 1))]
        return m

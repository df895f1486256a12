"""The queue engine's memory port: single reads of a line, single writes of up to 16 bytes."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import Response, axi_read, axi_write, offer_address
from nearkv_hdl.spec.queue_entries import COMPLETION_BYTES, LINE_BYTES

MESSAGE_BYTES = 4  # of an MSI-X message
_LINE_BITS = (LINE_BYTES - 1).bit_length()


class QueueMemory(wiring.Component):
    """AXI4 manager of one read and one write under way.

    Formula: a read gives the line of 64 bytes that holds `read_address`. A write puts 16 bytes at
    `write_address`, or with `message` the lowest 4 of them at `message_address`; a completion goes before a
    message that is asked for in the same cycle.
    Timing: latency 1 from `read` to `arvalid` and from `write` or `message` to `awvalid` and `wvalid`; 0 from
    the response to `read_done` and `write_done`, 1 to `line`.
    Numerics: none.
    Reset: all; only together with the bus.

    Members:
        read, read_address: begin a read; only while none is under way.
        read_done, read_failed: it has ended, and how.
        line: what was read, until the next.
        write, write_address, write_data: a completion, a multiple of 16 as address; held until `write_done`.
        write_done, write_failed: it has ended, and how.
        message, message_address, message_data: a message; held until `message_taken`. Its end is not told.
        idle: nothing is under way.
        m_axi: the port.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "read": In(1),
                "read_address": In(64),
                "read_done": Out(1),
                "read_failed": Out(1),
                "line": Out(8 * LINE_BYTES),
                "write": In(1),
                "write_address": In(64),
                "write_data": In(8 * COMPLETION_BYTES),
                "write_done": Out(1),
                "write_failed": Out(1),
                "message": In(1),
                "message_address": In(64),
                "message_data": In(8 * MESSAGE_BYTES),
                "message_taken": Out(1),
                "idle": Out(1),
                "m_axi": Out(
                    wiring.Signature(
                        {**axi_read(64, LINE_BYTES).members, **axi_write(64, LINE_BYTES).members}
                    )
                ),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bus = self.m_axi

        reading = Signal()
        offer_address(m, bus, "ar", self.read, self.read_address, 1, _LINE_BITS)
        m.d.comb += [
            bus.rready.eq(reading),
            self.read_done.eq(reading & bus.rvalid),
            self.read_failed.eq(bus.rresp != Response.OKAY),
        ]
        with m.If(self.read):
            m.d.sync += reading.eq(1)
        with m.If(self.read_done):
            m.d.sync += [reading.eq(0), self.line.eq(bus.rdata)]

        writing, is_message, begins = Signal(), Signal(), Signal()
        address = Signal(64)
        m.d.comb += [
            begins.eq(~writing & (self.write | self.message)),
            address.eq(Mux(self.write, self.write_address, self.message_address)),
            self.message_taken.eq(~writing & ~self.write & self.message),
            bus.wlast.eq(1),
            bus.bready.eq(writing),
            self.write_done.eq(writing & ~is_message & bus.bvalid),
            self.write_failed.eq(bus.bresp != Response.OKAY),
            self.idle.eq(~reading & ~writing),
        ]
        offer_address(m, bus, "aw", begins, address, 1, _LINE_BITS)
        with m.If(bus.wready):
            m.d.sync += bus.wvalid.eq(0)
        with m.If(begins):
            m.d.sync += [writing.eq(1), is_message.eq(~self.write), bus.wvalid.eq(1)]
            # Every place of a line gets the data, the strobes say which is meant.
            sizes = (
                (self.write, COMPLETION_BYTES, self.write_data),
                (None, MESSAGE_BYTES, self.message_data),
            )
            for condition, nbytes, value in sizes:
                place = address[(nbytes - 1).bit_length() : _LINE_BITS]
                strobes = Cat((place == at).replicate(nbytes) for at in range(LINE_BYTES // nbytes))
                with m.Else() if condition is None else m.If(condition):
                    m.d.sync += [
                        bus.wdata.eq(value.replicate(LINE_BYTES // nbytes)),
                        bus.wstrb.eq(strobes),
                    ]
        with m.If(writing & bus.bvalid):
            m.d.sync += writing.eq(0)
        return m

"""Frames of the serial protocol: receiver with payload memory, sender; see `spec.serial_frames`."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc.catalog import CRC32_ISCSI
from amaranth.lib.wiring import In, Out

from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec import serial_frames as frames

HEAD = data.StructLayout({"kind": 8, "sequence": 8, "length": 16})
_LENGTH = range(frames.MAX_PAYLOAD_BYTES + 1)


class FrameReceiver(wiring.Component):
    """Finds frames in a stream of bytes, checks them and keeps the payload of one.

    Formula: the CRC runs over header, payload and CRC of the frame, and a good frame leaves the residue.
    Timing: `o` is valid two cycles after a good frame's last byte; until it is taken, bytes are ignored. A
    frame whose next byte does not come for `timeout` cycles, whose length is above MAX_PAYLOAD_BYTES or
    whose CRC is wrong is dropped, and the next START is looked for: nothing waits longer than `timeout`.
    Numerics: none.
    Reset: everything but the payload.

    Args:
        timeout: cycles from one byte to the next, from 2.

    Members:
        i: bytes, at least four cycles apart.
        o: head of a good frame; taking it lets the next one in.
        payload_row: byte of the payload to read, while `o` is valid.
        payload: that byte, a cycle later.
        dropped: frames dropped since reset, modulo 2^32.

    Raises ValueError for a timeout below 2.

    """

    def __init__(self, timeout: int) -> None:
        if timeout < 2:
            raise ValueError(f"timeout is {timeout}; allowed: from 2 cycles")
        self.timeout = timeout
        super().__init__(
            {
                "i": In(stream.Signature(8, always_ready=True)),
                "o": Out(stream.Signature(HEAD)),
                "payload_row": In(range(frames.MAX_PAYLOAD_BYTES)),
                "payload": Out(8),
                "dropped": Out(32),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = CRC32_ISCSI(data_width=8).create()
        m.submodules.memory = memory = SyncMemory(8, frames.MAX_PAYLOAD_BYTES, style="block")
        byte, valid = self.i.payload, self.i.valid
        head = Signal(HEAD)
        at = Signal(_LENGTH)  # bytes of the present part that are in
        silent = Signal(range(self.timeout))
        too_late = Signal()  # for the next byte
        in_frame = Signal()
        drop = Signal()
        m.d.comb += [
            too_late.eq(~valid & (silent == self.timeout - 1)),
            crc.data.eq(byte),
            crc.valid.eq(valid & in_frame),
            memory.write_data.eq(byte),
            memory.write_row.eq(at),
            memory.read_row.eq(self.payload_row),
            memory.read_enable.eq(1),
            self.payload.eq(memory.read_data),
            self.o.payload.eq(head),
        ]
        m.d.sync += [silent.eq(Mux(valid | ~in_frame, 0, silent + 1)), self.dropped.eq(self.dropped + drop)]
        with m.If(valid):
            m.d.sync += at.eq(at + 1)

        def give_up():
            m.d.comb += drop.eq(1)
            m.next = "START"

        with m.FSM():
            with m.State("START"):
                m.d.comb += crc.start.eq(1)
                m.d.sync += at.eq(0)
                with m.If(valid & (byte == frames.START)):
                    m.next = "HEADER"
            with m.State("HEADER"):
                m.d.comb += in_frame.eq(1)
                with m.If(valid):
                    m.d.sync += Value.cast(head).eq(Cat(Value.cast(head)[8:], byte))
                    with m.If(at == frames.HEADER_BYTES - 1):
                        m.d.sync += at.eq(0)
                        m.next = "LENGTH"
                with m.Elif(too_late):
                    give_up()
            with m.State("LENGTH"):
                m.next = "PAYLOAD"
                with m.If(head.length > frames.MAX_PAYLOAD_BYTES):
                    give_up()
                with m.Elif(head.length == 0):
                    m.next = "CRC"
            with m.State("PAYLOAD"):
                m.d.comb += [in_frame.eq(1), memory.write_enable.eq(valid)]
                with m.If(valid & (at + 1 == head.length)):
                    m.d.sync += at.eq(0)
                    m.next = "CRC"
                with m.Elif(too_late):
                    give_up()
            with m.State("CRC"):
                m.d.comb += in_frame.eq(1)
                with m.If(valid & (at == frames.CRC_BYTES - 1)):
                    m.next = "CHECK"
                with m.Elif(too_late):
                    give_up()
            with m.State("CHECK"):
                m.next = "WHOLE"
                with m.If(~crc.match_detected):
                    give_up()
            with m.State("WHOLE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "START"
        return m


class FrameSender(wiring.Component):
    """Turns a head and bytes into a frame.

    Formula: START, the head's four bytes, `head.length` bytes of payload, CRC32C.
    Timing: four cycles a byte, or as slow as `o`; `i` is taken when the last byte has been.
    Numerics: none.
    Reset: idle.

    Members:
        i: head of the frame to send; stays until it is taken.
        payload_row: byte of the payload that is wanted.
        payload: that byte, up to two cycles later, for as long as it is wanted.
        o: bytes.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "i": In(stream.Signature(HEAD)),
                "payload_row": Out(range(frames.MAX_PAYLOAD_BYTES)),
                "payload": In(8),
                "o": Out(stream.Signature(8)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.crc = crc = CRC32_ISCSI(data_width=8).create()
        head = Value.cast(self.i.payload)
        at = Signal(_LENGTH)
        byte = Signal(8)
        m.d.comb += [self.payload_row.eq(at), crc.data.eq(byte), self.o.payload.eq(byte)]

        def send(value, last, following):
            """Offer bytes until the one at `last`; the value settles in two cycles before it is offered."""
            settle = Signal(2, name=f"settle_{following.lower()}")
            m.d.comb += byte.eq(value)
            with m.If(settle != 2):
                m.d.sync += settle.eq(settle + 1)
            with m.Else():
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += [settle.eq(0), at.eq(at + 1)]
                    with m.If(last):
                        m.d.sync += at.eq(0)
                        m.next = following
            return self.o.valid & self.o.ready

        with m.FSM():
            with m.State("START"):
                m.d.comb += crc.start.eq(1)
                with m.If(self.i.valid):
                    m.next = "MARK"
            with m.State("MARK"):
                send(frames.START, 1, "HEADER")
            with m.State("HEADER"):
                header = Array(head.word_select(index, 8) for index in range(frames.HEADER_BYTES))
                following = at == frames.HEADER_BYTES - 1
                m.d.comb += crc.valid.eq(send(header[at[:2]], following, "LENGTH"))
            with m.State("LENGTH"):
                m.next = "PAYLOAD"
                with m.If(self.i.payload.length == 0):
                    m.next = "CRC"
            with m.State("PAYLOAD"):
                m.d.comb += crc.valid.eq(send(self.payload, at + 1 == self.i.payload.length, "CRC"))
            with m.State("CRC"):
                check = Array(crc.crc.word_select(index, 8) for index in range(frames.CRC_BYTES))
                send(check[at[:2]], at == frames.CRC_BYTES - 1, "TAKEN")
            with m.State("TAKEN"):
                m.d.comb += self.i.ready.eq(1)
                m.next = "START"
        return m

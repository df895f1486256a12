"""A memory behind AXI that a test can fill and read."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import Response
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.stream.credit import CreditBuffer


class AxiMemory(wiring.Component):
    """A memory behind both AXI directions, with a way in and out for a test.

    Bursts are answered in order, a beat in every cycle, one behind the other; so are those of a test.

    Args:
        read, write: the manager's buses; `write` may be None.
        nbytes: its size, a power of two; addresses count modulo that.
        latency_cycles: within it, from an address to its data and from the last beat written to the response.

    Members:
        i_load: rows to store, while the bus is idle.
        i_dump, o_dump: rows to read, while the bus is idle, and what they hold.
        fails, bad_row: whether, and where, it answers with SLVERR.

    """

    def __init__(self, read: Any, write: Any, nbytes: int, latency_cycles: int) -> None:
        self.bus_read, self.bus_write = read, write
        self.width = len(read.rdata)
        self.rows = 8 * nbytes // self.width
        self.latency_cycles = latency_cycles
        super().__init__(
            {
                "i_load": In(stream.Signature(data.StructLayout({"row": 24, "data": self.width}))),
                "i_dump": In(stream.Signature(24)),
                "o_dump": Out(stream.Signature(self.width)),
                "fails": In(1),
                "bad_row": In(24),
            }
        )

    def elaborate(self, _platform: Any) -> Module:
        """Build it."""
        m = Module()
        m.submodules.rows = rows = SyncMemory(self.width, self.rows, parts=self.width // 8)
        self._read(m, rows)
        load = self.i_load
        if self.bus_write is not None:
            self._write(m, rows)
            return m
        m.d.comb += [
            load.ready.eq(1),
            rows.write_row.eq(load.payload.row),
            rows.write_data.eq(load.payload.data),
            rows.write_enable.eq(load.valid.replicate(self.width // 8)),
        ]
        return m

    def _read(self, m: Module, rows: SyncMemory) -> None:
        """One beat after another of the oldest request; the test's reads go the same way."""
        read, lane_bits = self.bus_read, (self.width // 8 - 1).bit_length()
        request = data.StructLayout({"row": range(self.rows), "beats": 8})
        m.submodules.requests = requests = fifo.SyncFIFOBuffered(width=request.size, depth=16)
        answer = data.StructLayout({"data": self.width, "last": 1, "dump": 1, "fails": 1})
        m.submodules.answers = answers = CreditBuffer(answer, self.latency_cycles)
        head, asked = data.View(request, requests.r_data), data.View(request, requests.w_data)
        index = Signal(8)
        is_dump, goes, ends = Signal(), Signal(), Signal()
        row = Signal(range(self.rows))
        m.d.comb += [
            read.arready.eq(requests.w_rdy),
            requests.w_en.eq(read.arvalid),
            asked.row.eq(read.araddr >> lane_bits),
            asked.beats.eq(read.arlen),
            is_dump.eq(~requests.r_rdy),
            answers.i_valid.eq(requests.r_rdy | self.i_dump.valid),
            goes.eq(answers.i_valid & answers.i_ready),
            ends.eq(index == head.beats),
            requests.r_en.eq(goes & ends & ~is_dump),
            self.i_dump.ready.eq(answers.i_ready & is_dump),
            row.eq(Mux(is_dump, self.i_dump.payload, head.row + index)),
            rows.read_row.eq(row),
            rows.read_enable.eq(1),
        ]
        with m.If(goes & ~is_dump):
            m.d.sync += index.eq(Mux(ends, 0, index + 1))
        notes = Cat(ends, is_dump, (row == self.bad_row) & self.fails & ~is_dump)
        word = Signal(answer)
        noted = Signal(3)
        m.d.sync += noted.eq(notes)
        m.d.comb += [
            Value.cast(answers.result).eq(
                delayed(m, "rank", Cat(rows.read_data, noted), self.latency_cycles - 1)
            ),
            Value.cast(word).eq(answers.o.payload),
            read.rvalid.eq(answers.o.valid & ~word.dump),
            read.rdata.eq(word.data),
            read.rlast.eq(word.last),
            read.rresp.eq(Mux(word.fails, Response.SLVERR, Response.OKAY)),
            self.o_dump.valid.eq(answers.o.valid & word.dump),
            self.o_dump.payload.eq(word.data),
            answers.o.ready.eq(Mux(word.dump, self.o_dump.ready, read.rready)),
        ]

    def _write(self, m: Module, rows: SyncMemory) -> None:
        """Bursts queue, and so do their responses."""
        write, lane_bits = self.bus_write, (self.width // 8 - 1).bit_length()
        m.submodules.starts = starts = fifo.SyncFIFOBuffered(width=24, depth=8)
        m.submodules.responses = responses = CreditBuffer(1, self.latency_cycles)
        index, failed = Signal(8), Signal()
        busy, writes, fault = Signal(), Signal(), Signal()
        place = starts.r_data + index
        m.d.comb += [
            write.awready.eq(starts.w_rdy),
            starts.w_en.eq(write.awvalid),
            starts.w_data.eq(write.awaddr[lane_bits:][: (self.rows - 1).bit_length()]),
            busy.eq(starts.r_rdy),
            write.wready.eq(busy & responses.i_ready),
            writes.eq(write.wvalid & write.wready),
            fault.eq((place == self.bad_row) & self.fails),
            starts.r_en.eq(writes & write.wlast),
            responses.i_valid.eq(writes & write.wlast),
            responses.result.eq(delayed(m, "response", failed | fault, self.latency_cycles)),
            write.bvalid.eq(responses.o.valid),
            write.bresp.eq(Mux(responses.o.payload, Response.SLVERR, Response.OKAY)),
            responses.o.ready.eq(write.bready),
            self.i_load.ready.eq(~busy),
            rows.write_row.eq(Mux(busy, place, self.i_load.payload.row)),
            rows.write_data.eq(Mux(busy, write.wdata, self.i_load.payload.data)),
            rows.write_enable.eq(
                Mux(busy, Mux(writes, write.wstrb, 0), self.i_load.valid.replicate(self.width // 8))
            ),
        ]
        with m.If(writes):
            m.d.sync += [
                index.eq(Mux(write.wlast, 0, index + 1)),
                failed.eq(~write.wlast & (failed | fault)),
            ]


def delayed(m: Module, name: str, value: Value, cycles: int) -> Value:
    """The value so many cycles ago, from 3: a ring in memory, which compiles faster than registers."""
    places = cycles - 1  # the memory answers a cycle later, with what it held before this cycle's write
    m.submodules[name] = ring = SyncMemory(len(value), places)
    place = Signal(range(places), name=f"{name}_place")
    m.d.sync += place.eq(Mux(place == places - 1, 0, place + 1))
    m.d.comb += [
        ring.write_row.eq(place),
        ring.write_data.eq(value),
        ring.write_enable.eq(1),
        ring.read_row.eq(place),
        ring.read_enable.eq(1),
    ]
    return ring.read_data

"""The migration engine on memories of its own, as a component whose ports are all streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import Response
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.migrate.migration_engine import MigrationEngine
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import BLOCK_ENTRY_BYTES
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_hdl.stream.credit import CreditBuffer

LAYOUT = PIM_LAYOUTS["tiny_pim"]
BLOCKS = 64  # of each memory
SLOT_BLOCKS = 128  # of the table, in two slots
DEVICE_BYTES = 8  # of its bus
IMAGE_BYTES = BLOCKS * LAYOUT.block_bytes
TABLE_BYTES = 2 * SLOT_BLOCKS * BLOCK_ENTRY_BYTES
DEVICE_BASE, FAR_BASE = 4 * IMAGE_BYTES, 8 * IMAGE_BYTES
SHAPES = MoveShapes(LAYOUT, slot_bits=1, block_bits=7, address_bits=32)
MEMORY_LATENCY = 20  # cycles
PATIENCE_CYCLES = 8
BAD_ROW = 5  # where a memory fails
# Compute is busy in so many cycles of each period of 4; which memories fail at BAD_ROW. Taking them, the
# engine forgets the block table. `reset` resets it and the memories' buses, not what they hold.
CONDITIONS = data.StructLayout({"busy": 3, "device": 1, "far": 1, "reset": 1})


class AxiMemory(wiring.Component):
    """A memory behind both AXI directions, with a way in and out for a test.

    Args:
        read, write: the manager's buses; `write` may be None.
        nbytes: its size; addresses count modulo that.

    Members:
        i_load: rows to store, while the bus is idle.
        i_dump, o_dump: rows to read, while the bus is idle, and what they hold.
        fails: BAD_ROW answers with SLVERR.

    """

    def __init__(self, read: Any, write: Any, nbytes: int) -> None:
        self.bus_read, self.bus_write = read, write
        self.width = len(read.rdata)
        self.rows = 8 * nbytes // self.width
        super().__init__(
            {
                "i_load": In(stream.Signature(data.StructLayout({"row": 24, "data": self.width}))),
                "i_dump": In(stream.Signature(24)),
                "o_dump": Out(stream.Signature(self.width)),
                "fails": In(1),
            }
        )

    def elaborate(self, _platform: Any) -> Module:
        """Build it."""
        m = Module()
        m.submodules.rows = rows = SyncMemory(self.width, self.rows, parts=self.width // 8)
        lane_bits = (self.width // 8 - 1).bit_length()
        read, write = self.bus_read, self.bus_write

        # Reads: one beat after another of the oldest request; the test's reads go the same way.
        request = data.StructLayout({"row": range(self.rows), "beats": 8})
        m.submodules.requests = requests = fifo.SyncFIFOBuffered(width=request.size, depth=16)
        answer = data.StructLayout({"data": self.width, "last": 1, "dump": 1, "fails": 1})
        m.submodules.answers = answers = CreditBuffer(answer, MEMORY_LATENCY)
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
        notes = Cat(ends, is_dump, (row == BAD_ROW) & self.fails & ~is_dump)
        word = Signal(answer)
        noted = Signal(3)
        m.d.sync += noted.eq(notes)
        stage = Cat(rows.read_data, noted)
        for rank in range(MEMORY_LATENCY - 1):
            register = Signal(answer.size, name=f"rank{rank}")
            m.d.sync += register.eq(stage)
            stage = register
        m.d.comb += [
            Value.cast(answers.result).eq(stage),
            Value.cast(word).eq(answers.o.payload),
            read.rvalid.eq(answers.o.valid & ~word.dump),
            read.rdata.eq(word.data),
            read.rlast.eq(word.last),
            read.rresp.eq(Mux(word.fails, Response.SLVERR, Response.OKAY)),
            self.o_dump.valid.eq(answers.o.valid & word.dump),
            self.o_dump.payload.eq(word.data),
            answers.o.ready.eq(Mux(word.dump, self.o_dump.ready, read.rready)),
        ]
        if write is None:
            m.d.comb += [rows.write_data.eq(self.i_load.payload.data), self.i_load.ready.eq(1)]
            m.d.comb += [rows.write_row.eq(self.i_load.payload.row)]
            m.d.comb += rows.write_enable.eq(self.i_load.valid.replicate(self.width // 8))
            return m

        # Writes: bursts queue.
        m.submodules.starts = starts = fifo.SyncFIFOBuffered(width=24, depth=8)
        m.submodules.responses = responses = fifo.SyncFIFOBuffered(width=1, depth=8)
        index, failed = Signal(8), Signal()
        busy, writes, fault = Signal(), Signal(), Signal()
        place = starts.r_data + index
        m.d.comb += [
            write.awready.eq(starts.w_rdy),
            starts.w_en.eq(write.awvalid),
            starts.w_data.eq(write.awaddr[lane_bits:][: (self.rows - 1).bit_length()]),
            busy.eq(starts.r_rdy),
            write.wready.eq(busy & responses.w_rdy),
            writes.eq(write.wvalid & write.wready),
            fault.eq((place == BAD_ROW) & self.fails),
            starts.r_en.eq(writes & write.wlast),
            responses.w_en.eq(writes & write.wlast),
            responses.w_data.eq(failed | fault),
            write.bvalid.eq(responses.r_rdy),
            write.bresp.eq(Mux(responses.r_data, Response.SLVERR, Response.OKAY)),
            responses.r_en.eq(write.bready),
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
        return m


class EngineBench(wiring.Component):
    """The engine with a table, and a device and a far memory for each path.

    Args:
        far_bytes: widths of the paths' far buses.

    Members:
        i_conditions: see CONDITIONS.
        i_descriptor, o_completion, o_invalid, o_jobs: the engine's.
        i_load_NAME, i_dump_NAME, o_dump_NAME: of every memory: table, device0, far0, device1, …
        o_device_write, o_far_write, o_far_burst: beats and bursts written on the first path.
        o_last_far_write: beats written to the far memory on the last path.
        o_table_read: reads of the table.

    """

    def __init__(self, far_bytes: Sequence[int]) -> None:
        self.engine = engine = MigrationEngine(
            SHAPES, DEVICE_BYTES, far_bytes, patience_cycles=PATIENCE_CYCLES
        )
        self.memories = {"table": AxiMemory(engine.m_axi_table, None, TABLE_BYTES)}
        for path in range(len(far_bytes)):
            for side in ("device", "far"):
                read, write = (getattr(engine, f"m_axi_{side}_{way}_{path}") for way in ("read", "write"))
                memory = AxiMemory(read, write, IMAGE_BYTES)
                self.memories[f"{side}{path}"] = memory
        members: dict[str, Any] = {}
        for name, memory in self.memories.items():
            for port in ("i_load", "i_dump", "o_dump"):
                members[f"{port}_{name}"] = memory.signature.members[port]
        super().__init__(
            {
                "i_conditions": In(stream.Signature(CONDITIONS)),
                "i_descriptor": In(stream.Signature(SHAPES.descriptor)),
                "o_completion": Out(stream.Signature(SHAPES.completion)),
                **members,
                "o_far_write": Out(1),
                "o_far_burst": Out(1),
                "o_device_write": Out(1),
                "o_last_far_write": Out(1),
                "o_table_read": Out(1),
                "o_invalid": Out(1),
                "o_jobs": Out(16),
            }
        )

    def elaborate(self, _platform: Any) -> Module:
        """Build it."""
        m = Module()
        reset = Signal()
        engine = self.engine
        m.submodules.engine = ResetInserter(reset)(engine)
        wiring.connect(m, wiring.flipped(self.i_descriptor), engine.i_descriptor)
        wiring.connect(m, engine.o_completion, wiring.flipped(self.o_completion))
        for name, memory in self.memories.items():
            m.submodules[name] = ResetInserter(reset)(memory)
            for port in ("i_load", "i_dump"):
                wiring.connect(m, wiring.flipped(getattr(self, f"{port}_{name}")), getattr(memory, port))
            wiring.connect(m, memory.o_dump, wiring.flipped(getattr(self, f"o_dump_{name}")))
        conditions, phase = Signal(CONDITIONS), Signal(2)
        m.d.comb += self.i_conditions.ready.eq(1)
        m.d.comb += reset.eq(self.i_conditions.valid & self.i_conditions.payload.reset)
        m.d.sync += phase.eq(phase + 1)
        with m.If(self.i_conditions.valid):
            m.d.sync += conditions.eq(self.i_conditions.payload)
        for name, memory in self.memories.items():
            if name != "table":
                m.d.comb += memory.fails.eq(getattr(conditions, name[:-1]))
        far, device, last = engine.m_axi_far_write_0, engine.m_axi_device_write_0, len(engine._paths) - 1
        wide = getattr(engine, f"m_axi_far_write_{last}")
        m.d.comb += [
            engine.table_base.eq(0),
            engine.table_window.eq(TABLE_BYTES),
            engine.i_forget.eq(self.i_conditions.valid),
            engine.device_base.eq(DEVICE_BASE),
            engine.device_window.eq(IMAGE_BYTES),
            engine.far_base.eq(FAR_BASE),
            engine.far_window.eq(IMAGE_BYTES),
            engine.i_compute_busy.eq(phase < conditions.busy),
            self.o_far_write.eq(far.wvalid & far.wready),
            self.o_far_burst.eq(far.awvalid & far.awready),
            self.o_device_write.eq(device.wvalid & device.wready),
            self.o_last_far_write.eq(wide.wvalid & wide.wready),
            self.o_table_read.eq(engine.m_axi_table.arvalid & engine.m_axi_table.arready),
            self.o_invalid.eq(engine.o_invalid),
            self.o_jobs.eq(engine.o_jobs),
        ]
        return m

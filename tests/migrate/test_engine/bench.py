"""The migration engine on memories of its own, as a component whose ports are all streams."""

from __future__ import annotations

import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from amaranth.hdl import Module, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.migrate.migration_engine import MigrationEngine
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import BLOCK_ENTRY_BYTES, PimLayout
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS

AxiMemory = runpy.run_path(str(Path(__file__).with_name("axi_memory.py")))["AxiMemory"]
SLOT_BLOCKS = 128  # of the table, in two slots
TABLE_BYTES = 2 * SLOT_BLOCKS * BLOCK_ENTRY_BYTES
PATIENCE_CYCLES = 8
# Compute is busy in so many cycles of each period of 4; which memories fail, in which row. Taking them, the
# engine forgets the block table. `reset` resets it and the memories' buses, not what they hold.
CONDITIONS = data.StructLayout({"busy": 3, "device": 1, "far": 1, "bad_row": 24, "reset": 1})


@dataclass(frozen=True)
class Setup:
    """An engine and its memories.

    Attributes:
        name: of the device.
        block_tokens: of its blocks, if not the device's own.
        device_bytes: of its bus.
        far_bytes: widths of the paths' far buses.
        blocks: of each memory, a power of two.
        address_bits: of all buses.
        device_base, far_base: where the memories begin, multiples of their size.
        latency_cycles: of the memories.
        hidden_cycles: the engine's memory_latency_cycles.

    """

    name: str = "tiny_pim"
    block_tokens: int | None = None
    device_bytes: int = 8
    far_bytes: tuple[int, ...] = (8,)
    blocks: int = 64
    address_bits: int = 32
    device_base: int = 4 << 16
    far_base: int = 8 << 16
    latency_cycles: int = 20
    hidden_cycles: int = 100

    @property
    def layout(self) -> PimLayout:
        """Of the device."""
        layout = PIM_LAYOUTS[self.name]
        return replace(layout, block_tokens=self.block_tokens or layout.block_tokens)

    @property
    def image_bytes(self) -> int:
        """Of each memory."""
        return self.blocks * self.layout.block_bytes

    @property
    def shapes(self) -> MoveShapes:
        """Of the engine's streams."""
        return MoveShapes(self.layout, slot_bits=1, block_bits=7, address_bits=self.address_bits)


class EngineBench(wiring.Component):
    """The engine with a table, and a device and a far memory for each path.

    Args:
        setup: what is built.

    Members:
        i_conditions: see CONDITIONS.
        i_descriptor, o_completion, o_invalid, o_jobs: the engine's.
        i_load_NAME, i_dump_NAME, o_dump_NAME: of every memory: table, device0, far0, device1, …
        o_device_read, o_device_write, o_far_read, o_far_write: beats on the first path.
        o_far_burst: bursts written there.
        o_last_far_write: beats written to the far memory on the last path.
        o_table_read: reads of the table.

    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.engine = engine = MigrationEngine(
            setup.shapes,
            setup.device_bytes,
            setup.far_bytes,
            patience_cycles=PATIENCE_CYCLES,
            memory_latency_cycles=setup.hidden_cycles,
        )
        latency = setup.latency_cycles
        self.memories = {"table": AxiMemory(engine.m_axi_table, None, TABLE_BYTES, latency)}
        for path in range(len(setup.far_bytes)):
            for side in ("device", "far"):
                read, write = (getattr(engine, f"m_axi_{side}_{way}_{path}") for way in ("read", "write"))
                self.memories[f"{side}{path}"] = AxiMemory(read, write, setup.image_bytes, latency)
        members: dict[str, Any] = {}
        for name, memory in self.memories.items():
            for port in ("i_load", "i_dump", "o_dump"):
                members[f"{port}_{name}"] = memory.signature.members[port]
        super().__init__(
            {
                "i_conditions": In(stream.Signature(CONDITIONS)),
                "i_descriptor": In(stream.Signature(setup.shapes.descriptor)),
                "o_completion": Out(stream.Signature(setup.shapes.completion)),
                **members,
                "o_device_read": Out(1),
                "o_device_write": Out(1),
                "o_far_read": Out(1),
                "o_far_write": Out(1),
                "o_far_burst": Out(1),
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
        engine, setup = self.engine, self.setup
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
                m.d.comb += [
                    memory.fails.eq(getattr(conditions, name[:-1])),
                    memory.bad_row.eq(conditions.bad_row),
                ]
        for side in ("device", "far"):
            read, write = (getattr(engine, f"m_axi_{side}_{way}_0") for way in ("read", "write"))
            m.d.comb += [
                getattr(self, f"o_{side}_read").eq(read.rvalid & read.rready),
                getattr(self, f"o_{side}_write").eq(write.wvalid & write.wready),
            ]
        first = engine.m_axi_far_write_0
        last = getattr(engine, f"m_axi_far_write_{len(setup.far_bytes) - 1}")
        m.d.comb += [
            engine.table_base.eq(0),
            engine.table_window.eq(TABLE_BYTES),
            engine.i_forget.eq(self.i_conditions.valid),
            engine.device_base.eq(setup.device_base),
            engine.device_window.eq(setup.image_bytes),
            engine.far_base.eq(setup.far_base),
            engine.far_window.eq(setup.image_bytes),
            engine.i_compute_busy.eq(phase < conditions.busy),
            self.o_far_burst.eq(first.awvalid & first.awready),
            self.o_last_far_write.eq(last.wvalid & last.wready),
            self.o_table_read.eq(engine.m_axi_table.arvalid & engine.m_axi_table.arready),
            self.o_invalid.eq(engine.o_invalid),
            self.o_jobs.eq(engine.o_jobs),
        ]
        return m

"""A host on the AXI4-Lite bus of the control port, for its benches."""

from __future__ import annotations

from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.register_map import WORD_BYTES, Register
from nearkv_sim.benches.axi_harness import random_pauses
from nearkv_sim.benches.harness import CLOCK_NS, parameters

WORD_MASK = 0xFFFF_FFFF


class ControlBench:
    """The control port with a host on its bus."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.design = get_design(parameters()["design"])
        self.host = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axi_control"), dut.clk, dut.rst)
        self.channels = {
            "aw": self.host.write_if.aw_channel,
            "w": self.host.write_if.w_channel,
            "b": self.host.write_if.b_channel,
            "ar": self.host.read_if.ar_channel,
            "r": self.host.read_if.r_channel,
        }

    async def start(self) -> None:
        """Start the clock, reset, all inputs 0."""
        for name in ("finish", "fault_valid", "fault", "streamed_crc32c", "written_crc32c"):
            getattr(self.dut, name).value = 0
        for name in ("tokens", "streamed_bytes", "written_bytes", "input_stalls", "output_stalls"):
            getattr(self.dut, f"add_{name}").value = 0
        self.dut.rst.value = 1
        Clock(self.dut.clk, CLOCK_NS, unit="ns").start()
        await ClockCycles(self.dut.clk, 3)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)

    def pause(self, share: float, *channels: str) -> None:
        """Let channels (all, if none is named) pause at random."""
        for name in channels or self.channels:
            self.channels[name].set_pause_generator(random_pauses(share))

    async def read(self, register: Register) -> int:
        """All words, the lowest first."""
        words = [
            await self.host.read_dword(register.offset + WORD_BYTES * index)
            for index in range(register.words)
        ]
        return sum(word << 32 * index for index, word in enumerate(words))

    async def write(self, register: Register, value: int) -> None:
        """All words, the lowest first."""
        for index in range(register.words):
            await self.host.write_dword(register.offset + WORD_BYTES * index, value >> 32 * index & WORD_MASK)

    async def fields(self, register: Register) -> dict[str, int]:
        """Fields that are not 0."""
        return {name: value for name, value in register.unpack(await self.read(register)).items() if value}

    async def pulse(self, **values: int) -> None:
        """Inputs for one cycle, 0 after it."""
        for name, value in values.items():
            getattr(self.dut, name).value = value
        await RisingEdge(self.dut.clk)
        for name in values:
            getattr(self.dut, name).value = 0
        await RisingEdge(self.dut.clk)

    async def start_job(self) -> bool:
        """Write ap_start; whether `start` pulses, once, within ten cycles."""
        pulses = cocotb.start_soon(self._count_starts(10))
        await self.write(reg.CTRL, reg.CTRL.mask("ap_start"))
        count: int = await pulses
        assert count <= 1
        return count == 1

    async def _count_starts(self, cycles: int) -> int:
        count = 0
        for _ in range(cycles):
            await ReadOnly()
            count += int(self.dut.start.value)
            await RisingEdge(self.dut.clk)
        return count

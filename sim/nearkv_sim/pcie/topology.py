"""Host, switch, card and drive, connected and enumerated.

```
host ── root link ── switch ─┬─ card's link ── card ── s_axi_control, m_axi_gmem of the kernel
                             └─ drive's link ── drive
```
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, Event
from cocotbext.axi import AxiLiteBus, AxiLiteMaster
from cocotbext.pcie.core import Device, Switch
from cocotbext.pcie.core.port import SimPort
from cocotbext.pcie.core.tlp import Tlp

from nearkv_sim.benches.kernel_harness import BusSignals
from nearkv_sim.card.card import CONTROL_BAR, MEMORY_BASE
from nearkv_sim.card.memory import CHUNK_BYTES, DeviceMemory
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.packaging.kernel import CLOCK, CONTROL, INTERRUPT, RESET, memory_ports
from nearkv_sim.pcie.drive import Drive
from nearkv_sim.pcie.faults import Fault, FaultPlan
from nearkv_sim.pcie.frames import Traffic, WireConfig, payload_bytes, record
from nearkv_sim.pcie.host import Host
from nearkv_sim.pcie.memory_port import MemoryPort
from nearkv_sim.pcie.ports import LinkPort
from nearkv_sim.pcie.requester import Parties
from nearkv_sim.pcie.roles import Injector
from nearkv_sim.pcie.shell import Card
from nearkv_sim.pcie.tlp_log import CARD_PORT, FROM_DEVICE, TO_DEVICE, TlpLog

RESET_CYCLES = 4
# Receive buffers (PH, PD, NPH, NPD, CPLH, CPLD): never the bottleneck of one card, so that time depends on
# the link alone, as in `hardware.pcie.PcieLink` without credits.
DEVICE_CREDITS = (64, 1024, 64, 64, 0, 0)
SWITCH_CREDITS = (64, 1024, 64, 64, 127, 2032)


class Topology:
    """Everything on the bus.

    Formula: the switch cuts through: the root link adds latency and no serialisation, the device's link has
    the wire of `config`. Half of `path_latency_ps` is spent on each, so that host and card are as far apart
    as on one link of `hardware.pcie.PcieLink`.

    Args:
        dut: the kernel.
        config: the card's link.
        clock_ps: period of the kernel's clock.
        bus_bytes: of its memory ports.
        key_masters: as of its design: each has a port, and all the same memory.
        quiet_cycles: more than the kernel ever computes without its memory.

    Attributes:
        host, card, drive: the parties.
        root, to_card, from_card, to_drive, from_drive: ends of links; `root` is the root complex's.
        injector: of faults.
        parties: shared state.
        stores: of the host, as far as they have left for the card.

    """

    def __init__(
        self,
        dut: Any,
        config: PcieLinkConfig,
        clock_ps: int,
        bus_bytes: int,
        key_masters: int,
        quiet_cycles: int,
    ) -> None:
        self._dut, self._clock_ps, self._quiet_cycles = dut, clock_ps, quiet_cycles
        self.parties = Parties(config, {}, Counter())
        self._log: TlpLog | None = None
        self.stores = Traffic()
        self._since_ps = 0
        self._clk = getattr(dut, CLOCK)
        self._rst = getattr(dut, RESET)
        buses = [BusSignals(dut, name) for name in memory_ports(key_masters)]
        memory = DeviceMemory(MEMORY_BASE, CHUNK_BYTES)
        self.port = MemoryPort(buses, self._clk, clock_ps, bus_bytes, memory)
        control = AxiLiteMaster(
            AxiLiteBus.from_prefix(dut, CONTROL), self._clk, self._rst, reset_active_level=False
        )
        self.host = Host(self.parties, CONTROL_BAR)
        self.card = Card(self.parties, control, self.port, getattr(dut, INTERRUPT))
        self.drive = Drive(self.parties)
        self._connect(config)
        self.injector = Injector(self.card, "", self.parties)

    def _connect(self, config: PcieLinkConfig) -> None:
        interval_ps = int(config.dllp_interval_symbols * config.lanes * config.byte_time_ps)
        near_ps = config.path_latency_ps // 2
        far = WireConfig(config.byte_time_ps, config.path_latency_ps - near_ps, interval_ps)
        near = WireConfig(config.byte_time_ps / 1024, near_ps, interval_ps)
        switch = Switch()
        self.root, below = LinkPort(near, SWITCH_CREDITS), LinkPort(near, SWITCH_CREDITS)
        root_bridge = self.host.make_port()
        _park(root_bridge.downstream_port)
        root_bridge.set_downstream_port(self.root)
        _park(switch.upstream_bridge.upstream_port)
        switch.set_upstream_port(below)
        self.root.connect(below)
        ends = []
        for function in (self.card, self.drive):
            outer, inner = LinkPort(far, SWITCH_CREDITS), LinkPort(far, DEVICE_CREDITS)
            bridge = switch.make_port()
            _park(bridge.downstream_port)
            bridge.set_downstream_port(outer)
            device = Device(function)
            _park(device.upstream_port)
            device.set_port(inner)
            outer.connect(inner)
            ends += [outer, inner]
        self.to_card, self.from_card, self.to_drive, self.from_drive = ends
        self.ports = {
            "root down": self.root,
            "root up": below,
            "card down": self.to_card,
            "card up": self.from_card,
            "drive down": self.to_drive,
            "drive up": self.from_drive,
        }

    async def start(self) -> None:
        """Clock, reset, enumeration, interrupts; then the log and the fault plan may begin."""
        self._rst.value = 0
        high_ps = self._clock_ps // 2
        Clock(self._clk, self._clock_ps, unit="ps", period_high=high_ps).start()
        await ClockCycles(self._clk, RESET_CYCLES)
        self._rst.value = 1
        await self.host.enumerate()
        for function in (self.card, self.drive):
            found = self.host.find_device(function.pcie_id)
            await found.enable_device()
            await found.set_master()
        await self.host.find_device(self.card.pcie_id).alloc_irq_vectors(1, 1)
        self.injector = Injector(self.card, str(self.drive.pcie_id), self.parties)
        for name, port in self.ports.items():
            link, way = name.split()
            port.observer = partial(self._observe, link, FROM_DEVICE if way == "up" else TO_DEVICE)
        self.to_card.judge = partial(self._judge, upstream=False)
        self.from_card.judge = partial(self._judge, upstream=True)

    @property
    def counts(self) -> dict[str, int]:
        """Free credits, tags in use, and all that is held somewhere; the same whenever nothing goes on."""
        parts = {name: port.counts() for name, port in self.ports.items()}
        parts |= {"host": self.host.counts(), "card": self.card.counts(), "drive": self.drive.counts()}
        return {f"{part} {what}": value for part, held in parts.items() for what, value in held.items()}

    @property
    def events(self) -> dict[str, int]:
        """What has gone wrong since `restart`, on all links together."""
        total = Counter(self.parties.events)
        for port in self.ports.values():
            total.update(port.events)
        return dict(total)

    def quiet(self) -> bool:
        """Whether nothing more will come without the host's doing."""
        held = [value for name, value in self.counts.items() if "credits" not in name]
        recovering = any(port.recovering for port in self.ports.values())
        computing = self.card.running and self.port.idle_cycles() < self._quiet_cycles
        return not any(held) and not recovering and not computing

    @property
    def quiet_ps(self) -> int:
        """How long nothing must have happened for that."""
        return self._quiet_cycles * self._clock_ps

    async def restart(self, memory: DeviceMemory, plan: FaultPlan, log: TlpLog | None) -> None:
        """Reset kernel and dead links, exchange the memory, and count, log and judge from here on."""
        for port in self.ports.values():
            if not port.up:
                port.restart()
        self._rst.value = 0
        await ClockCycles(self._clk, RESET_CYCLES)
        self._rst.value = 1
        for port in self.ports.values():
            await port.fc_state[0].initialized.wait()
        self.card.restart(memory)
        self.host.restart()
        self.injector.restart(plan)
        self.parties.events.clear()
        self.stores = Traffic()
        for port in self.ports.values():
            port.clear()
        self._log = log

    def set_epoch(self, since_ps: int) -> None:
        """Let the log count time from there."""
        self._since_ps = since_ps

    def _observe(self, link: str, direction: str, tlp: Tlp, status: str) -> None:
        if self._log is not None:
            self._log.write(record(tlp, link, direction, status, self._since_ps))
        of_host = tlp.has_data() and not tlp.is_completion() and tlp.requester_id == self.host.pcie_id
        if of_host and (link, direction) == (CARD_PORT, TO_DEVICE) and status != "replay":
            self.stores += Traffic(1, payload_bytes(tlp), tlp.get_wire_size())

    def _judge(self, tlp: Tlp, upstream: bool) -> Fault | None:
        return self.injector.judge(tlp, upstream)


def _park(port: SimPort) -> None:
    """Keep a port that cocotbext-pcie made and that is replaced from sending to nobody."""

    async def wait_for_ever(_: Any) -> None:
        await Event().wait()

    port.handle_tx = wait_for_ever

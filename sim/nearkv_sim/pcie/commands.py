"""What the transport can ask of the simulation: one method per request, in simulated time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from cocotb.triggers import First, Timer

from nearkv.device.errors import DataError, DeviceError, DeviceTimeout, TransferError
from nearkv.device.transport import TransportCounters
from nearkv_hdl.spec.register_map import WORD_BYTES
from nearkv_sim.card.card import (
    CONTROL_BAR,
    DMA_DOORBELL,
    HOST_BUFFER,
    HOST_COMPLETION,
    HOST_LIST,
    MEMORY_BASE,
)
from nearkv_sim.card.memory import DeviceMemory
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.hardware.pcie_tlp import padded_bytes, request_overhead_bytes
from nearkv_sim.pcie.doorbells import Doorbell, Operation, Outcome
from nearkv_sim.pcie.drive import DOORBELL_BAR, DRIVE_COMPLETION
from nearkv_sim.pcie.faults import FaultPlan
from nearkv_sim.pcie.frames import Traffic, now_ps
from nearkv_sim.pcie.requester import COMPLETION_TIMEOUT_PS, ReadFailed
from nearkv_sim.pcie.shell import MEMORY
from nearkv_sim.pcie.simulation import Answer, State
from nearkv_sim.pcie.tlp_log import TlpLog
from nearkv_sim.pcie.topology import Topology

# More than any transfer of a test takes, its completion timeouts included.
COMMAND_TIMEOUT_PS = 100 * COMPLETION_TIMEOUT_PS
_SEQUENCES = 1 << 24


async def start_commands(dut: Any, config: PcieLinkConfig, kernel: Mapping[str, int]) -> Commands:
    """Build the topology around a kernel, and let it run.

    Args:
        dut: the kernel, as cocotb sees it.
        config: the card's link.
        kernel: of its design, from `simulation.kernel_options`.

    """
    for name in ("cocotb.pcie", f"cocotb.{dut._name}"):
        logging.getLogger(name).setLevel(logging.ERROR)  # a line per TLP and burst takes longer than both
    topology = Topology(dut, config, **kernel)
    await topology.start()
    return Commands(topology)


class Commands:
    """Performs requests on a topology, one after the other; time passes only while one is performed.

    Where nothing is under way any more, a wait skips to its deadline without simulating the time until then.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._host, self._card, self._drive = topology.host, topology.card, topology.drive
        self._epoch_ps = now_ps()
        self._sequence = 0
        self._log: TlpLog | None = None
        self._posted = Traffic()

    @property
    def state(self) -> State:
        """Time since power-on, and the fields of `TransportCounters`."""
        down, up = self._topology.to_card, self._topology.from_card
        # Stores count from the moment they are posted, though time has not let them reach the link yet.
        under_way = self._posted - self._topology.stores
        counters = TransportCounters(
            payload_bytes_to_device=down.traffic.payload_bytes + under_way.payload_bytes,
            payload_bytes_from_device=up.traffic.payload_bytes,
            wire_bytes_to_device=down.traffic.wire_bytes + under_way.wire_bytes,
            wire_bytes_from_device=up.traffic.wire_bytes,
            tlps_to_device=down.traffic.tlps + under_way.tlps,
            tlps_from_device=up.traffic.tlps,
            device_cycles=self._card.device_cycles,
            jobs=self._card.jobs,
        )
        return now_ps() - self._epoch_ps, astuple(counters)

    async def perform(self, name: str, arguments: Sequence[Any]) -> Answer:
        """Perform a request by name, and answer whatever becomes of it."""
        failure, result = None, None
        try:
            result = await getattr(self, name)(*arguments)
        except (DeviceError, ValueError) as error:
            failure = type(error).__name__, str(error)
        return Answer(failure, result, self.state)

    async def power_on(self, memory_bytes: int, plan: dict[str, Any], log: str | None) -> None:
        """Begin anew: empty memories, a kernel after reset, time 0."""
        await self.power_off()
        self._log = None if log is None else TlpLog(Path(log))
        memory = DeviceMemory(MEMORY_BASE, memory_bytes)
        await self._topology.restart(memory, FaultPlan.from_dict(plan), self._log)
        self._posted = Traffic()
        self._set_epoch(now_ps())

    async def power_off(self) -> None:
        """Finish what is under way, and the log."""
        await self._settle()
        if self._log is not None:
            self._log.close()

    async def read_register(self, offset: int) -> int:
        """Load a word."""
        try:
            return int.from_bytes(await self._host.load(CONTROL_BAR + offset, WORD_BYTES), "little")
        except ReadFailed as error:
            raise TransferError(f"register at {offset:#x}: {error}") from None

    async def write_register(self, offset: int, value: int) -> None:
        """Store a word; posted."""
        self._store(CONTROL_BAR + offset, value.to_bytes(WORD_BYTES, "little"))

    async def write_memory(self, address: int, data: bytes) -> None:
        """Let the card read host memory."""
        self._host.memory.write(HOST_BUFFER, data)
        await self._dma(Operation.LOAD, address, HOST_BUFFER, len(data))

    async def read_memory(self, address: int, nbytes: int) -> bytes:
        """Let the card write host memory."""
        await self._dma(Operation.STORE, address, HOST_BUFFER, nbytes)
        return bytes(self._host.memory.read(HOST_BUFFER, nbytes))

    async def read_gather(self, addresses: bytes, row_bytes: int) -> bytes:
        """Let the card read an address list, then write the rows."""
        rows = len(addresses) // 8
        self._host.memory.write(HOST_LIST, addresses)
        await self._dma(Operation.GATHER, HOST_LIST, HOST_BUFFER, row_bytes, rows)
        return bytes(self._host.memory.read(HOST_BUFFER, rows * row_bytes))

    async def wait_interrupt(self, timeout_ps: int) -> None:
        """Wait for an interrupt's handler to start."""
        pending, deadline_ps = self._host.interrupts_ps, now_ps() + timeout_ps
        if await self._until(lambda: bool(pending), deadline_ps):
            if pending[0] <= deadline_ps:
                await self._sleep_until(pending.popleft())
                return
            await self._sleep_until(deadline_ps)
        raise DeviceTimeout(f"transport pcie: no interrupt within {timeout_ps} ps")

    async def fill_drive(self, offset: int, data: bytes) -> None:
        """Put bytes into the namespace, past the link."""
        self._drive.namespace.write(offset, data)

    async def drive_content(self, offset: int, nbytes: int) -> bytes:
        """Bytes of the namespace, past the link."""
        return bytes(self._drive.namespace.read(offset, nbytes))

    async def drive_to_card(self, offset: int, address: int, nbytes: int) -> None:
        """Let the drive write a part of its namespace into the card's memory."""
        await self._drive_command(Operation.STORE, offset, address, nbytes)

    async def card_to_drive(self, address: int, offset: int, nbytes: int) -> None:
        """Let the drive read the card's memory into its namespace."""
        await self._drive_command(Operation.LOAD, offset, address, nbytes)

    async def link_report(self) -> tuple[dict[str, int], dict[str, int], int]:
        """Counts once the links are quiet, events, and faults whose TLP never came."""
        await self._settle()
        return self._topology.counts, self._topology.events, len(self._topology.injector.pending())

    async def inject(self, plan: dict[str, Any]) -> None:
        """Let a plan begin now."""
        self._topology.injector.restart(FaultPlan.from_dict(plan))

    async def flush_log(self) -> None:
        """Let readers of the log see every line so far."""
        if self._log is not None:
            self._log.flush()

    def _store(self, address: int, data: bytes) -> None:
        """Post a store to the card."""
        wire_bytes = request_overhead_bytes(address) + padded_bytes(address, len(data))
        self._posted += Traffic(1, len(data), wire_bytes)
        self._host.store(address, data)

    async def _dma(self, operation: Operation, device: int, bus: int, nbytes: int, rows: int = 0) -> None:
        self._sequence = (self._sequence + 1) % _SEQUENCES
        doorbell = Doorbell(operation, self._sequence, device, bus, nbytes, rows)
        poisoned = self._topology.events.get("poisoned write at host", 0)
        self._store(DMA_DOORBELL, doorbell.pack())
        await self._completed(doorbell, HOST_COMPLETION, f"DMA {operation.name.lower()} of {nbytes} bytes")
        if self._topology.events.get("poisoned write at host", 0) > poisoned:
            raise TransferError(f"DMA {operation.name.lower()} of {nbytes} bytes: poisoned data")

    async def _drive_command(self, operation: Operation, offset: int, address: int, nbytes: int) -> None:
        self._sequence = (self._sequence + 1) % _SEQUENCES
        peer = self._card.bar_address(MEMORY) + address - MEMORY_BASE
        doorbell = Doorbell(operation, self._sequence, offset, peer, nbytes)
        self._host.store(self._drive.bar_address(DOORBELL_BAR), doorbell.pack())
        await self._completed(doorbell, DRIVE_COMPLETION, f"drive command for {nbytes} bytes")

    async def _completed(self, doorbell: Doorbell, address: int, what: str) -> None:
        """Poll the completion word."""

        def word() -> int:
            return int.from_bytes(self._host.memory.read(address, 4), "little")

        def answered() -> bool:
            return word() >> 8 == doorbell.sequence

        if not await self._until(answered, now_ps() + COMMAND_TIMEOUT_PS):
            raise TransferError(f"{what}: no completion within {COMMAND_TIMEOUT_PS} ps")
        match Outcome(word() & 0xFF):
            case Outcome.LINK_ERROR:
                raise TransferError(f"{what}: a read failed on the link")
            case Outcome.UNWRITTEN:
                raise DataError(f"{what}: memory that was never written")
            case Outcome.DONE:
                pass

    async def _until(self, happened: Callable[[], bool], deadline_ps: int) -> bool:
        """Let time pass until something has happened, or until the deadline; returns which."""
        while not happened():
            left_ps = deadline_ps - now_ps()
            if left_ps <= 0:
                return False
            if self._topology.quiet():
                self._set_epoch(self._epoch_ps - left_ps)
                return False
            self._host.changed.clear()
            await First(self._host.changed.wait(), Timer(min(left_ps, self._topology.quiet_ps), "ps"))
        return True

    async def _sleep_until(self, at_ps: int) -> None:
        if (wait_ps := at_ps - now_ps()) > 0:
            await Timer(wait_ps, "ps")

    async def _settle(self) -> None:
        """Wait until every TLP has been acknowledged and every credit returned."""
        longest_ps = max(port.replay_ps for port in self._topology.ports.values())
        for _ in range(COMMAND_TIMEOUT_PS // longest_ps):
            await Timer(longest_ps, "ps")
            if self._topology.quiet():
                return
        raise DeviceError(f"transport pcie: the links are not quiet: {self._topology.counts}")

    def _set_epoch(self, epoch_ps: int) -> None:
        self._epoch_ps = epoch_ps
        self._topology.set_epoch(epoch_ps)

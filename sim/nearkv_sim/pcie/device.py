"""What card and drive have in common: they master the bus, run commands and answer reads."""

from __future__ import annotations

from abc import ABC, abstractmethod

import cocotb
from cocotb.queue import Queue
from cocotbext.pcie.core.endpoint import Endpoint
from cocotbext.pcie.core.tlp import Tlp, TlpType

from nearkv_sim.card.memory import UnwrittenMemory
from nearkv_sim.pcie.doorbells import Doorbell, Outcome
from nearkv_sim.pcie.requester import Parties, ReadFailed, Requester, write_span


class BusDevice(Endpoint, ABC):  # type: ignore[misc]  # of an untyped package
    """A function that masters the bus, runs commands one after the other, and answers reads."""

    def __init__(self, parties: Parties, completion_address: int) -> None:
        super().__init__()
        self.tag_count = min(256, parties.config.tags)
        self._parties = parties
        self._requester = Requester(self, parties)
        self._completion_address = completion_address
        self._commands: Queue[Doorbell] = Queue()
        self._busy = False
        for kind in (TlpType.MEM_READ, TlpType.MEM_READ_64):
            self.register_rx_tlp_handler(kind, self._take_read)
        for kind in (TlpType.MEM_WRITE, TlpType.MEM_WRITE_64):
            self.register_rx_tlp_handler(kind, self._take_write)
        cocotb.start_soon(self._run_commands())

    def bar_address(self, bar: int) -> int:
        """Where a BAR was laid; a 64-bit one takes two."""
        wide = self.bar[bar] & 4
        return int((self.bar[bar] & ~0xF) | (self.bar[bar + 1] << 32 if wide else 0))

    def counts(self) -> dict[str, int]:
        """Tags in use, and commands not finished."""
        return {"tags": self._requester.in_flight(), "commands": self._commands.qsize() + self._busy}

    async def handle_tlp(self, tlp: Tlp) -> None:
        """Take a TLP, unless it is a completion that nobody waits for."""
        if not (tlp.is_completion() and self._requester.refused(tlp)):
            await super().handle_tlp(tlp)

    async def _take_write(self, tlp: Tlp) -> None:
        if tlp.ep:
            self._parties.events["poisoned write at device"] += 1
            return
        bar, offset = self.match_bar(tlp.address)
        self._written(bar, offset + tlp.get_first_be_offset(), write_span(tlp)[1])

    async def _take_read(self, tlp: Tlp) -> None:
        bar, offset = self.match_bar(tlp.address)
        self._read(bar, offset + tlp.get_first_be_offset(), tlp)

    @abstractmethod
    def _written(self, bar: int, offset: int, data: bytes) -> None:
        """Take a write to a BAR."""

    def _read(self, bar: int, offset: int, tlp: Tlp) -> None:
        """Nothing can be read, unless a device says otherwise."""
        self._parties.events[f"read of BAR {bar} at {offset:#x} refused"] += 1
        cocotb.start_soon(self.send(Tlp.create_ur_completion_for_tlp(tlp, self.pcie_id)))

    @abstractmethod
    async def _execute(self, command: Doorbell) -> None:
        """Carry a command out."""

    async def _run_commands(self) -> None:
        while True:
            command = await self._commands.get()
            self._busy = True
            try:
                await self._execute(command)
                outcome = Outcome.DONE
            except ReadFailed:
                outcome = Outcome.LINK_ERROR
            except UnwrittenMemory:
                outcome = Outcome.UNWRITTEN
            await self._requester.write(self._completion_address, command.completion(outcome))
            self._busy = False

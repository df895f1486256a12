"""The drive beside the card."""

from __future__ import annotations

from cocotbext.axi.sparse_memory import SparseMemory

from nearkv_sim.card.card import HOST_COMPLETION
from nearkv_sim.pcie.device import BusDevice
from nearkv_sim.pcie.doorbells import Doorbell, Operation
from nearkv_sim.pcie.requester import Parties

DOORBELL_BAR, DOORBELL_BAR_BYTES = 0, 1 << 14
NAMESPACE_BYTES = 1 << 40
DRIVE_COMPLETION = HOST_COMPLETION + 64


class Drive(BusDevice):
    """An NVMe drive as its peers see it: it reads and writes their memory, at addresses it is given.

    Formula: a command is one store to BAR 0 instead of an entry of a submission queue, its completion one
    word instead of an entry of a completion queue. What was read of the namespace is written to the peer;
    then a read of its last bytes makes sure that all of it has arrived before the host is told.
    Timing: none of flash and controller.

    Attributes:
        namespace: bytes, by offset.

    """

    def __init__(self, parties: Parties) -> None:
        super().__init__(parties, DRIVE_COMPLETION)
        self.configure_bar(DOORBELL_BAR, DOORBELL_BAR_BYTES)
        self.namespace = SparseMemory(NAMESPACE_BYTES)

    def _written(self, bar: int, offset: int, data: bytes) -> None:
        assert (bar, offset) == (DOORBELL_BAR, 0), "only the doorbell is written"
        self._commands.put_nowait(Doorbell.unpack(data))

    async def _execute(self, command: Doorbell) -> None:
        address, nbytes = command.bus_address, command.nbytes
        if command.operation is Operation.LOAD:
            self.namespace.write(command.device_address, await self._requester.read(address, nbytes))
        else:
            await self._requester.write(address, self.namespace.read(command.device_address, nbytes))
            await self._requester.read(address + nbytes - 1, 1)

"""`PcieTransport`: the driver's way to a card whose every TLP is simulated, and whose kernel is RTL."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nearkv.device.errors import DeviceError
from nearkv.device.transport import Bytes, Int64, Transport, TransportCounters
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.card.card import MEMORY_BASE
from nearkv_sim.card.memory import DeviceMemory
from nearkv_sim.card.register_file import RegisterFile
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.pcie.doorbells import MEMORY_BAR_BYTES
from nearkv_sim.pcie.faults import FaultPlan
from nearkv_sim.pcie.simulation import Simulation
from nearkv_sim.pcie.simulator import Simulator


@dataclass(frozen=True)
class LinkReport:
    """State of all links once they are quiet.

    Attributes:
        counts: free credits, tags in use, TLPs held, by place; whatever happened, they are as they were.
        events: replays, NAKs, timeouts and the like since the transport was opened, by name.
        pending_faults: faults of the plan whose TLP has not come.

    """

    counts: dict[str, int]
    events: dict[str, int]
    pending_faults: int


class PcieTransport(Transport):
    """A card behind a switch, with a drive beside it, on a simulated PCIe hierarchy.

    Every call is one request to a simulator, by default in a child process, in which time passes only
    meanwhile: equal calls take equal times. The kernel is the exported RTL; host, switch, XRT's shell and
    drive are models.

    Args:
        design: the build.
        config: the card's link.
        memory_bytes: size of the card's memory.
        tlp_log: file for every TLP, as in `tlp_log`; None for none.
        faults: what happens to which TLP; None for nothing.
        simulator: one that runs already, for this design and link, and stays its owner's to close: a
            `Simulator`, or in a bench a `BridgedSimulation`; None starts one.

    Raises:
        ValueError: memory_bytes outside 1 to 64 GiB, a simulator of another design or link.
        DeviceError: no simulator.

    """

    def __init__(
        self,
        design: DesignConfig,
        config: PcieLinkConfig,
        memory_bytes: int,
        *,
        tlp_log: Path | None = None,
        faults: FaultPlan | None = None,
        simulator: Simulation | None = None,
    ) -> None:
        if not 1 <= memory_bytes <= MEMORY_BAR_BYTES:
            raise ValueError(f"memory_bytes is {memory_bytes}; allowed: from 1 to {MEMORY_BAR_BYTES}")
        if simulator is not None and (simulator.design, simulator.config) != (design, config):
            raise ValueError(f"simulator is of design {simulator.design.name}; allowed: same design and link")
        self._design = design
        self._space = DeviceMemory(MEMORY_BASE, memory_bytes)  # only its bounds
        self._closed = False
        self._tlp_log = tlp_log
        self._simulator: Simulation = simulator or Simulator(design, config)
        self._finalizer = weakref.finalize(self, self._simulator.close) if simulator is None else None
        log = None if tlp_log is None else str(tlp_log.resolve())
        try:
            if tlp_log is not None:
                tlp_log.touch()  # here, so that what is wrong with it is an OSError of this process
            self._simulator.call("power_on", memory_bytes, (faults or FaultPlan()).to_dict(), log)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """Transport name."""
        return "pcie"

    @property
    def design(self) -> DesignConfig:
        """Build of the kernel."""
        return self._design

    @property
    def memory_base(self) -> int:
        """First address."""
        return self._space.base

    @property
    def memory_bytes(self) -> int:
        """Size of the memory."""
        return self._space.end - self._space.base

    @property
    def now_ps(self) -> int:
        """Simulated time at the host."""
        return self._simulator.state[0]

    @property
    def counters(self) -> TransportCounters:
        """Totals of the card's link; `device_cycles` run from a job's start to its interrupt."""
        return TransportCounters(*self._simulator.state[1])

    @property
    def simulator_pid(self) -> int | None:
        """Process of the simulator."""
        return self._simulator.pid

    def read_register(self, offset: int) -> int:
        """Load a word."""
        RegisterFile.check_word(offset)
        return int(self._call("read_register", offset))

    def write_register(self, offset: int, value: int) -> None:
        """Store a word; posted, so that the host's time does not move."""
        RegisterFile.check_word(offset, value)
        self._call("write_register", offset, value)

    def write_memory(self, address: int, data: Bytes) -> None:
        """Let the card read host memory."""
        if data.dtype != np.uint8 or data.ndim != 1:
            raise ValueError(f"data is {data.dtype} with shape {data.shape}; allowed: uint8 [nbytes]")
        self._space.check_range(address, len(data))
        self._call("write_memory", address, data.tobytes())

    def read_memory(self, address: int, nbytes: int) -> Bytes:
        """Let the card write host memory."""
        self._space.check_range(address, nbytes)
        return _array(self._call("read_memory", address, nbytes))

    def read_gather(self, addresses: Int64, row_bytes: int) -> Bytes:
        """Let the card read an address list, then write the rows one behind the other."""
        self._space.check_rows(addresses, row_bytes)
        listed = np.ascontiguousarray(addresses, "<i8").tobytes()
        return _array(self._call("read_gather", listed, row_bytes)).reshape(len(addresses), row_bytes)

    def wait_interrupt(self, timeout_ps: int) -> None:
        """Let simulated time pass until the next interrupt or the deadline."""
        if timeout_ps < 1:
            raise ValueError(f"timeout_ps is {timeout_ps}; allowed: from 1")
        self._call("wait_interrupt", timeout_ps)

    def fill_drive(self, offset: int, data: Bytes) -> None:
        """Put bytes into the drive's namespace, past the link and in no time."""
        self._call("fill_drive", offset, data.tobytes())

    def drive_content(self, offset: int, nbytes: int) -> Bytes:
        """Bytes of the drive's namespace, past the link and in no time; 0 where none were written."""
        return _array(self._call("drive_content", offset, nbytes))

    def drive_to_card(self, offset: int, address: int, nbytes: int) -> None:
        """Let the drive write a part of its namespace into the card's memory, peer to peer."""
        self._space.check_range(address, nbytes)
        self._call("drive_to_card", offset, address, nbytes)

    def card_to_drive(self, address: int, offset: int, nbytes: int) -> None:
        """Let the drive read the card's memory into its namespace, peer to peer."""
        self._space.check_range(address, nbytes)
        self._call("card_to_drive", address, offset, nbytes)

    def link_report(self) -> LinkReport:
        """Let time pass until all links are quiet; credits, tags and buffers then, and what went wrong."""
        return LinkReport(*self._call("link_report"))

    def inject(self, faults: FaultPlan) -> None:
        """Begin another plan, whose indices count from here; what is left of the one before is dropped."""
        self._call("inject", faults.to_dict())

    def flush_log(self) -> None:
        """Let readers of the TLP log see every line so far."""
        self._call("flush_log")

    def close(self) -> None:
        """Refuse all further use; end the simulator, if it is this transport's own, else only the log."""
        if self._closed:
            return
        self._closed = True
        if self._finalizer is not None:
            self._finalizer()
        elif self._simulator.alive:
            self._simulator.call("power_off")

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._closed:
            raise DeviceError("transport pcie is closed")
        return self._simulator.call(name, *arguments)


def _array(content: bytes) -> Bytes:
    return np.frombuffer(content, np.uint8).copy()

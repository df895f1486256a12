"""A simulation around its caller: blocking code within a cocotb bench."""

from __future__ import annotations

import os
import threading
from typing import Any

from cocotb.task import resume

from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.pcie.commands import Commands, start_commands
from nearkv_sim.pcie.simulation import Answer, State, kernel_options


class BridgedSimulation:
    """What a `PcieTransport` asks, in a function that a cocotb test has put into a thread by `bridge`.

    Each request becomes a coroutine of the simulation and blocks its thread until it has ended; between
    requests simulated time stands still, as with a `Simulator`, and the requests are performed by the same
    code.

    Args:
        commands: of the topology around the bench's kernel.
        design: the kernel's.
        config: the card's link.

    Attributes:
        state, pid: see `Simulation`.

    """

    def __init__(self, commands: Commands, design: DesignConfig, config: PcieLinkConfig) -> None:
        self.design, self.config = design, config
        self.state: State = commands.state
        self.pid: int | None = os.getpid()
        self._perform = resume(commands.perform)
        self._simulators_thread = threading.get_ident()

    @classmethod
    async def start(cls, dut: Any, design: DesignConfig, config: PcieLinkConfig) -> BridgedSimulation:
        """Build host, switch, drive and card around a kernel; once in a cocotb test.

        Args:
            dut: the kernel of `design`, as cocotb sees it.
            design: the build.
            config: the card's link.

        """
        return cls(await start_commands(dut, config, kernel_options(design)), design, config)

    @property
    def alive(self) -> bool:
        """As long as its bench."""
        return True

    def call(self, name: str, *arguments: Any) -> Any:
        """Perform a request; raises what it raises, RuntimeError outside a thread of `bridge`."""
        if threading.get_ident() == self._simulators_thread:
            raise RuntimeError(
                f"request {name!r} is made in the simulator's own thread, which it would block; allowed: in a"
                " function that the test awaits through cocotb.task.bridge"
            )
        answer: Answer = self._perform(name, arguments)
        self.state = answer.state
        return answer.get()

    def close(self) -> None:
        """Nothing: it ends with its bench."""

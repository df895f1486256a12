"""The simulator as a child process: started, asked, and ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.pcie.channel import SOCKET_NAME, Channel
from nearkv_sim.pcie.simulation import Answer, State, kernel_options

BENCH = "nearkv_sim.pcie.bench"
SIMULATOR = "verilator"
START_SECONDS = 900.0  # a cold build of a wide kernel takes minutes
CALL_SECONDS = 600.0
END_SECONDS = 20.0
_RUN_SECONDS = 7 * 24 * 3600.0  # calls have deadlines of their own
_POLL_SECONDS = 0.2
_LOG_LINES = 15


class Simulator:
    """A running simulation of host, switch, drive and card around the kernel of a design.

    The simulator runs in a process of its own, which it shares with no other user, and asks back over a
    socket; a call blocks until it has answered. It ends with `close`, with this process, or with the first
    call that fails for another reason than an error of the device.

    Args:
        design: whose kernel is compiled, or taken from the cache.
        config: the card's link.
        call_seconds: wall time that one call may take.

    Attributes:
        state: time and counters of the last answer.
        pid: of the simulator, once it runs.

    Raises:
        DeviceError: cocotb, cocotbext-pcie or the simulator is missing, the build or the start fails.

    """

    def __init__(
        self, design: DesignConfig, config: PcieLinkConfig, call_seconds: float = CALL_SECONDS
    ) -> None:
        if find_spec("cocotbext") is None or find_spec("cocotbext.pcie") is None:
            raise DeviceError("transport pcie needs the package cocotbext-pcie")
        self.design, self.config = design, config
        self._call_seconds = call_seconds
        self.state: State = (0, ())
        self._failure: str | None = None
        self.pid: int | None = None
        self._channel: Channel | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="nearkv-pcie-", ignore_cleanup_errors=True)
        self._thread = threading.Thread(target=self._run, name="nearkv-pcie", daemon=True)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether it can still be asked."""
        return self._channel is not None

    def call(self, name: str, *arguments: Any) -> Any:
        """Let the simulation perform a request of `commands.Commands`.

        Raises what the request raised, DeviceTimeout if there is no answer within `call_seconds`, DeviceError
        if the simulator has ended; then it is closed.
        """
        if self._channel is None:
            raise DeviceError(f"transport pcie: {self._failure or 'the simulator is closed'}")
        try:
            self._channel.send((name, arguments))
            answer: Answer = self._channel.receive(self._call_seconds)
        except TimeoutError:
            self._abandon(f"no answer to {name} within {self._call_seconds:g} s")
            raise DeviceTimeout(f"transport pcie: {self._failure}") from None
        except (OSError, EOFError):
            self._abandon(f"the simulator ended during {name}")
            raise DeviceError(f"transport pcie: {self._failure}") from None
        except BaseException:  # Ctrl-C: question and answer no longer match
            self._abandon(f"{name} was interrupted")
            raise
        self.state = answer.state
        return answer.get()

    def close(self) -> None:
        """End the simulation and everything it started; twice is allowed."""
        if self._channel is not None:
            self._channel.close()  # the bench ends when its transport has gone
            self._channel = None
            self._thread.join(END_SECONDS)
        self._kill()
        self._folder.cleanup()

    def _start(self) -> None:
        folder = Path(self._folder.name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            try:
                listener.bind(str(folder / SOCKET_NAME))
            except OSError as error:
                raise DeviceError(f"transport pcie: no socket in {folder}: {error}") from None
            listener.listen(1)
            listener.settimeout(_POLL_SECONDS)
            self._thread.start()
            deadline = time.monotonic() + START_SECONDS
            while True:
                with contextlib.suppress(TimeoutError):
                    connected, _ = listener.accept()
                    break
                if not self._thread.is_alive():
                    raise DeviceError(f"transport pcie: {self._failure}")
                if time.monotonic() > deadline:
                    raise DeviceTimeout(f"transport pcie: no simulation after {START_SECONDS:g} s")
        channel = Channel(connected)
        self.pid = channel.receive(START_SECONDS)
        self._channel = channel

    def _run(self) -> None:
        """Body of the thread: build and run, until the bench ends."""
        # Imported late: a look at the transport's options needs neither Amaranth nor cocotb.
        from nearkv_hdl.top.kernel import Kernel
        from nearkv_sim.cosim.runner import run_bench

        try:
            run_bench(
                Kernel(self.design),
                BENCH,
                name=f"pcie-{self.design.name}",
                simulator=SIMULATOR,
                seed=1,
                parameters={
                    "link": asdict(self.config),
                    "kernel": kernel_options(self.design),
                },
                timeout_seconds=_RUN_SECONDS,
                output_dir=Path(self._folder.name),
                orphan_dir=Path(self._folder.name),
            )
        except Exception as error:  # of whatever kind: the transport's user has to be told, in its thread
            self._failure = str(error) or type(error).__name__

    def _abandon(self, reason: str) -> None:
        """Kill a simulation that can no longer be asked, and keep the last lines of its log."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._kill()
        log = Path(self._folder.name) / "simulation.log"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        self._failure = "\n".join([reason, *lines[-_LOG_LINES:]])

    def _kill(self) -> None:
        """End the simulator, whose parent collects it and ends, too; before it runs, its build."""
        deadline = time.monotonic() + END_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(ProcessLookupError):
                if self.pid is not None:
                    os.kill(self.pid, signal.SIGKILL)
                else:
                    for child in self._children():
                        os.killpg(child, signal.SIGKILL)  # the runner gives each child a session
            self._thread.join(_POLL_SECONDS)

    def _children(self) -> list[int]:
        """Processes that the thread has started, where Linux tells."""
        listed = Path(f"/proc/self/task/{self._thread.native_id}/children")
        return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []

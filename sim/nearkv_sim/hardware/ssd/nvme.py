"""NVMe queue pairs: ring slots, doorbells, command fetch, completion and interrupt.

Source: NVM Express Base Specification 1.4, chapter 4 (64-byte submissions, 16-byte completions, a ring of n
entries holds n − 1 commands, phase bit).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import simpy

from nearkv_sim.hardware.pcie_config import PcieLinkConfig, require_integer

__all__ = ["QueuePair"]

Steps = Generator[simpy.Event, Any, None]


class QueuePair:
    """A submission queue and its completion queue in host memory.

    Timing of one command: the doorbell (a posted write) reaches the drive after the link's one-way latency;
    the drive fetches the 64-byte entry in one read round trip; the command runs; its completion entry is a
    posted write; then the host sees the phase bit at once (`interrupts=False`: it polls), or the MSI-X
    handler starts after the link's interrupt latency. Their bytes (64 and 16) are not put on the link.
    A ring of `entries` slots holds `entries - 1` commands; later ones wait in order of submission.

    Args:
        env: time in integer ps.
        config: latencies of the link to the host.
        entries: slots of either ring, 2 to 65,536.
        interrupts: or polling.

    Members:
        doorbells: register writes so far: one per command submitted and one per completion taken.
        deepest: most commands that were in the ring at once.

    """

    def __init__(
        self, env: simpy.Environment, config: PcieLinkConfig, *, entries: int = 1024, interrupts: bool = True
    ) -> None:
        """Empty rings. Raises ValueError for a length that NVMe does not allow."""
        require_integer("entries", entries, 2, 65_536)
        self._env, self._config, self._interrupts = env, config, interrupts
        self._free = entries - 1
        self._entries = entries
        self._waiting: deque[tuple[Callable[[], simpy.Event], simpy.Event]] = deque()
        self.doorbells = 0
        self.deepest = 0

    @property
    def outstanding(self) -> int:
        """Commands in the ring now."""
        return self._entries - 1 - self._free

    def submit(self, command: Callable[[], simpy.Event]) -> simpy.Event:
        """Queue a command, such as `lambda: ssd.read(0, 4096)`; fires when the host knows that it is done."""
        completed = self._env.event()
        self._waiting.append((command, completed))
        self._fill()
        return completed

    def _fill(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self.deepest = max(self.deepest, self.outstanding)
            self._env.process(self._run(*self._waiting.popleft()))

    def _run(self, command: Callable[[], simpy.Event], completed: simpy.Event) -> Steps:
        config = self._config
        self.doorbells += 1
        fetch_ps = 2 * config.path_latency_ps + config.root_complex_read_latency_ps
        yield self._env.timeout(config.path_latency_ps + fetch_ps)
        yield command()
        interrupt_ps = config.interrupt_latency_ps if self._interrupts else 0
        yield self._env.timeout(config.path_latency_ps + interrupt_ps)
        self.doorbells += 1
        self._free += 1
        completed.succeed()
        self._fill()

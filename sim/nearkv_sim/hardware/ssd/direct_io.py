"""Synchronous direct I/O of one thread, as the Linux block layer splits it.

Source: Linux 5.x, fs/block_dev.c: a direct transfer is cut into bios of at most 256 pages. One that fits in a
single bio pins its pages, submits, and waits; a longer one submits each bio as soon as its pages are pinned,
so that pinning overlaps with the transfers already under way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.ssd.controller import Ssd
from nearkv_sim.hardware.ssd.nvme import QueuePair

__all__ = ["DirectIo", "HostIoConfig"]

PAGE_BYTES = 4096
BIO_PAGES = 256  # BIO_MAX_PAGES of Linux


@dataclass(frozen=True, kw_only=True)
class HostIoConfig:
    """What the host's software costs.

    Attributes:
        call_ps: system call, block layer and driver, once per transfer, interrupt latency excluded.
        page_ps: pinning and mapping one 4 KiB page of the buffer.

    """

    call_ps: int
    page_ps: int

    def __post_init__(self) -> None:
        """ValueError for a negative or fractional time, or one above a second."""
        require_integer("call_ps", self.call_ps, 0, 10**12)
        require_integer("page_ps", self.page_ps, 0, 10**12)


class DirectIo:
    """`pread` and `pwrite` on a device opened with O_DIRECT.

    Timing: `call_ps`, then for every bio `page_ps` per page and its NVMe commands (a bio above the drive's
    largest transfer is split), each submitted without waiting for the one before; the call returns when all
    have completed. ValueError for a range outside the drive or an empty one.
    """

    def __init__(self, env: simpy.Environment, ssd: Ssd, queue: QueuePair, config: HostIoConfig) -> None:
        """One thread on one queue pair."""
        self._env, self._ssd, self._queue, self._config = env, ssd, queue, config

    def pread(self, start_bytes: int, nbytes: int) -> simpy.Process:
        """Read; the process ends when the call returns."""
        return self._call(start_bytes, nbytes, self._ssd.read)

    def pwrite(self, start_bytes: int, nbytes: int) -> simpy.Process:
        """Write; the process ends when the call returns."""
        return self._call(start_bytes, nbytes, self._ssd.write)

    def _call(
        self, start_bytes: int, nbytes: int, command: Callable[[int, int], simpy.Event]
    ) -> simpy.Process:
        logical_bytes = self._ssd.config.logical_bytes
        require_integer("start_bytes", start_bytes, 0, logical_bytes - 1)
        require_integer("nbytes", nbytes, 1, logical_bytes - start_bytes)
        return self._env.process(self._transfer(start_bytes, nbytes, command))

    def _transfer(
        self, start_bytes: int, nbytes: int, command: Callable[[int, int], simpy.Event]
    ) -> Generator[simpy.Event, Any, None]:
        yield self._env.timeout(self._config.call_ps)
        step_bytes = min(BIO_PAGES * PAGE_BYTES, self._ssd.config.max_transfer_bytes)
        pending = []
        for first in range(start_bytes, start_bytes + nbytes, step_bytes):
            size = min(step_bytes, start_bytes + nbytes - first)
            yield self._env.timeout(self._config.page_ps * -(-size // PAGE_BYTES))
            pending.append(self._queue.submit(lambda at=first, size=size: command(at, size)))  # type: ignore[misc]
        yield self._env.all_of(pending)

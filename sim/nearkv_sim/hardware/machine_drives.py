"""Drives as stages: the NVMe drive model behind its queue pair, alone or with a peer below one switch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import simpy

from nearkv_sim.hardware.link import Direction
from nearkv_sim.hardware.machine_stage import REMEMBERED_TRANSFERS, Stage, continued_ps
from nearkv_sim.hardware.pcie_fabric import PeerConfig, PeerLink
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.controller import Ssd
from nearkv_sim.hardware.ssd.direct_io import HostIoConfig
from nearkv_sim.hardware.ssd.ftl import Ftl
from nearkv_sim.hardware.ssd.nvme import QueuePair
from nearkv_sim.hardware.ssd.workloads import peer_transfer_ps

# Long enough for reads to keep every die busy. Writes are walked until the buffer has been full for as long.
WALKED_READ_BYTES = 32 << 20
WALKED_PEER_BYTES = 16 << 20
_UNLIMITED_BYTES_PER_S = 10**13


class _NoLink:
    """Takes no time, since the machine's own link is a stage of its own; counts what it carries."""

    def __init__(self) -> None:
        self.carried_bytes = dict.fromkeys(Direction, 0)

    def transfer(self, start_ps: int, nbytes: int, direction: Direction) -> int:
        """Arrive at once."""
        self.carried_bytes[direction] += nbytes
        return start_ps

    def bound_bytes_per_s(self, direction: Direction) -> int:
        """Beyond any link, either way."""
        return {Direction.IN: _UNLIMITED_BYTES_PER_S, Direction.OUT: _UNLIMITED_BYTES_PER_S}[direction]


@dataclass(frozen=True)
class DriveStage(Stage):
    """A drive without its link: queue pair, firmware, NAND and buffers, reads of a full drive in order.

    Attributes:
        config: the drive.
        write: or read.

    """

    config: SsdConfig = field(repr=False)
    write: bool

    @property
    def bound_bytes_per_s(self) -> int:
        """All channels; writes may be faster for as long as the buffer has room."""
        channels = self.config.channels * self.config.channel_bytes_per_s
        return _UNLIMITED_BYTES_PER_S if self.write else channels

    def _time_ps(self, nbytes: int) -> int:
        walked_bytes = WALKED_READ_BYTES
        if self.write:
            walked_bytes = max(walked_bytes, 4 * self.config.write_buffer_bytes)
        return continued_ps(partial(sequential_ps, self.config, write=self.write), nbytes, walked_bytes)


@dataclass(frozen=True)
class PeerStage(Stage):
    """A drive and the memory it moves data to and from, NAND and memory port included.

    Attributes:
        config: the drive, whose read buffer is taken to be cold.
        outward: towards the drive: a write.
        peer, host_io: what the other device and the host's software cost.

    """

    config: SsdConfig = field(repr=False)
    outward: bool
    peer: PeerConfig = field(repr=False)
    host_io: HostIoConfig = field(repr=False)

    @property
    def bound_bytes_per_s(self) -> int:
        """The slower of link and memory port."""
        return PeerLink(self.peer).bound_bytes_per_s(Direction.IN if self.outward else Direction.OUT)

    def _time_ps(self, nbytes: int) -> int:
        walk = partial(_peer_ps, self.config, self.peer, self.host_io, write=self.outward)
        return continued_ps(walk, nbytes, WALKED_PEER_BYTES)


@lru_cache(maxsize=REMEMBERED_TRANSFERS)
def sequential_ps(config: SsdConfig, nbytes: int, *, write: bool) -> int:
    """One transfer in commands of the drive's largest size, all submitted at once."""
    env = simpy.Environment()
    link = _NoLink()
    ssd = Ssd(env, config, link, Ftl(config, 0 if write else config.logical_bytes))
    queue = QueuePair(env, config.link_config(), entries=65_536)
    command = ssd.write if write else ssd.read
    pending = []
    for start_bytes in range(0, nbytes, config.max_transfer_bytes):
        size = min(config.max_transfer_bytes, nbytes - start_bytes)
        pending.append(queue.submit(partial(command, start_bytes, size)))
    env.run(env.all_of(pending))
    carried_bytes = link.carried_bytes[Direction.IN if write else Direction.OUT]
    assert carried_bytes == nbytes, "the drive has lost or invented bytes"
    return int(env.now)


@lru_cache(maxsize=REMEMBERED_TRANSFERS)
def _peer_ps(config: SsdConfig, peer: PeerConfig, host_io: HostIoConfig, nbytes: int, *, write: bool) -> int:
    cold = replace(config, read_buffer_bytes=0)
    return peer_transfer_ps(cold, peer, host_io, nbytes, write=write)

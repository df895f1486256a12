"""Runs of one drive on which published figures are measured. Deterministic; every random source is seeded."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import simpy

from nearkv_sim.hardware.link import PcieRate
from nearkv_sim.hardware.link_clock import now_ps
from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.pcie_fabric import PeerConfig, PeerLink
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.controller import Ssd
from nearkv_sim.hardware.ssd.direct_io import DirectIo, HostIoConfig
from nearkv_sim.hardware.ssd.ftl import Ftl
from nearkv_sim.hardware.ssd.nvme import QueuePair

__all__ = ["Measured", "peer_transfer_ps", "random_read", "sequential"]

Steps = Generator[simpy.Event, Any, None]


@dataclass(frozen=True)
class Measured:
    """Commands of one size, kept at one queue depth.

    Attributes:
        mean_latency_ps: submission to completion as the host sees it.
        commands_per_s, bytes_per_s: over the whole run.

    """

    mean_latency_ps: float
    commands_per_s: float
    bytes_per_s: float


def _run(
    env: simpy.Environment, depth: int, commands: int, nbytes: int, one: Callable[[int], simpy.Event]
) -> Measured:
    """Keep `depth` of `commands` under way; `one(index)` is the event of command `index`."""
    latencies_ps: list[int] = []
    indices = iter(range(commands))

    def slot() -> Steps:
        for index in indices:
            begin_ps = now_ps(env)
            yield one(index)
            latencies_ps.append(now_ps(env) - begin_ps)

    env.run(env.all_of([env.process(slot()) for _ in range(depth)]))
    env.run()  # what was acknowledged from a write buffer must reach NAND before it counts
    seconds = env.now / PS_PER_S
    return Measured(sum(latencies_ps) / commands, commands / seconds, commands * nbytes / seconds)


def random_read(
    config: SsdConfig,
    depth: int,
    commands: int,
    *,
    nbytes: int = 4096,
    seed: int = 1,
    interrupts: bool = True,
) -> Measured:
    """Uniformly random aligned reads of a full drive. ValueError for counts below 1 or an impossible size."""
    require_integer("depth", depth, 1, 65_535)
    require_integer("commands", commands, 1, 10**9)
    require_integer("nbytes", nbytes, 1, config.max_transfer_bytes)
    env = simpy.Environment()
    ssd = Ssd(env, config, PcieRate(config.link_config()), Ftl(config, config.logical_bytes))
    queue = QueuePair(env, config.link_config(), entries=65_536, interrupts=interrupts)
    rng = random.Random(seed)
    places = config.logical_bytes // nbytes

    def one(_: int) -> simpy.Event:
        start_bytes = rng.randrange(places) * nbytes
        return queue.submit(lambda: ssd.read(start_bytes, nbytes))

    return _run(env, depth, commands, nbytes, one)


def sequential(config: SsdConfig, depth: int, commands: int, *, nbytes: int, write: bool) -> Measured:
    """Ascending reads of a full drive, or writes of an empty one, until the last program has ended."""
    require_integer("depth", depth, 1, 65_535)
    require_integer("nbytes", nbytes, 1, config.max_transfer_bytes)
    require_integer("commands", commands, 1, config.logical_bytes // nbytes)
    env = simpy.Environment()
    ftl = Ftl(config, 0 if write else config.logical_bytes)
    ssd = Ssd(env, config, PcieRate(config.link_config()), ftl)
    queue = QueuePair(env, config.link_config(), entries=65_536)
    command = ssd.write if write else ssd.read

    def one(index: int) -> simpy.Event:
        return queue.submit(lambda: command(index * nbytes, nbytes))

    return _run(env, depth, commands, nbytes, one)


def peer_transfer_ps(
    ssd_config: SsdConfig, peer: PeerConfig, host: HostIoConfig, nbytes: int, *, write: bool
) -> int:
    """One synchronous transfer between a drive and its peer, repeated at the same place as benchmarks do.

    Returns the second call's time: the first fills the drive's read buffer.
    """
    require_integer("nbytes", nbytes, 1, ssd_config.logical_bytes)
    env = simpy.Environment()
    filled_bytes = -(-nbytes // ssd_config.mapping_unit_bytes) * ssd_config.mapping_unit_bytes
    ssd = Ssd(env, ssd_config, PeerLink(peer), Ftl(ssd_config, filled_bytes))
    io = DirectIo(env, ssd, QueuePair(env, peer.link_config()), host)
    call = io.pwrite if write else io.pread
    env.run(call(0, nbytes))
    begin_ps = now_ps(env)
    env.run(call(0, nbytes))
    return now_ps(env) - begin_ps

"""Gathering scattered pieces: stages of a transfer that do not read consecutive bytes.

Formula: pieces that lie evenly scattered over a region touch
    pages · (1 − (1 − nbytes / region)^n)   pages of n = page / piece pieces each (at least one),
the mean of independent selection. A drive reads touched pages at random, `READS_IN_FLIGHT` at a time and
piece by piece where a piece is larger than a page, or the whole region in order if that is faster. DRAM opens
a row per piece. Links and data-sheet memories carry the pieces as if they lay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

from nearkv.machine import Timing
from nearkv_sim.hardware.dram.config import dram_profile
from nearkv_sim.hardware.dram.stream import gather
from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.machine_devices import DramStage
from nearkv_sim.hardware.machine_drives import DriveStage, PeerStage
from nearkv_sim.hardware.machine_stage import REMEMBERED_TRANSFERS, Stage, continued_ps, pipelined
from nearkv_sim.hardware.model_shapes import require_positive
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.workloads import random_read

# As many as keep every die of the shipped drives busy.
READS_IN_FLIGHT = 64
WALKED_READS = 1024
SEED = 1


def gather_timing(stages: Sequence[Stage], nbytes: int, piece_bytes: int, region_bytes: int) -> Timing:
    """Time of one gather; ValueError for a size below 1 or more bytes than the region has."""
    for name, value in (("nbytes", nbytes), ("piece_bytes", piece_bytes), ("region_bytes", region_bytes)):
        require_positive(name, value)
    if nbytes > region_bytes:
        raise ValueError(f"nbytes is {nbytes}; allowed: at most region_bytes, {region_bytes}")
    busy = {stage.name: _stage_ps(stage, nbytes, piece_bytes, region_bytes) for stage in stages}
    return pipelined(busy, stages, nbytes)


def touched_pages(nbytes: int, piece_bytes: int, region_bytes: int, page_bytes: int) -> int:
    """Pages that the pieces lie in, rounded up; see the formula above."""
    pages = -(-region_bytes // page_bytes)
    if piece_bytes >= page_bytes:
        return min(pages, -(-nbytes // piece_bytes) * -(-piece_bytes // page_bytes))
    missed = (1 - nbytes / region_bytes) ** (page_bytes // piece_bytes)
    # Rounding may not add a page where a float lies a hair above a whole number.
    return max(1, min(pages, -int(-(pages * (1 - missed)) // 1)))


def _stage_ps(stage: Stage, nbytes: int, piece_bytes: int, region_bytes: int) -> int:
    share, region = -(-nbytes // stage.count), -(-region_bytes // stage.count)
    if isinstance(stage, DriveStage) and not stage.write:
        scattered_ps = _drive_ps(stage.config, share, piece_bytes, region)
    elif isinstance(stage, PeerStage) and not stage.outward:
        # Calls are kept in flight, so that only drive and memory port count.
        port_ps = -(-share * PS_PER_S // stage.bound_bytes_per_s)
        scattered_ps = max(port_ps, _drive_ps(stage.config, share, piece_bytes, region))
    elif isinstance(stage, DramStage) and not stage.write:
        device_bytes = -(-share // stage.config.devices)
        scattered_ps = stage.config.latency_ps + _dram_ps(stage.config.dram, piece_bytes, device_bytes)
    else:
        return stage.time_ps(nbytes)
    return min(scattered_ps, stage.time_ps(region_bytes))


def _drive_ps(config: SsdConfig, nbytes: int, piece_bytes: int, region_bytes: int) -> int:
    page_bytes = config.mapping_unit_bytes
    read_bytes = min(config.max_transfer_bytes, -(-piece_bytes // page_bytes) * page_bytes)
    pages = touched_pages(nbytes, piece_bytes, region_bytes, page_bytes)
    reads = -(-pages * page_bytes // read_bytes)
    return continued_ps(partial(_random_reads_ps, config, read_bytes), reads, WALKED_READS)


@lru_cache(maxsize=REMEMBERED_TRANSFERS)
def _random_reads_ps(config: SsdConfig, read_bytes: int, reads: int) -> int:
    measured = random_read(config, min(READS_IN_FLIGHT, reads), reads, nbytes=read_bytes, seed=SEED)
    return round(reads * PS_PER_S / measured.commands_per_s)


@lru_cache(maxsize=REMEMBERED_TRANSFERS)
def _dram_ps(dram: str, piece_bytes: int, nbytes: int) -> int:
    config = dram_profile(dram).config
    row_bytes = min(piece_bytes, config.row_bytes)
    return gather(config, -(-nbytes // row_bytes), row_bytes, seed=SEED).time_ps

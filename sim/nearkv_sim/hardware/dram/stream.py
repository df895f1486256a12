"""How long a DRAM device takes for long scans and for scattered rows, and what bounds it.

Bytes are striped over all channels and pseudo-channels, which work alike; one of them is simulated.
In long transfers the accesses between refreshes repeat: whole periods of some refresh intervals after the
first `WARM_REFRESHES` are counted, only the rest is simulated. Rows fall into a period at changing places,
and random ones differ: tests hold scans within 0.5 %, gathers within 5 % of every command.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice, takewhile

from nearkv_sim.hardware.dram.channel import Access, DramChannel, DramCounters
from nearkv_sim.hardware.dram.command import Address, Command, Issue
from nearkv_sim.hardware.dram.config import DramConfig
from nearkv_sim.hardware.pcie_config import require_integer

MOST_BYTES = 2**60
WARM_REFRESHES = 1
SCAN_PERIOD_REFRESHES = 8  # long enough that rows opened per period hardly depend on its phase
GATHER_PERIOD_REFRESHES = 32  # long enough for a mean over random rows
REMEMBERED_RUNS = 4096  # of a cache: a caller that asks for ever new sizes must not grow


@dataclass(frozen=True)
class DramResult:
    """One transfer on an idle device.

    Attributes:
        time_ps: first command to last data.
        nbytes: moved, without padding to whole accesses.
        counters: commands of the whole device.
        parts_ps: what the time consists of; the parts add up to it.

    """

    time_ps: int
    nbytes: int
    counters: DramCounters
    parts_ps: dict[str, int]

    @property
    def bytes_per_s(self) -> float:
        """Payload rate."""
        return self.nbytes * 1e12 / self.time_ps


def sequential_addresses(config: DramConfig) -> Iterator[Address]:
    """Consecutive accesses of one pseudo-channel: bank groups in turn, then columns, banks, ranks, rows."""
    row = 0
    while True:
        for rank in range(config.ranks):
            for bank in range(config.banks):
                for column in range(config.columns):
                    for group in range(config.groups):
                        yield Address(0, rank, group, bank, row, column)
        row = (row + 1) % config.rows


def scattered_addresses(config: DramConfig, accesses_per_row: int, seed: int) -> Iterator[Address]:
    """Runs of consecutive columns of random rows of random banks."""
    generator = random.Random(seed)
    while True:
        place = (generator.randrange(config.ranks), generator.randrange(config.groups))
        bank, row = generator.randrange(config.banks), generator.randrange(config.rows)
        first = generator.randrange(config.columns - accesses_per_row + 1)
        for column in range(first, first + accesses_per_row):
            yield Address(0, *place, bank, row, column)


def scan(config: DramConfig, nbytes: int, *, write: bool = False) -> DramResult:
    """Read or write `nbytes` that lie one after the other. ValueError for fewer than 1 byte or a fraction."""
    accesses = _accesses_per_lane(config, nbytes)
    cycles, counters = _stream(config, accesses, write, 0, 0)
    return _result(config, nbytes, cycles, counters)


def gather(config: DramConfig, rows: int, row_bytes: int, *, seed: int, write: bool = False) -> DramResult:
    """Move `rows` pieces of `row_bytes` at random places of one lane's banks, each within one DRAM row.

    ValueError: rows below 1, row_bytes not from 1 to a DRAM row, a negative seed, or a fraction.
    """
    require_integer("rows", rows, 1, MOST_BYTES)
    require_integer("row_bytes", row_bytes, 1, config.row_bytes)
    require_integer("seed", seed, 0, 2**63 - 1)
    per_row = -(-row_bytes // config.access_bytes)
    lanes = config.channels * config.pseudo_channels
    cycles, counters = _stream(config, -(-rows // lanes) * per_row, write, per_row, seed)
    return _result(config, rows * row_bytes, cycles, counters)


def _accesses_per_lane(config: DramConfig, nbytes: int) -> int:
    require_integer("nbytes", nbytes, 1, MOST_BYTES)
    return -(-nbytes // (config.access_bytes * config.channels * config.pseudo_channels))


@dataclass(frozen=True)
class _Pattern:
    """A lane's stream of accesses: per_row 0 for consecutive ones."""

    config: DramConfig
    write: bool
    per_row: int
    seed: int

    @property
    def period_refreshes(self) -> int:
        """Refresh intervals of a period."""
        return GATHER_PERIOD_REFRESHES if self.per_row else SCAN_PERIOD_REFRESHES

    def accesses(self) -> Iterator[Access]:
        """Without end."""
        if self.per_row:
            addresses = scattered_addresses(self.config, self.per_row, self.seed)
        else:
            addresses = sequential_addresses(self.config)
        return (Access(address, self.write) for address in addresses)


@lru_cache(maxsize=REMEMBERED_RUNS)
def _simulate(pattern: _Pattern, accesses: int) -> tuple[int, DramCounters]:
    """Every command of the first `accesses`."""
    channel = DramChannel(pattern.config)
    cycles = channel.run(islice(pattern.accesses(), accesses))
    return cycles, channel.counters


@lru_cache(maxsize=REMEMBERED_RUNS)
def _accesses_until_refresh(pattern: _Pattern, refreshes: int) -> int:
    """Accesses that are issued before the refresh of that number starts."""
    trace: list[Issue] = []
    channel = DramChannel(pattern.config, trace)
    channel.run(takewhile(lambda _: channel.counters.refreshes < refreshes, pattern.accesses()))
    trace.sort(key=lambda issue: issue.cycle)
    count = 0
    for issue in trace:
        if issue.command is Command.REF:
            refreshes -= 1
            if not refreshes:
                break
        count += issue.command in (Command.RD, Command.WR)
    return count


def _stream(
    config: DramConfig, accesses: int, write: bool, per_row: int, seed: int
) -> tuple[int, DramCounters]:
    """Cycles and commands of one lane."""
    pattern = _Pattern(config, write, per_row, seed)
    if accesses <= WARM_REFRESHES * config.t_refi // max(config.t_bl, config.t_ccd_s):
        return _simulate(pattern, accesses)
    first = _accesses_until_refresh(pattern, WARM_REFRESHES)
    last = _accesses_until_refresh(pattern, WARM_REFRESHES + pattern.period_refreshes)
    periods = max(0, -(-(accesses - last) // (last - first)))
    cycles, counters = _simulate(pattern, accesses - periods * (last - first))
    if not periods:
        return cycles, counters
    early, late = _simulate(pattern, first)[1], _simulate(pattern, last)[1]
    repeated = {
        name: value + periods * (getattr(late, name) - getattr(early, name))
        for name, value in vars(counters).items()
    }
    repeated["refreshes"] = counters.refreshes + periods * pattern.period_refreshes
    return cycles + periods * pattern.period_refreshes * config.t_refi, DramCounters(**repeated)


def _result(config: DramConfig, nbytes: int, cycles: int, lane: DramCounters) -> DramResult:
    time_ps = config.to_ps(cycles)
    assert Fraction(nbytes * 10**12, time_ps) <= config.peak_bytes_per_s, "faster than the interface"
    lanes = config.channels * config.pseudo_channels
    counters = DramCounters(**{name: value * lanes for name, value in vars(lane).items()})
    interface_ps = config.to_ps((lane.reads + lane.writes) * max(config.t_bl, config.t_ccd_s))
    refresh_ps = config.to_ps(lane.refreshes * config.t_rfc)
    rest_ps = time_ps - interface_ps - refresh_ps
    assert rest_ps >= 0, "parts longer than the whole"
    parts_ps = {"interface": interface_ps, "refresh": refresh_ps, "rows, bank groups, latency": rest_ps}
    return DramResult(time_ps, nbytes, counters, parts_ps)

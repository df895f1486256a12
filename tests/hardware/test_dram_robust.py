"""DRAM and PIM with impossible timings and arguments, and what extrapolation costs in accuracy."""

from dataclasses import replace
from itertools import islice

import pytest

from nearkv_sim.hardware.dram.channel import Access, DramChannel
from nearkv_sim.hardware.dram.checker import check_trace
from nearkv_sim.hardware.dram.config import dram_profile
from nearkv_sim.hardware.dram.stream import gather, scan, scattered_addresses, sequential_addresses
from nearkv_sim.hardware.pim.attention import decode_attention_ps, stack_attention
from nearkv_sim.hardware.pim.channel import PimChannel
from nearkv_sim.hardware.pim.config import PimConfig, pim_profile
from nearkv_sim.hardware.pim.schedule import Macs, Tile

DDR4 = dram_profile("ddr4_3200").config
BANK = pim_profile("attacc_bank").config
TIMINGS = [name for name in vars(DDR4) if name.startswith("t_")]


def run(config, accesses=300):
    """A trace of scattered reads and writes."""
    trace = []
    addresses = islice(scattered_addresses(config, 2, seed=1), accesses)
    end = DramChannel(config, trace).run(
        Access(address, number % 7 == 0) for number, address in enumerate(addresses)
    )
    return end, sorted(trace, key=lambda issue: issue.cycle)


@pytest.mark.parametrize("name", TIMINGS)
@pytest.mark.parametrize("cycles", [1, 200, 9000, 10**6])
def test_any_timing_is_kept_refused_or_leaves_no_room(name, cycles):
    """Never a wrong trace, never a run without end."""
    config, refusal = None, ""
    try:
        config = replace(DDR4, **{name: cycles})
        end, trace = run(config)
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert (str(cycles) if config is None else "enough for an access between") in refusal
        return
    assert check_trace(trace, config) == len(trace)
    # Commands of other banks may fall into better places by chance, for a cycle or two.
    if cycles >= getattr(DDR4, name) and name != "t_refi":
        assert end >= run(DDR4)[0] - 8


@pytest.mark.parametrize("name", ["ddr5_4800", "hbm3_5200", "gddr6_aim"])
def test_extrapolation_is_as_accurate_as_said(name):
    config = dram_profile(name).config
    lanes = config.channels * config.pseudo_channels
    accesses = 47_000
    cycles = DramChannel(config).run(map(Access, islice(sequential_addresses(config), accesses)))
    result = scan(config, accesses * lanes * config.access_bytes)
    assert result.time_ps == pytest.approx(config.to_ps(cycles), rel=0.005)
    assert result.counters.reads == accesses * lanes
    cycles = DramChannel(config).run(map(Access, islice(scattered_addresses(config, 4, seed=5), accesses)))
    result = gather(config, accesses // 4 * lanes, 4 * config.access_bytes, seed=5)
    assert result.time_ps == pytest.approx(config.to_ps(cycles), rel=0.05)


@pytest.mark.parametrize("nbytes", [0, -1, 1.5, 4096.0, True, "4096", float("nan"), 2**61])
def test_impossible_sizes(nbytes):
    with pytest.raises(ValueError, match=f"nbytes is {nbytes!r}; allowed"):
        scan(DDR4, nbytes)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "seed", "message"),
    [(1.5, 64, 1, "rows is 1.5"), (1, 63.5, 1, "row_bytes is 63.5"), (1, 64, 1.0, "seed is 1.0")],
)
def test_impossible_gathers(rows, row_bytes, seed, message):
    with pytest.raises(ValueError, match=message):
        gather(DDR4, rows, row_bytes, seed=seed)


def test_huge_transfers_take_time_in_proportion():
    small, large = scan(DDR4, 2**40), scan(DDR4, 2**60)
    assert large.time_ps == pytest.approx(2**20 * small.time_ps, rel=1e-3)
    assert type(large.time_ps) is int


@pytest.mark.parametrize(
    "change",
    [
        {"activate_pj": float("inf")},
        {"activate_pj": float("nan")},
        {"activate_pj": True},
        {"activate_pj": "much"},
        {"group_path_pj_per_byte": -0.1},
        {"data_rate_mtps": 2**31},
        {"t_cl": 10**6 + 1},
        {"t_cl": True},
    ],
)
def test_impossible_devices(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"{name} is {value!r}; allowed"):
        replace(DDR4, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"mac_interval_capped": 6.5},
        {"mac_interval_capped": True},
        {"mac_pj": float("nan")},
        {"mac_pj": True},
        {"queue_entries": 2.0},
        {"dram": ("ddr4_3200",)},
    ],
)
def test_impossible_pim_devices(change):
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"{name} is .*; allowed"):
        replace(BANK, **change)


def test_impossible_attention():
    for arguments in ((1.5, 1), (1, 1.5), (2048.0, 64), (True, 1)):
        with pytest.raises(ValueError, match=r"is (1\.5|2048\.0|True); allowed is an integer"):
            stack_attention(BANK, *arguments)
    with pytest.raises(ValueError, match=r"batch is 1\.5"):
        decode_attention_ps(BANK, stacks=1, layers=1, heads=1, batch=1.5, tokens=1)


def test_pim_that_refresh_leaves_no_room():
    dram = replace(BANK.dram_config, t_rcd_read=BANK.dram_config.t_refi)

    class Slow(PimConfig):
        """The device with memory that opens rows too late."""

        @property
        def dram_config(self):
            return dram

    with pytest.raises(ValueError, match="t_refi is 5070; allowed: enough for a MAC between refreshes"):
        PimChannel(Slow(**vars(BANK))).run([Tile((), Macs(0, 0, 1), ())])

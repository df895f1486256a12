"""The bank state machine: hand-checked cycles, traces that the checker accepts, bounds, bad arguments."""

import random
from dataclasses import replace
from itertools import islice

import pytest

from nearkv_sim.hardware.dram.channel import Access, DramChannel
from nearkv_sim.hardware.dram.checker import check_trace
from nearkv_sim.hardware.dram.command import Address, Command
from nearkv_sim.hardware.dram.config import dram_profile
from nearkv_sim.hardware.dram.energy import transfer_energy
from nearkv_sim.hardware.dram.stream import gather, scan, scattered_addresses, sequential_addresses

NAMES = (
    "ddr4_2400",
    "ddr4_3200",
    "ddr5_4800",
    "gddr6_aim",
    "hbm2_2000",
    "hbm2_2400",
    "hbm2_pim_2000",
    "hbm3_5200",
    "hbm3_6400",
)
DDR4 = dram_profile("ddr4_3200").config


def test_smallest_example():
    """Closed bank: ACT, RD t_rcd later, data after t_cl and t_bl; then a hit, then another row."""
    trace = []
    channel = DramChannel(DDR4, trace)
    assert channel.run([Access(Address())]) == 22 + 22 + 4
    assert channel.run([Access(Address(column=1))]) == 22 + 8 + 22 + 4  # t_ccd_l: the same bank group
    # PRE waits for t_ras (52), ACT for t_rc = t_ras + t_rp (74).
    assert channel.run([Access(Address(row=1))]) == 52 + 22 + 22 + 22 + 4
    assert [(issue.cycle, issue.command) for issue in trace] == [
        (0, Command.ACT),
        (22, Command.RD),
        (30, Command.RD),
        (52, Command.PRE),
        (74, Command.ACT),
        (96, Command.RD),
    ]


def test_write_then_read_turns_the_bus():
    channel = DramChannel(DDR4)
    accesses = [Access(Address(), write=True), Access(Address(group=1))]
    write = 22
    read = write + DDR4.t_cwl + DDR4.t_bl + DDR4.t_wtr_s
    assert channel.run(accesses) == read + DDR4.t_cl + DDR4.t_bl


def test_refresh_comes_every_t_refi():
    trace = []
    channel = DramChannel(DDR4, trace)
    channel.run(Access(address) for address in islice(sequential_addresses(DDR4), 10_000))
    refreshes = [issue.cycle for issue in trace if issue.command is Command.REF]
    assert len(refreshes) == channel.counters.refreshes == 3
    for number, cycle in enumerate(refreshes, 1):
        assert 0 <= cycle - number * DDR4.t_refi < DDR4.t_rc


@pytest.mark.parametrize("name", NAMES)
def test_traces_pass_the_checker(name):
    config = dram_profile(name).config
    generator = random.Random(1)
    addresses = [
        *islice(sequential_addresses(config), 2000),
        *islice(scattered_addresses(config, 3, seed=2), 2000),
    ]
    trace = []
    channel = DramChannel(config, trace)
    end = channel.run(Access(address, generator.random() < 0.3) for address in addresses)
    trace.sort(key=lambda issue: issue.cycle)
    assert check_trace(trace, config) == len(trace)
    counters = channel.counters
    assert counters.reads + counters.writes == len(addresses)
    assert end > trace[-1].cycle
    assert counters.refreshes >= end // config.t_refi - 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("write", [False, True])
def test_scan_stays_below_the_interface_and_above_nine_tenths_of_refresh(name, write):
    config = dram_profile(name).config
    rate = scan(config, 1 << 28, write=write).bytes_per_s
    after_refresh = float(config.peak_bytes_per_s) * (1 - config.t_rfc / config.t_refi)
    assert 0.88 * after_refresh < rate <= after_refresh


def test_extrapolation_equals_simulation():
    """A scan long enough to be extrapolated against every command of it."""
    nbytes = 64 * 45_000
    channel = DramChannel(DDR4)
    cycles = channel.run(Access(address) for address in islice(sequential_addresses(DDR4), 45_000))
    result = scan(DDR4, nbytes)
    assert result.time_ps == pytest.approx(DDR4.to_ps(cycles), rel=1e-3)
    assert result.counters.reads == 45_000
    assert result.counters.activates == pytest.approx(channel.counters.activates, rel=0.02)


def test_time_grows_with_work_and_with_every_slower_timing():
    times = [scan(DDR4, nbytes).time_ps for nbytes in (1, 64, 65, 4096, 1 << 20, 1 << 26, 1 << 27)]
    assert times == sorted(times)
    assert times[1] < times[2] < times[3]
    base = scan(DDR4, 1 << 16).time_ps
    assert scan(replace(DDR4, data_rate_mtps=2400), 1 << 16).time_ps > base
    assert scan(replace(DDR4, t_refi=1000), 1 << 16).time_ps > base
    assert scan(replace(DDR4, t_refi=1000, t_rfc=800), 1 << 16).time_ps > 2 * base
    assert scan(replace(DDR4, channels=2), 1 << 16).time_ps < base
    scattered = gather(DDR4, 1000, 64, seed=1)
    assert gather(replace(DDR4, t_faw=200), 1000, 64, seed=1).time_ps > scattered.time_ps
    assert gather(replace(DDR4, t_rc=200), 1000, 64, seed=1).time_ps > scattered.time_ps


def test_parts_say_why():
    """A scan is held up by the interface, scattered reads by rows, and more refreshes by refreshes."""
    results = scan(DDR4, 1 << 22), gather(DDR4, 2000, 64, seed=1)
    for result in results:
        assert sum(result.parts_ps.values()) == result.time_ps
    scanned, scattered = (max(result.parts_ps, key=result.parts_ps.get) for result in results)
    assert (scanned, scattered) == ("interface", "rows, bank groups, latency")
    often = scan(replace(DDR4, t_refi=1000), 1 << 18)
    assert max(often.parts_ps, key=often.parts_ps.get) == "refresh"


def test_gather_is_seeded_and_slower_than_a_scan():
    first, again, other = (gather(DDR4, 3000, 256, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.time_ps != other.time_ps
    assert first.time_ps > 1.5 * scan(DDR4, 3000 * 256).time_ps


def test_energy_by_component():
    result = scan(DDR4, 1 << 20)
    energy = transfer_energy(DDR4, result.counters)
    assert energy.activate_pj == result.counters.activates * DDR4.activate_pj
    assert energy.interface_pj == (1 << 20) * DDR4.interface_pj_per_byte
    assert energy.total_pj == pytest.approx(
        energy.activate_pj + energy.array_pj + energy.path_pj + energy.interface_pj
    )
    scattered = transfer_energy(DDR4, gather(DDR4, 1 << 14, 64, seed=1).counters)
    assert scattered.activate_pj > 10 * energy.activate_pj


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"t_rcd_read": 0}, "t_rcd_read is 0; allowed is an integer from 1"),
        ({"t_faw": 1.5}, "t_faw is 1.5; allowed is an integer from 1"),
        ({"separate_buses": 1}, "separate_buses is 1; allowed: true, false"),
        ({"activate_pj": 0.0}, "activate_pj is 0.0; allowed: a finite number above 0"),
        ({"t_rc": 51}, "t_rc is 51; allowed: from t_ras, 52"),
        ({"t_refi": 576}, "t_refi is 576; allowed: above t_rfc, 576"),
        ({"activate_cycles": 3}, "activate_cycles is 3; allowed is an integer from 1 to 2"),
    ],
)
def test_bad_configurations(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(DDR4, **changes)


def test_bad_arguments():
    with pytest.raises(ValueError, match="nbytes is 0; allowed is an integer from 1"):
        scan(DDR4, 0)
    with pytest.raises(ValueError, match="rows is 0; allowed is an integer from 1"):
        gather(DDR4, 0, 64, seed=1)
    with pytest.raises(ValueError, match="row_bytes is 8193; allowed is an integer from 1 to 8192"):
        gather(DDR4, 1, 8193, seed=1)


def test_every_profile_is_sourced_and_known():
    for name in NAMES:
        profile = dram_profile(name)
        assert set(profile.sources) == set(vars(profile.config))
    gib = {name: dram_profile(name).config.capacity_bytes / 2**30 for name in NAMES}
    assert gib["ddr4_3200"] == gib["ddr5_4800"] == 8
    assert gib["hbm3_5200"] == 16

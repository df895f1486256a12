"""Reads of a drive against hand arithmetic, and what moves their time."""

from dataclasses import replace

import pytest
import simpy

from nearkv_sim.hardware.link import Direction, PcieRate
from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.profile import PROFILE_FOLDER, named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.workloads import random_read, sequential

US = 10**6
UNIT = 4096


def test_one_read_by_hand(drive, small, finish):
    env, ssd, link = drive(filled=True)
    # Firmware 10, low page 40, channel 8, link 1.
    assert finish(env, ssd.read(0, UNIT)) == 59 * US
    # Units 0 and 1 share that page, 2 and 3 the word line's other one, which takes 60.
    assert finish(env, ssd.read(2 * UNIT, UNIT)) == (59 + 79) * US
    assert (ssd.nand.counters.reads, ssd.host_read_bytes) == (2, 2 * UNIT)
    assert link.nbytes == {Direction.OUT: 2 * UNIT, Direction.IN: 0}
    slow = replace(small, command_ps=3 * US)
    env, ssd, _ = drive(slow, filled=True)
    assert finish(env, ssd.read(0, 2 * UNIT)) == (10 + 3 + 40 + 16 + 1) * US


def test_a_die_reads_one_page_at_a_time_and_a_channel_carries_one(drive, small, finish):
    env, ssd, _ = drive(filled=True)
    # A program unit: both pages are on die 0. 10 + (40 + 16) + (60 + 16) + 1.
    assert finish(env, ssd.read(0, 4 * UNIT)) == 143 * US
    env, ssd, _ = drive(filled=True)
    # Units 0, 4: dies 0 and 1 on two channels, at once. Commands are 2 us apart.
    assert finish(env, ssd.read(0, UNIT), ssd.read(4 * UNIT, UNIT)) == 61 * US
    env, ssd, _ = drive(filled=True)
    # Units 0, 8: dies 0 and 2 on channel 0; the second's data, ready at 52, waits for the first's until 58.
    assert finish(env, ssd.read(0, UNIT), ssd.read(8 * UNIT, UNIT)) == 67 * US
    env, ssd, _ = drive(replace(small, dies_per_chip=2), filled=True)
    # One die of a chip at a time: the second starts at 58.
    assert finish(env, ssd.read(0, UNIT), ssd.read(8 * UNIT, UNIT)) == 107 * US


def test_what_was_never_written_needs_no_nand(drive, finish):
    env, ssd, _ = drive()
    assert finish(env, ssd.read(0, 64 * UNIT)) == 11 * US
    assert ssd.nand.counters.reads == 0


def test_map_cache_misses_read_the_map_first(drive, small, finish):
    config = replace(small, mapping_cache_bytes=8, mapping_read_bytes=2048)
    env, ssd, _ = drive(config, filled=True)
    assert finish(env, ssd.read(0, UNIT)) == (59 + 44) * US  # 40, and 2048 bytes in 4
    assert finish(env, ssd.read(0, UNIT)) == (59 + 44 + 59) * US  # the entry is cached now
    finish(env, ssd.read(8 * UNIT, UNIT))  # and here it is pushed out
    assert finish(env, ssd.read(0, UNIT)) == (59 + 44 + 59 + 103 + 103) * US


def test_read_buffer_holds_what_fits_and_skips_short_reads(drive, small, finish):
    config = replace(small, read_buffer_bytes=4 * UNIT, read_buffer_min_bytes=2 * UNIT)
    env, ssd, _ = drive(config, filled=True)
    first_ps = finish(env, ssd.read(0, 4 * UNIT))
    assert finish(env, ssd.read(0, 4 * UNIT)) - first_ps == 11 * US
    before_ps = env.now
    assert finish(env, ssd.read(0, UNIT)) - before_ps == 59 * US
    before = ssd.nand.counters.reads
    for _ in range(2):  # eight units in turn never find what they need in four
        finish(env, ssd.read(0, 8 * UNIT))
    assert ssd.nand.counters.reads - before == 2 * 4 - 2  # but for the first four, which were still held


@pytest.mark.parametrize(
    ("depth", "change"),
    [
        (1, {"read_latency_ps": (41 * US, 61 * US)}),
        (1, {"channel_bytes_per_s": 500_000_000}),
        (1, {"read_firmware_ps": 11 * US}),
        (1, {"command_ps": 1}),
        (1, {"mapping_cache_bytes": 64}),
        (1, {"pcie_lanes": 1}),
        (1, {"pcie_generation": 2}),
        (1, {"max_payload_bytes": 128}),
        (8, {"command_interval_ps": 30 * US}),
        (8, {"dies_per_chip": 2}),
    ],
)
def test_every_constant_of_a_read_moves_time(small, depth, change):
    def latency_ps(config):
        return random_read(config, depth, 200).mean_latency_ps

    assert latency_ps(replace(small, **change)) > latency_ps(small)


def test_a_larger_drive_of_the_same_dies_is_faster_at_depth(small):
    wide = replace(small, dies_per_channel=4, logical_bytes=2 * small.logical_bytes)
    assert random_read(wide, 16, 300).commands_per_s > 1.2 * random_read(small, 16, 300).commands_per_s


def test_throughput_stays_below_every_bound(small):
    for name in (path.stem for path in sorted((PROFILE_FOLDER / "ssd").glob("*.yaml"))):
        config = named_profile("ssd", name, SsdConfig).config
        measured = sequential(config, 64, 300, nbytes=131_072, write=False)
        assert measured.bytes_per_s < PcieRate(config.link_config()).bound_bytes_per_s(Direction.OUT)
        assert measured.bytes_per_s < config.channels * config.channel_bytes_per_s
    slow = replace(small, channel_bytes_per_s=1_000_000)
    assert 1_900_000 < sequential(slow, 32, 64, nbytes=65_536, write=False).bytes_per_s < 2_000_000
    interval = replace(small, command_interval_ps=50 * US)
    assert random_read(interval, 16, 400).commands_per_s <= PS_PER_S / (50 * US)


def test_same_seed_same_run(small):
    runs = [random_read(small, 8, 300, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("start_bytes", "nbytes", "message"),
    [
        (-1, UNIT, "start_bytes is -1"),
        (9 * 524_288, UNIT, "start_bytes is 4718592"),
        (0, 0, "nbytes is 0; allowed is an integer from 1"),
        (0, (1 << 20) + 1, "nbytes is 1048577; allowed is an integer from 1 to 1048576"),
        (9 * 524_288 - UNIT, 2 * UNIT, "nbytes is 8192; allowed is an integer from 1 to 4096"),
    ],
)
def test_impossible_ranges_are_refused(drive, start_bytes, nbytes, message):
    _, ssd, _ = drive()
    for command in (ssd.read, ssd.write):
        with pytest.raises(ValueError, match=message):
            command(start_bytes, nbytes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"channels": 0}, "channels is 0; allowed is an integer from 1"),
        ({"channels": 1.0}, "channels is 1.0"),
        ({"read_latency_ps": ()}, r"read_latency_ps is \(\)"),
        ({"read_latency_ps": (1, 0)}, "read_latency_ps is 0"),
        ({"erase_latency_ps": 10**12 + 1}, "erase_latency_ps is"),
        ({"power_loss_protection": 1}, "power_loss_protection is 1"),
        ({"mapping_unit_bytes": 3000}, "page_bytes is 8192; allowed: a multiple of mapping_unit_bytes"),
        ({"pages_per_block": 15}, "pages_per_block is 15; allowed: a multiple of the bits of a cell"),
        ({"dies_per_chip": 4}, "dies_per_channel is 2; allowed: a multiple of dies_per_chip"),
        ({"logical_bytes": 11 * 524_288}, "logical_bytes is 5767168; allowed: up to 5242880"),
        ({"write_buffer_bytes": 16_384}, "write_buffer_bytes is 16384; allowed: at least two program units"),
        ({"gc_low_superblocks": 6}, "gc_low_superblocks, gc_high_superblocks are 6, 6"),
        ({"max_payload_bytes": 100}, "max_payload_bytes is 100"),
        ({"max_transfer_bytes": 5000}, "max_transfer_bytes is 5000; allowed: a multiple of 4 KiB"),
    ],
)
def test_impossible_drives_are_refused(small, change, message):
    with pytest.raises(ValueError, match=message):
        replace(small, **change)


def test_environment_with_fractions_is_noticed(drive):
    env, ssd, _ = drive()
    env.run(simpy.Timeout(env, 0.5))
    with pytest.raises(AssertionError, match="fractional"):
        env.run(ssd.read(0, UNIT))

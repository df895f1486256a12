"""Energy by component, and wear of a drive."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest
import simpy

from nearkv_sim.hardware.energy import EnergyMeter
from nearkv_sim.hardware.link import PcieRate
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.controller import Ssd
from nearkv_sim.hardware.ssd.ftl import Ftl
from nearkv_sim.hardware.wear import PS_PER_DAY, DriveConfig, DriveWear, write_amplification

PM983 = named_profile("drive", "pm983", DriveConfig).config
P5336 = named_profile("drive", "p5336", DriveConfig).config

# (1 + s)/(2·s)
COLLECTION = (1 + PM983.spare_fraction) / (2 * PM983.spare_fraction)


def test_energy_by_hand():
    meter = EnergyMeter()
    meter.add_bytes("dram", 1_000_000, 162.5)
    meter.add_flops("gpu", 10**12, 0.16)
    meter.add_power("gpu", 10**12, 20.0)  # 20 W for a second
    dram, gpu = meter.shares
    assert (dram.component, gpu.component) == ("dram", "gpu")
    assert dram.joules == pytest.approx(162.5e-6)
    assert gpu.joules == pytest.approx(20.16)
    assert (gpu.dynamic_fj, gpu.static_fj) == (160 * 10**12, 20 * 10**15)
    assert meter.joules == pytest.approx(dram.joules + gpu.joules)


def test_a_sum_of_energies_does_not_depend_on_its_order():
    amounts = [(1, 0.1), (10**9, 7.3), (3, 260.0)]
    one, other = EnergyMeter(), EnergyMeter()
    for amount, cost in amounts:
        one.add_bytes("x", amount, cost)
    for amount, cost in reversed(amounts):
        other.add_bytes("x", amount, cost)
    assert one.shares == other.shares


def test_endurance_of_the_data_sheet():
    """1.3 · 3.84 TB · 3 · 365 = 5466 TB written: four times the 1366 of the 0.96 TB drive's data sheet."""
    assert PM983.rated_host_bytes / 1e12 == pytest.approx(4 * 1366.56, rel=1e-3)
    assert PM983.spare_fraction == Fraction(PM983.config.nand_bytes, PM983.capacity_bytes) - 1


@pytest.mark.parametrize(
    ("write_bytes", "random", "factor"),
    [
        (4096, True, COLLECTION),
        (2048, True, 2 * COLLECTION),
        (6144, True, Fraction(8192, 6144) * COLLECTION),
        (1 << 20, True, COLLECTION),
        (512, False, Fraction(1)),
    ],
)
def test_amplification(write_bytes, random, factor):
    assert write_amplification(PM983, write_bytes, random=random) == factor


def test_single_tokens_wear_a_drive_with_large_units_faster():
    token_bytes = 512  # one head's K and V
    small = write_amplification(PM983, token_bytes, random=True)
    assert write_amplification(P5336, token_bytes, random=True) > 2 * small


def test_closed_form_against_the_simulated_drives_garbage_collection():
    """Random writes of whole units to a small full drive, which keeps superblocks free and so does worse."""
    big = named_profile("ssd", "mqsim", SsdConfig).config
    small = replace(
        big,
        channels=2,
        dies_per_channel=1,
        dies_per_chip=1,
        planes_per_die=1,
        blocks_per_plane=64,
        pages_per_block=32,
        mapping_cache_bytes=0,
        write_buffer_bytes=64 * big.page_bytes,
        gc_low_superblocks=3,
        gc_high_superblocks=4,
        logical_bytes=big.mapping_unit_bytes * 2867,  # 70 % of the NAND
    )
    env = simpy.Environment()
    drive = Ssd(env, small, PcieRate(small.link_config()), Ftl(small, small.logical_bytes))
    unit_bytes, rng = small.mapping_unit_bytes, random.Random(1)

    def overwrite(units):
        for _ in range(units):
            yield drive.write(rng.randrange(2867) * unit_bytes, unit_bytes)

    env.run(env.process(overwrite(3 * 2867)))
    spare = Fraction(small.nand_bytes, small.logical_bytes) - 1
    closed_form = (1 + spare) / (2 * spare)
    assert closed_form < drive.ftl.write_amplification < 1.3 * closed_form


def test_life_at_the_rated_rate_is_the_warranty():
    wear = DriveWear(PM983)
    assert wear.amplification == 1.0
    daily = int(1.3 * PM983.capacity_bytes)
    wear.write(daily, 4096, random=True)
    assert wear.projected_life_years(PS_PER_DAY) == pytest.approx(3.0)
    assert wear.drive_writes == pytest.approx(1.3)
    assert wear.life_used == pytest.approx(1 / (3 * 365))
    sequential = DriveWear(PM983)
    sequential.write(daily, 16384, random=False)
    assert sequential.projected_life_years(PS_PER_DAY) == pytest.approx(3 * float(COLLECTION))
    assert DriveWear(PM983).projected_life_years(1) == float("inf")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EnergyMeter().add_bytes("x", -1, 1.0), "energy of x is -1"),
        (lambda: EnergyMeter().add_power("x", 1, -1.0), "energy of x is 1"),
        (lambda: DriveWear(PM983).write(-1, 1, random=True), "nbytes is -1"),
        (lambda: DriveWear(PM983).write(1, 0, random=True), "write_bytes is 0"),
        (lambda: DriveWear(PM983).projected_life_years(0), "elapsed_ps is 0"),
        (lambda: replace(PM983, active_power_w=0.0), "active_power_w is 0.0"),
        (lambda: replace(PM983, ssd="pm1"), "ssd profile is 'pm1'; allowed: 970pro"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

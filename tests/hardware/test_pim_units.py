"""Units of PIM devices: own cycle formulas and published roofs, never mixed."""

from dataclasses import replace

import pytest

from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_designs import get_pim_design
from nearkv_sim.golden.reduction_timing import attention_timing
from nearkv_sim.hardware.pim.config import pim_profile
from nearkv_sim.hardware.pim_units import pam_profile, published_attention, rtl_attention

NAMES = ("hbm_pim", "ddr_pim", "ssd_pim")


@pytest.mark.parametrize("name", NAMES)
def test_published_units(name):
    """Under the power cap: four FLOPs per token, head and channel."""
    device = pam_profile(name).config
    result = published_attention(device, 4096, 8)
    roofs = {
        "lanes": device.lane_flops,
        "power cap": device.device_flops,
        "memory": device.feed_bytes_per_s,  # a FLOP per byte
    }
    assert result.bound == min(roofs, key=lambda roof: roofs[roof])
    assert result.time_ps == pytest.approx(4 * 4096 * 8 * 128 / min(roofs.values()) * 1e12)
    assert "published" in result.origin


@pytest.mark.parametrize("name", NAMES)
def test_own_units_are_the_cycle_formula(name):
    device = pam_profile(name).config
    design = get_pim_design(device.design)
    result = rtl_attention(device, 4096, 8)
    cycles = attention_timing(design, 4096, 8, Merge.EXACT).cycles
    assert design.name in result.origin
    assert "published" not in result.origin
    units_ps = -(-cycles * 10**12 // design.clock_hz)
    memory_ps = -(-2 * 4096 * 8 * 128 * 2 * 10**12 // device.feed_bytes_per_s)
    assert result.time_ps == max(units_ps, memory_ps)
    assert result.bound == ("memory" if memory_ps > units_ps else "units")


@pytest.mark.parametrize("timing", [published_attention, rtl_attention])
@pytest.mark.parametrize("name", NAMES)
def test_time_grows_with_work_and_slower_memory(timing, name):
    device = pam_profile(name).config
    times = [timing(device, tokens, 4).time_ps for tokens in (1, 1000, 10_000, 100_000)]
    assert times == sorted(times)
    assert times[1] < times[2] < times[3]
    assert timing(device, 1000, 8).time_ps > timing(device, 1000, 4).time_ps
    slow = replace(device, feed_bytes_per_s=device.feed_bytes_per_s // 1000)
    assert timing(slow, 10_000, 4).time_ps > times[2]
    assert timing(slow, 10_000, 4).bound == "memory"


def test_memory_feeds_are_command_rates():
    hbm = pim_profile("attacc_bank").config.command_rate_bound(power_capped=True)
    assert pam_profile("hbm_pim").config.feed_bytes_per_s == int(hbm)
    ddr = pim_profile("pam_ddr").config.command_rate_bound()
    assert pam_profile("ddr_pim").config.feed_bytes_per_s == int(ddr)
    ssd = 8 * 4 * 16_384 * 10**6 // 30  # channels, dies, page in bytes, tR in us
    assert pam_profile("ssd_pim").config.feed_bytes_per_s == ssd


@pytest.mark.parametrize("name", NAMES)
def test_unit_counts_agree_with_the_design(name):
    device = pam_profile(name).config
    design = get_pim_design(device.design)
    assert (device.units, device.lanes, device.clock_hz) == (design.units, design.lanes, design.clock_hz)


def test_bad_arguments():
    device = pam_profile("hbm_pim").config
    with pytest.raises(ValueError, match="tokens is 0; allowed is an integer from 1"):
        published_attention(device, 0, 1)
    with pytest.raises(ValueError, match="tokens is 0 and heads 1; allowed"):
        rtl_attention(device, 0, 1)
    with pytest.raises(ValueError, match="units is 0; allowed is an integer from 1"):
        replace(device, units=0)
    with pytest.raises(ValueError, match="PIM design is 'none'; allowed"):
        replace(device, design="none")

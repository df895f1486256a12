"""Timings of the DRAM profiles against tables typed in a second time: few of them move a published rate."""

import pytest

from nearkv_sim.hardware.dram.config import dram_profile

# Cycles, in the order of COLUMNS; None where the source gives none.
COLUMNS = (
    "t_cl", "t_rcd_read", "t_rcd_write", "t_rp", "t_ras", "t_rc", "t_ccd_s", "t_ccd_l", "t_ccd_l_write",
)  # fmt: skip
PUBLISHED = {
    "ddr4_2400": (16, 16, 16, 16, 39, 55, 4, 6, 6),  # JESD79-4, bin 2400R
    "ddr4_3200": (22, 22, 22, 22, 52, 74, 4, 8, 8),  # JESD79-4, bin 3200AA
    "ddr5_4800": (36, 36, 36, 36, 77, 113, 8, 12, 48),  # JESD79-5, bin 4800BN
    "hbm2_2000": (14, 14, 12, 14, 34, 48, 2, 4, 4),  # Ramulator 2.1
    "hbm2_2400": (17, 17, 14, 17, 40, 57, 2, 4, 4),  # Ramulator 2.1
    "hbm3_6400": (20, 31, None, 26, 45, 72, 2, 4, 4),  # Ramulator 2.1
    "hbm2_pim_2000": (None, 14, 10, 14, 33, 47, None, 4, 4),  # Samsung PIMSimulator
    "hbm3_5200": (None, 19, 19, 19, 45, None, 2, 4, 4),  # PAM, arXiv 2602.11521, evaluation set-up
}
OTHER = {
    "hbm2_pim_2000": {"t_rrd_s": 4, "t_rrd_l": 6, "t_faw": 16, "t_refi": 3900, "t_rfc": 350},
    "hbm3_5200": {"t_rrd_l": 4, "t_wr": 21, "t_refi": 5070, "t_faw": 39},
}
CLOCK_PS = {"ddr4_2400": 833, "ddr4_3200": 625, "ddr5_4800": 416, "hbm3_6400": 625, "hbm3_5200": 769}


@pytest.mark.parametrize("name", PUBLISHED)
def test_cycles(name):
    config = dram_profile(name).config
    table = dict(zip(COLUMNS, PUBLISHED[name], strict=True)) | OTHER.get(name, {})
    for timing, cycles in table.items():
        assert cycles is None or getattr(config, timing) == cycles, timing


@pytest.mark.parametrize("name", CLOCK_PS)
def test_clocks(name):
    assert int(dram_profile(name).config.clock_ps) == CLOCK_PS[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_relations_that_every_device_keeps(name):
    """Short distances never exceed long ones; refresh every 7.8 us (DDR4) or 3.9 us."""
    config = dram_profile(name).config
    assert config.t_ccd_s <= config.t_ccd_l <= config.t_ccd_l_write
    assert config.t_rrd_s <= config.t_rrd_l
    assert config.t_wtr_s <= config.t_wtr_l
    assert config.t_bl <= config.t_ccd_s
    assert config.t_cwl < config.t_cl
    assert abs(config.t_ras + config.t_rp - config.t_rc) <= 1  # rounded to cycles one by one
    interval_ns = float(config.t_refi * config.clock_ps) / 1000
    assert interval_ns == pytest.approx(7800 if name.startswith("ddr4") else 3900, rel=1e-3)
    assert 260 <= float(config.t_rfc * config.clock_ps) / 1000 <= 410

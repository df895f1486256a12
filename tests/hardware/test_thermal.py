"""FPGA temperature: the exact exponential, throttling with hysteresis, shutdown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.thermal import FpgaThermal, ThermalConfig

CONFIG = ThermalConfig(
    ambient_c=20.0,
    resistance_k_per_w=2.0,
    capacity_j_per_k=5.0,
    throttle_c=90.0,
    release_c=80.0,
    shutdown_c=100.0,
    throttled_clock_share=0.5,
)
SECOND = 10**12


def test_one_time_constant_by_hand():
    thermal = FpgaThermal(CONFIG)
    assert thermal.advance(10 * SECOND, 10.0) == pytest.approx(20 + 20 * (1 - math.exp(-1)))
    assert thermal.advance(1000 * SECOND, 10.0) == pytest.approx(CONFIG.steady_c(10.0)) == pytest.approx(40.0)


def test_cutting_an_interval_changes_nothing():
    whole, cut = FpgaThermal(CONFIG), FpgaThermal(CONFIG)
    whole.advance(7 * SECOND, 12.0)
    for _ in range(7):
        cut.advance(SECOND, 12.0)
    assert cut.temperature_c == pytest.approx(whole.temperature_c, rel=1e-12)


def test_throttles_until_it_has_cooled_below_the_lower_threshold():
    thermal = FpgaThermal(CONFIG)
    thermal.advance(1000 * SECOND, 37.0)  # 94 °C
    assert thermal.throttled
    assert thermal.clock_share == 0.5
    thermal.advance(1000 * SECOND, 32.5)  # 85 °C: between both
    assert thermal.throttled
    thermal.advance(1000 * SECOND, 20.0)
    assert not thermal.throttled
    assert thermal.clock_share == 1.0


def test_a_shut_down_card_cools_and_stays_off():
    thermal = FpgaThermal(CONFIG)
    thermal.advance(1000 * SECOND, 60.0)
    assert thermal.shut_down
    thermal.advance(1000 * SECOND, 60.0)
    assert thermal.temperature_c == pytest.approx(20.0)
    assert thermal.clock_share == 0.0


@pytest.mark.parametrize(("name", "power_w"), [("smartssd_ku15p", 15.0), ("alveo_u50", 50.0)])
def test_named_cards_run_at_their_power_without_throttling(name, power_w):
    config = named_profile("thermal", name, ThermalConfig).config
    assert config.steady_c(power_w) < config.throttle_c


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(CONFIG, release_c=95.0), "allowed: ascending"),
        (lambda: replace(CONFIG, capacity_j_per_k=0.0), "capacity_j_per_k 0.0; allowed: above 0"),
        (lambda: replace(CONFIG, throttled_clock_share=0.0), "throttled_clock_share is 0.0"),
        (lambda: FpgaThermal(CONFIG).advance(-1, 1.0), "time_ps is -1"),
        (lambda: FpgaThermal(CONFIG).advance(1, -1.0), "power_w -1.0"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Attention on PIM stacks: published points, growth with work, bounds, energy, bad configurations."""

import statistics
from dataclasses import replace

import pytest

from nearkv_sim.hardware.pim.attention import decode_attention_ps, stack_attention
from nearkv_sim.hardware.pim.config import pim_profile
from nearkv_sim.validation.check import run_check
from nearkv_sim.validation.pim import checks, our_cycles, table

BANK, GROUP, BUFFER = (
    pim_profile(f"attacc_{level}").config for level in ("bank", "bank_group", "buffer_die")
)


def test_every_sixth_published_point():
    errors = [abs(our_cycles(point) / point.cycles - 1) for point in table()[::6]]
    assert len(errors) == 30
    assert statistics.median(errors) <= 0.05
    assert max(errors) <= 0.12


def test_checks_are_distinct_and_peaks_and_decode_steps_hold():
    every = checks()
    assert len({check.name for check in every}) == len(every)
    chosen = [check for check in every if check.name.startswith(("pim/peak/", "pim/decode/"))]
    assert len(chosen) == 8
    for check in chosen:
        assert run_check(check).ok, check.name


def test_published_mac_counts_are_met_exactly():
    """Also where heads fill the channels unevenly."""
    for point in table()[::9]:
        result = stack_attention(
            pim_profile(f"attacc_{point.level}").config,
            point.tokens,
            point.heads,
            power_capped=point.power_capped,
            as_published=True,
        )
        assert result.counters.macs == point.macs


@pytest.mark.parametrize("config", [BANK, GROUP, BUFFER])
def test_time_grows_with_work(config):
    cycles = [stack_attention(config, tokens, 16).cycles for tokens in (1, 16, 64, 256, 257, 700, 2048)]
    assert cycles == sorted(cycles)
    assert cycles[-1] > 2 * cycles[-2]
    cycles = [stack_attention(config, 256, heads).cycles for heads in (1, 16, 17, 32, 33, 64)]
    assert cycles == sorted(cycles)
    assert cycles[0] == cycles[1]  # sixteen channels work side by side
    assert cycles[1] < cycles[2]


def test_what_makes_it_slower():
    base = stack_attention(BANK, 1024, 32).cycles
    assert stack_attention(BANK, 1024, 32, power_capped=True).cycles > base
    assert stack_attention(replace(BANK, mac_interval=5), 1024, 32).cycles > base
    assert stack_attention(replace(BANK, queue_entries=2), 1024, 32).cycles > base
    assert stack_attention(GROUP, 1024, 32).cycles > 2 * base
    assert stack_attention(BUFFER, 1024, 32).cycles > 2 * stack_attention(GROUP, 1024, 32).cycles
    assert stack_attention(BANK, 1024, 32, element_bytes=1).cycles < base


@pytest.mark.parametrize("name", ["attacc_bank", "attacc_bank_group", "attacc_buffer_die", "aquabolt_xl"])
@pytest.mark.parametrize("capped", [False, True])
def test_below_the_command_rate(name, capped):
    config = pim_profile(name).config
    result = stack_attention(config, 2048, 32, power_capped=capped)
    assert result.bytes_per_s < float(config.command_rate_bound(power_capped=capped))


def test_parts_say_why():
    """Bank level pays for rows; bank groups and buffer die hide them; refresh takes its share of all."""
    shares = {}
    for config in (BANK, GROUP, BUFFER):
        result = stack_attention(config, 4096, 128)
        assert sum(result.parts_cycles.values()) == result.cycles
        shares[config.level] = {name: part / result.cycles for name, part in result.parts_cycles.items()}
    assert shares["bank"]["rows, barriers, moves"] > 0.2
    assert shares["bank_group"]["rows, barriers, moves"] < 0.04
    assert shares["buffer_die"]["rows, barriers, moves"] < 0.04
    for share in shares.values():
        assert 0.08 < share["refresh"] < 456 / 5070  # t_rfc / t_refi
        assert max(share, key=share.get) == "MAC interval"


def test_energy_by_component_and_level():
    results = {config.level: stack_attention(config, 2048, 16) for config in (BANK, GROUP, BUFFER)}
    for result in results.values():
        energy = result.energy
        assert energy.mac_pj == pytest.approx(result.kv_bytes / 2 * 0.32)
        assert energy.array_pj == pytest.approx(result.kv_bytes * 3.52)
        assert energy.interface_pj > 0
        assert energy.total_pj == pytest.approx(
            energy.activate_pj + energy.array_pj + energy.path_pj + energy.interface_pj + energy.mac_pj
        )
    paths = [results[level].energy.path_pj for level in ("bank", "bank_group", "buffer_die")]
    assert paths[0] < paths[1] < paths[2]


def test_decode_step():
    arguments = {"layers": 2, "heads": 96, "batch": 1, "tokens": 512}
    one = decode_attention_ps(BANK, stacks=6, **arguments)
    assert one == 2 * stack_attention(BANK, 512, 16, power_capped=True).time_ps
    assert decode_attention_ps(BANK, stacks=3, **arguments) > one
    assert decode_attention_ps(BANK, stacks=6, **(arguments | {"batch": 8})) > 4 * one


@pytest.mark.parametrize("name", ["stacks", "layers", "heads", "batch"])
def test_decode_step_refuses(name):
    arguments = {"stacks": 1, "layers": 1, "heads": 1, "batch": 1} | {name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0; allowed is an integer from 1"):
        decode_attention_ps(BANK, tokens=16, **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"level": "die"}, "level is 'die'; allowed: bank, bank_group, buffer_die"),
        ({"units_per_channel": 0}, "units_per_channel is 0; allowed is an integer from 1"),
        ({"units_per_channel": 48}, "units_per_channel is 48; allowed: a divisor of 64 banks"),
        ({"units_per_channel": 8}, "units_per_channel is 8; allowed: a divisor of 64 banks"),
        ({"level": "bank_group"}, "units_per_channel is 64; allowed: 16, the bank groups"),
        ({"level": "buffer_die"}, "units_per_channel is 64; allowed: 2, the pseudo-channels"),
        ({"unit_bytes": 48}, "unit_bytes is 48; allowed: multiples of an access, 32"),
        ({"mac_interval_capped": 3}, "mac_interval_capped is 3; allowed is an integer from 4"),
        ({"mac_pj": 0.0}, "mac_pj is 0.0; allowed: a finite number above 0"),
        ({"dram": "sram"}, "dram profile is 'sram'; allowed: ddr4_2400"),
    ],
)
def test_bad_configurations(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(BANK, **changes)


def test_bad_heads():
    with pytest.raises(ValueError, match="heads is 0; allowed is an integer from 1"):
        stack_attention(BANK, 16, 0)

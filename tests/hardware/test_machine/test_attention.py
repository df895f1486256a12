"""Attention of a decode step, and the state that work leaves behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.machine import machine_names, open_machine
from nearkv_sim.hardware.machine_attention import attention_step
from nearkv_sim.hardware.machine_report import BLOCK_PAGE_BYTES, describe_endless
from nearkv_sim.hardware.machine_state import MachineState
from nearkv_sim.hardware.machine_step import decode_time
from nearkv_sim.hardware.model_shapes import named_model
from nearkv_sim.hardware.wear import DriveWear

GIB = 2**30
LLAMA_13B = named_model("llama_13b").config
MIB_128 = 128 << 20


def test_a_bigger_fast_tier_shortens_the_step(changed):
    small = changed("68_719_476_736", "34_359_738_368")
    slow = attention_step(open_machine(str(small)), LLAMA_13B, 36_000, 4).timing
    fast = attention_step(open_machine("hillinfer"), LLAMA_13B, 36_000, 4).timing
    assert slow.time_ps > 1.3 * fast.time_ps
    assert slow.nbytes == fast.nbytes == LLAMA_13B.kv_bytes(36_000, 4)


def test_near_data_scoring_moves_less_and_takes_less_time(hillinfer):
    near = attention_step(hillinfer, LLAMA_13B, 36_000, 4)
    moved = attention_step(hillinfer, LLAMA_13B, 36_000, 4, near_data=False)
    assert near.timing.time_ps < moved.timing.time_ps / 2
    assert near.timing.busy_ps["smartssd_link"] < moved.timing.busy_ps["smartssd_link"] / 5


@pytest.mark.parametrize(("dtype", "code_share"), [("fp32", 8), ("fp16", 4), ("int8", 2)])
def test_a_key_code_is_a_byte_whatever_the_cache_holds(hillinfer, dtype, code_share):
    step = attention_step(hillinfer, replace(LLAMA_13B, dtype=dtype), 36_000, 8)
    (stored,) = (share.kv_bytes for share in step.shares if share.tier == "nand")
    assert stored > 0
    assert step.timing.busy_ps["fpga"] == hillinfer.scan("fpga", stored // code_share).busy_ps["fpga"]


def test_a_card_scores_the_codes_of_drives_alone(changed):
    machine = open_machine(str(changed("  - {name: cpu, profile: cpu/xeon_8352v, tier: host_memory}\n", "")))
    how = {share.tier: share.how for share in attention_step(machine, LLAMA_13B, 36_000, 4).shares}
    assert how["nand"].startswith("scored by")
    assert how["host_memory"] == "moved"


def test_selecting_more_takes_longer(hillinfer):
    few = attention_step(hillinfer, LLAMA_13B, 36_000, 4, select_fraction=0.05)
    many = attention_step(hillinfer, LLAMA_13B, 36_000, 4, select_fraction=0.5)
    assert few.timing.time_ps < many.timing.time_ps


@pytest.mark.parametrize("name", machine_names())
def test_placement_and_bounds_hold(name):
    machine = open_machine(name)
    for shape, context, batch in ((LLAMA_13B, 4096, 8), (named_model("smollm2_135m").config, 8192, 1)):
        step = attention_step(machine, shape, context, batch)
        assert sum(share.kv_bytes for share in step.shares) == shape.kv_bytes(context, batch)
        assert sum(share.weight_bytes for share in step.shares) == shape.weight_bytes
        for share in step.shares:
            tier = machine.description.tier(share.tier)
            assert share.kv_bytes + share.weight_bytes <= tier.capacity_bytes
        assert step.timing.time_ps >= max(step.timing.busy_ps.values())
        assert step.timing.why in step.timing.busy_ps
        assert all(share.joules >= 0 for share in step.energy)


def test_two_runs_agree():
    once, again = (attention_step(open_machine("hillinfer"), LLAMA_13B, 36_000, 4) for _ in range(2))
    assert once == again


def test_pim_attends_in_place_faster_than_moving():
    shape = named_model("opt_175b").config
    near = decode_time(open_machine("pam"), shape, 2048, 256)
    moved = decode_time(open_machine("pam"), shape, 2048, 256, near_data=False)
    assert near.attention.timing.time_ps < moved.attention.timing.time_ps
    assert near.link_ps == 0 < moved.link_ps
    assert near.rest == moved.rest
    assert near.rest.time_ps > 0


def test_weights_that_do_not_fit_are_moved_every_step(hillinfer):
    step = decode_time(hillinfer, LLAMA_13B, 4096, 1)
    spilled = LLAMA_13B.weight_bytes - 24 * GIB
    assert step.attention.shares[1].weight_bytes == spilled > 0
    assert step.weights_ps == hillinfer.transfer("host_memory", "gpu_memory", spilled).time_ps
    assert step.time_ps == step.attention.timing.time_ps + step.rest.time_ps + step.weights_ps


def test_a_hot_card_scans_slower_and_one_that_shut_down_not_at_all():
    machine = open_machine("hillinfer")
    state = MachineState(machine)
    cool = machine.scan("fpga", MIB_128)
    state.spend(cool)
    assert state.now_ps == cool.time_ps
    thermal = machine.unit("fpga").thermal
    assert thermal.temperature_c > thermal.config.ambient_c
    thermal.advance(3600 * PS_PER_S, 20.0)
    assert thermal.throttled
    launch_ps = machine.unit("fpga").config.launch_latency_ps
    hot = machine.scan("fpga", MIB_128)
    cool_ps, hot_ps = (timing.busy_ps["fpga"] - launch_ps for timing in (cool, hot))
    assert hot_ps == pytest.approx(2 * cool_ps, rel=1e-6)
    assert hot.time_ps > 1.9 * cool.time_ps
    thermal.advance(3600 * PS_PER_S, 40.0)
    with pytest.raises(ValueError, match="fpga has shut down"):
        machine.scan("fpga", 1)


def test_writes_of_a_tier_are_shared_by_its_drives():
    machine = open_machine("pam")
    state = MachineState(machine)
    state.write("ssd_pim", 8 << 20, 16384, random=False)
    assert state.drives["ssd_pim"].host_bytes == 1 << 20
    state.now_ps = PS_PER_S
    once = state.life_years("ssd_pim")
    state.write("ssd_pim", 8 << 20, 512, random=True)
    assert state.life_years("ssd_pim") < once / 30
    with pytest.raises(ValueError, match="tier is 'hbm_pim'; allowed: ssd_pim"):
        state.write("hbm_pim", 1, 1, random=False)


def test_decoding_without_end_counts_whole_steps(hillinfer):
    """All of a step passes between two rows, not only its attention."""
    step = decode_time(hillinfer, LLAMA_13B, 36_000, 4)
    assert step.time_ps > step.attention.timing.time_ps
    found = describe_endless(hillinfer, LLAMA_13B, 4, step)
    wear = DriveWear(hillinfer.memories["nand"])
    wear.write(4 * LLAMA_13B.kv_bytes_per_token, BLOCK_PAGE_BYTES, random=False)
    assert found["drive_life_years"]["nand"]["whole blocks"] == wear.projected_life_years(step.time_ps)
    fpga = hillinfer.unit("fpga")
    share = step.attention.timing.busy_ps["fpga"] / step.time_ps
    power_w = fpga.config.idle_power_w + share * (fpga.config.active_power_w - fpga.config.idle_power_w)
    assert found["card_c"]["fpga"] == round(fpga.thermal.config.steady_c(power_w), 1)


def test_a_drive_without_kv_does_not_wear(hillinfer):
    step = decode_time(hillinfer, LLAMA_13B, 2048, 1)
    assert describe_endless(hillinfer, LLAMA_13B, 1, step)["drive_life_years"] == {}

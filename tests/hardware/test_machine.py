"""Machines: files, transfers, scans, attention of a step, and what makes time move."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nearkv import machine as host
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.golden.reduction_timing import attention_timing
from nearkv_sim.golden.scorer_timing import job_cycles
from nearkv_sim.hardware import machine_drives
from nearkv_sim.hardware.dram.config import dram_profile
from nearkv_sim.hardware.dram.stream import scan
from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.machine import MACHINE_FOLDER, ModelMachine, machine_names, open_machine
from nearkv_sim.hardware.machine_attention import attention_step
from nearkv_sim.hardware.machine_devices import MemoryConfig, PathConfig, PcieStage, memory_stage, path_stage
from nearkv_sim.hardware.machine_report import SIZES_BYTES
from nearkv_sim.hardware.machine_stage import RateStage
from nearkv_sim.hardware.machine_state import MachineState
from nearkv_sim.hardware.machine_step import decode_time
from nearkv_sim.hardware.model_shapes import named_model
from nearkv_sim.hardware.pcie import PRESETS, PcieLink
from nearkv_sim.hardware.pcie_fabric import PeerConfig
from nearkv_sim.hardware.pim_units import published_attention
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.direct_io import HostIoConfig
from nearkv_sim.hardware.ssd.workloads import peer_transfer_ps
from nearkv_sim.hardware.wear import DriveConfig

GIB = 2**30
LLAMA_13B = named_model("llama_13b").config
MIB_128 = 128 << 20
HILLINFER = (MACHINE_FOLDER / "hillinfer.yaml").read_text(encoding="utf-8")


def changed(tmp_path: Path, old: str, new: str) -> Path:
    assert old in HILLINFER
    path = tmp_path / "mine.yaml"
    path.write_text(HILLINFER.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def hillinfer() -> ModelMachine:
    return open_machine("hillinfer")


# Files.


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_opens_and_no_transfer_beats_its_slowest_part(name):
    machine = open_machine(name)
    tiers = [tier.name for tier in machine.description.tiers]
    for source in tiers:
        for target in tiers:
            if source == target:
                continue
            stages = machine.stages(source, target)
            bound = min(stage.count * stage.bound_bytes_per_s for stage in stages)
            times = [machine.transfer(source, target, nbytes) for nbytes in SIZES_BYTES]
            assert all(timing.bytes_per_s <= bound for timing in times)
            assert [timing.time_ps for timing in times] == sorted(timing.time_ps for timing in times)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tiers:", "tier:", "unknown key 'tier'"),
        (
            "capacity_bytes: 25_769_803_776}",
            "capacity_bytes: 25_769_803_777}",
            "capacity_bytes of gpu_memory is 2",
        ),
        ("capacity_bytes: 25_769_803_776}", "capacity_bytes: 0}", "capacity_bytes of gpu_memory is 0"),
        ("capacity_bytes: 25_769_803_776}", "capacity_bytes: 24 GiB}", "capacity_bytes is '24 GiB'"),
        ("capacity_bytes: 25_769_803_776}", "capacity_bytes: 1, colour: red}", "unknown key 'colour'"),
        ("kind: gpu_memory", "kind: magic", "kind is 'magic'; allowed: gpu_memory, host_memory"),
        ("{name: gpu_memory,", "{name: nand,", "name 'nand' is given 2 times"),
        ("tier: gpu_memory}", "tier: gpu}", "tier of gpu is 'gpu'; allowed: gpu_memory, host_memory"),
        ("outer: nand,", "outer: nowhere,", "outer of peer_to_peer is 'nowhere'"),
        ("outer: nand,", "outer: card_memory,", "is 'card_memory', like inner"),
        ("outer: gpu_memory,", "outer: nand,", "links do not join gpu_memory and host_memory"),
        (
            "shares: smartssd_link",
            "shares: nvme",
            "shares of nvme is 'nvme'; allowed: gpu_link, smartssd_link",
        ),
        (
            "outer: nand, profile: path/smartssd_p2p",
            "outer: host_memory, profile: path/smartssd_p2p",
            "is no drive",
        ),
        (
            "profile: gpu/rtx_4090",
            "profile: gpu/rtx_1",
            "profile of gpu: gpu profile is 'rtx_1'; allowed: a100",
        ),
        ("profile: gpu/rtx_4090", "profile: tpu/v5", "profile of gpu is 'tpu/v5'; allowed kinds: gpu, cpu"),
        (
            "profile: path/pcie_gen4_x16",
            "profile: drive/pm983_3840",
            "profile of gpu_link is 'drive/pm983_3840'",
        ),
        ("profile: memory/gddr6x_rtx_4090", "profile: memory", "profile of gpu_memory is 'memory'"),
        ("tier: host_memory}", "tier: host_memory, count: 0}", "count of cpu is 0"),
        ("description:", "description: x\ndescription:", "'description' is given twice"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path, old, new, message):
    path = changed(tmp_path, old, new)
    with pytest.raises(ValueError, match=r"mine\.yaml") as caught:
        open_machine(str(path))
    assert message in str(caught.value)


def test_a_file_of_ones_own_is_opened_through_the_host_interface(tmp_path):
    machine = host.open_machine(str(changed(tmp_path, "gpu_link", "my_link")))
    assert isinstance(machine, host.Machine)
    assert machine.name == "mine"
    assert host.open_machine("hillinfer").description == host.read_machine(MACHINE_FOLDER / "hillinfer.yaml")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: host.open_machine("cray"), "machine is 'cray'; allowed: dgx_h100, hillinfer"),
        (lambda: host.open_machine("hillinfer", "magic"), "machines of kind 'magic'; allowed: model"),
        (lambda: open_machine("hillinfer").transfer("nand", "nand", 1), "target is 'nand', like source"),
        (
            lambda: open_machine("hillinfer").transfer("nand", "tape", 1),
            "tier is 'tape'; allowed: gpu_memory",
        ),
        (lambda: open_machine("hillinfer").transfer("nand", "gpu_memory", 0), "nbytes is 0"),
        (lambda: open_machine("hillinfer").scan("dpu", 1), "processor is 'dpu'; allowed: gpu, cpu, fpga"),
        (
            lambda: attention_step(open_machine("pam"), LLAMA_13B, 1, 1, select_fraction=0),
            "select_fraction is 0",
        ),
        (
            lambda: attention_step(open_machine("pam_deployment"), named_model("opt_175b").config, 1, 1),
            "without a place on pam_deployment",
        ),
        (lambda: MemoryConfig(capacity_bytes=1, latency_ps=1), "allowed: a DRAM, or both figures"),
        (lambda: MemoryConfig(capacity_bytes=1, latency_ps=0, dram="ddr4_3200"), "latency_ps is 0"),
        (lambda: MemoryConfig(capacity_bytes=1, latency_ps=1, dram="ddr9"), "dram profile is 'ddr9'"),
        (lambda: PathConfig(pj_per_byte=1.0), "kinds of link are none"),
        (lambda: PathConfig(pj_per_byte=1.0, pcie_preset="gen9"), "pcie_preset is 'gen9'"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Transfers and scans.


def test_transfer_by_hand():
    """A pipeline of 4 KiB pieces: the slowest stage for all, the others for one piece."""
    stages = [RateStage("a", 1, 1.0, 100, PS_PER_S), RateStage("b", 1, 1.0, 7, PS_PER_S // 2)]
    assert [stage.time_ps(8192) for stage in stages] == [8292, 16391]
    machine = open_machine("hillinfer")
    machine.stages = lambda *_: stages
    timing = machine.transfer("nand", "gpu_memory", 8192)
    assert timing.time_ps == 16391 + 100 + 4096
    assert timing.why == "b"


@pytest.mark.parametrize("outward", [False, True])
@pytest.mark.parametrize("preset", ["smartssd", "gen4_x16"])
def test_long_transfers_go_on_as_the_packets_would(preset, outward):
    nbytes = 8 << 20
    link = PcieLink(PRESETS[preset])
    move = link.device_read if outward else link.device_write
    stage = PcieStage("link", 1, 1.0, PRESETS[preset], outward)
    assert stage.time_ps(nbytes) == pytest.approx(move(0, 1 << 32, nbytes), rel=1e-4)


@pytest.mark.parametrize("write", [False, True])
def test_long_drive_transfers_go_on_as_commands_would(write):
    """The drive's data-sheet rate, once its buffer is full."""
    drive = named_profile("drive", "pm983", DriveConfig).config
    stage = memory_stage("nand", 1, drive, write=write)
    nbytes = 1 << 30
    published = drive.write_bandwidth_bytes_per_s if write else drive.read_bandwidth_bytes_per_s
    assert nbytes * PS_PER_S / stage.time_ps(nbytes) > published
    longer = stage.time_ps(2 * nbytes) - stage.time_ps(nbytes)
    assert write is (nbytes * PS_PER_S / longer == pytest.approx(published, rel=0.15))
    assert stage.time_ps(96 << 20) == pytest.approx(
        machine_drives.sequential_ps(drive.config, 96 << 20, write=write), rel=0.02
    )


def test_memory_tiers_are_simulated_dram_but_two():
    origins = {
        tier.profile: machine.memories[tier.name].origin
        for machine in map(open_machine, machine_names())
        for tier in machine.description.tiers
    }
    sheets = {profile for profile, origin in origins.items() if origin == "data sheet"}
    assert sheets == {"memory/gddr6x_rtx_4090", "memory/hbm2_alveo_u50"}
    machine = open_machine("pam")
    timing = machine.transfer("ddr_pim", "hbm_pim", 40 << 20)
    assert timing.busy_ps["ddr_pim"] == 60_000 + scan(dram_profile("ddr4_3200").config, 1 << 20).time_ps


def test_pim_units_take_the_slower_of_own_and_published():
    unit = open_machine("pam").unit("ddr_units")
    times = unit.attention_ps(2048, 640, 128)
    own = attention_timing(unit.design, 2048, 16, Merge.EXACT).cycles * PS_PER_S // unit.design.clock_hz
    published = published_attention(unit.device, 2048, 16)
    assert times["ddr_units"] == pytest.approx(own, abs=1)
    assert times[f"ddr_units: {published.bound}"] == published.time_ps


def test_a_peer_link_is_the_drive_models_own_transfer():
    machine = open_machine("hillinfer")
    timing = machine.transfer("nand", "card_memory", 1 << 20)
    assert set(timing.busy_ps) == {"peer_to_peer"}
    drive = machine.memories["nand"].config
    peer = named_profile("peer", "smartssd", PeerConfig).config
    host_io = named_profile("host_io", "linux_p2p", HostIoConfig).config
    cold = replace(drive, read_buffer_bytes=0)
    assert timing.time_ps == peer_transfer_ps(cold, peer, host_io, 1 << 20, write=False)


def test_links_that_share_wires_are_one_resource():
    machine = open_machine("hillinfer")
    assert "smartssd_link" in machine.transfer("nand", "host_memory", 4096).busy_ps
    assert "nvme" not in machine.transfer("nand", "host_memory", 4096).busy_ps


def test_two_devices_halve_the_time():
    config = named_profile("path", "nvlink4", PathConfig).config
    one = path_stage("x", 1, config, outward=True).time_ps(2 * MIB_128)
    two = path_stage("x", 2, config, outward=True).time_ps(2 * MIB_128)
    assert one == pytest.approx(2 * two, rel=0.01)


@pytest.mark.parametrize("blocks", [1, 2, 63, 64, 65, 200])
def test_scorer_time_is_the_formulas_that_the_rtl_confirms(hillinfer, blocks):
    unit = hillinfer.unit("fpga")
    design = unit.design
    cycles = job_cycles(design, [256] * blocks, [KeyFormat.INT8] * blocks)
    assert unit.job_ps(blocks) == -(-cycles * PS_PER_S // design.clock_hz)


def test_a_slower_link_and_an_injected_latency_show(tmp_path, hillinfer):
    def host_to_card(machine):
        return machine.transfer("host_memory", "card_memory", MIB_128).time_ps

    faster = open_machine(str(changed(tmp_path, "pcie_gen3_x4", "pcie_gen4_x4")))
    assert host_to_card(hillinfer) == pytest.approx(2 * host_to_card(faster), rel=0.01)
    late = open_machine("hillinfer")
    late.memories["host_memory"] = replace(late.memories["host_memory"], latency_ps=5_000_000)
    added_ps = 5_000_000 - hillinfer.memories["host_memory"].latency_ps
    assert host_to_card(late) - host_to_card(hillinfer) == added_ps


# Attention.


def test_a_bigger_fast_tier_shortens_the_step(tmp_path):
    small = changed(tmp_path, "68_719_476_736", "34_359_738_368")
    slow = attention_step(open_machine(str(small)), LLAMA_13B, 36_000, 4).timing
    fast = attention_step(open_machine("hillinfer"), LLAMA_13B, 36_000, 4).timing
    assert slow.time_ps > 1.3 * fast.time_ps
    assert slow.nbytes == fast.nbytes == LLAMA_13B.kv_bytes(36_000, 4)


def test_near_data_scoring_moves_less_and_takes_less_time(hillinfer):
    near = attention_step(hillinfer, LLAMA_13B, 36_000, 4)
    moved = attention_step(hillinfer, LLAMA_13B, 36_000, 4, near_data=False)
    assert near.timing.time_ps < moved.timing.time_ps / 2
    assert near.timing.busy_ps["smartssd_link"] < moved.timing.busy_ps["smartssd_link"] / 5


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


# State.


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


def test_origins_tell_own_from_published(hillinfer):
    origins = {name: unit.origin.partition(":")[0] for name, unit in hillinfer.units.items()}
    assert origins == {"gpu": "published", "cpu": "published", "fpga": "own"}
    assert "own" in open_machine("pam").unit("hbm_units").origin


def test_energy_of_a_simulated_memory_is_that_of_its_commands():
    """O'Connor et al.: 0.11 + 0.44 + 1.01 + 1.23 + 0.5 + 0.3 pJ/bit."""
    assert open_machine("pam").memories["hbm_pim"].pj_per_byte == pytest.approx(3.59 * 8)
    assert open_machine("hillinfer").memories["gpu_memory"].pj_per_byte == 58.0

"""Machine files: what opens, what is refused and how."""

from __future__ import annotations

import pytest

from nearkv import machine as host
from nearkv_sim.hardware.machine import MACHINE_FOLDER, machine_names, open_machine
from nearkv_sim.hardware.machine_attention import attention_step
from nearkv_sim.hardware.machine_devices import MemoryConfig, PathConfig
from nearkv_sim.hardware.machine_report import SIZES_BYTES
from nearkv_sim.hardware.model_shapes import named_model

LLAMA_13B = named_model("llama_13b").config


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
            for tier in map(machine.description.tier, (source, target)):
                bound = min(bound, tier.count * machine.memories[tier.name].peak_bytes_per_s)
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
def test_a_bad_file_is_refused_by_name(changed, old, new, message):
    path = changed(old, new)
    with pytest.raises(ValueError, match=r"mine\.yaml") as caught:
        open_machine(str(path))
    assert message in str(caught.value)


def test_a_file_of_ones_own_is_opened_through_the_host_interface(changed):
    machine = host.open_machine(str(changed("gpu_link", "my_link")))
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

"""Transfers and scans: by hand, against the models below, and what makes time move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.golden.reduction_timing import attention_timing
from nearkv_sim.golden.scorer_timing import job_cycles
from nearkv_sim.hardware import machine_drives
from nearkv_sim.hardware.dram.config import dram_profile
from nearkv_sim.hardware.dram.stream import scan
from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.machine import machine_names, open_machine
from nearkv_sim.hardware.machine_devices import PathConfig, PcieStage, memory_stage, path_stage
from nearkv_sim.hardware.machine_stage import RateStage
from nearkv_sim.hardware.pcie import PRESETS, PcieLink
from nearkv_sim.hardware.pcie_fabric import PeerConfig
from nearkv_sim.hardware.pim_units import published_attention
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.direct_io import HostIoConfig
from nearkv_sim.hardware.ssd.workloads import peer_transfer_ps
from nearkv_sim.hardware.wear import DriveConfig

MIB_128 = 128 << 20


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


def test_a_slower_link_and_an_injected_latency_show(changed, hillinfer):
    def host_to_card(machine):
        return machine.transfer("host_memory", "card_memory", MIB_128).time_ps

    faster = open_machine(str(changed("pcie_gen3_x4", "pcie_gen4_x4")))
    assert host_to_card(hillinfer) == pytest.approx(2 * host_to_card(faster), rel=0.01)
    late = open_machine("hillinfer")
    late.memories["host_memory"] = replace(late.memories["host_memory"], latency_ps=5_000_000)
    added_ps = 5_000_000 - hillinfer.memories["host_memory"].latency_ps
    assert host_to_card(late) - host_to_card(hillinfer) == added_ps


def test_origins_tell_own_from_published(hillinfer):
    origins = {name: unit.origin.partition(":")[0] for name, unit in hillinfer.units.items()}
    assert origins == {"gpu": "published", "cpu": "published", "fpga": "own"}
    assert "own" in open_machine("pam").unit("hbm_units").origin


def test_energy_of_a_simulated_memory_is_that_of_its_commands():
    """O'Connor et al.: 0.11 + 0.44 + 1.01 + 1.23 + 0.5 + 0.3 pJ/bit."""
    assert open_machine("pam").memories["hbm_pim"].pj_per_byte == pytest.approx(3.59 * 8)
    assert open_machine("hillinfer").memories["gpu_memory"].pj_per_byte == 58.0

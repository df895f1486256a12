"""The whole kernel between a host and a memory, equal to the card model to the bit; its ports and limits."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from nearkv_hdl.bus.axi_reader import AxiReader
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.top.kernel import MODULE_NAME, Kernel
from nearkv_hdl.top.result_writer import ResultWriter
from nearkv_hdl.verilog import flat_ports, to_rtlil
from nearkv_sim.benches.kernel_designs import DESIGNS
from nearkv_sim.cosim.runner import run_bench
from nearkv_sim.cosim.simulators import available_simulators
from nearkv_sim.packaging import kernel as package

BENCH = "nearkv_sim.benches.kernel_bench"


@pytest.mark.parametrize("name", ["narrow", "wide", "banks"])
def test_kernel(name):
    result = run_bench(
        Kernel(DESIGNS[name]),
        BENCH,
        name=f"kernel-{name}",
        simulator=available_simulators()[0],
        seed=31,
        parameters={"design": name},
    )
    assert len(result.passed) == 9


def rates(name):
    """Key beats per cycle by place of the blocks, with memories that give three beats in four cycles."""
    result = run_bench(
        Kernel(DESIGNS[name]),
        f"{BENCH.removesuffix('_bench')}_masters_bench",
        name=f"kernel-{name}",
        simulator=available_simulators()[0],
        seed=32,
        parameters={"design": name},
    )
    assert result.passed == ("keys_through_slow_ports",)
    return result.report


def test_one_key_master_is_as_fast_as_its_port():
    found = rates("one_master")
    # Headers, codes and descriptors share the port: 6 beats beside the 256 of a block.
    assert found == {"all in bank 0": pytest.approx(0.75 * 256 / 262, abs=0.005)}


def test_two_key_masters_keep_the_lanes_busy():
    found = rates("banks")
    assert found["alternating"] >= 0.99
    assert found["in pairs"] >= 0.99
    assert found["all in bank 0"] == pytest.approx(0.75 * 256 / 262, abs=0.005)
    assert found["all in bank 1"] == pytest.approx(0.75, abs=0.005)


ADDRESS = {"id", "addr", "len", "size", "burst", "cache", "prot", "valid", "ready"}
CHANNELS = {
    "AR": ADDRESS,
    "R": {"id", "data", "resp", "last", "valid", "ready"},
    "AW": ADDRESS,
    "W": {"data", "strb", "last", "valid", "ready"},
    "B": {"id", "resp", "valid", "ready"},
}
FOUR_MASTERS = replace(DESIGNS["banks"], name="four", key_masters=4)


@pytest.mark.parametrize("design", [*map(get_design, package.CARDS), FOUR_MASTERS], ids=lambda one: one.name)
def test_ports_are_those_of_the_package(design):
    kernel = Kernel(design)
    assert MODULE_NAME == package.KERNEL_MODULE
    assert to_rtlil(kernel, name=MODULE_NAME)
    names = set(flat_ports(kernel))
    pins = {package.CLOCK, package.RESET, package.INTERRUPT}
    assert names >= pins
    buses = (package.CONTROL, *package.memory_ports(design.key_masters))
    assert {name.rpartition("_")[0] for name in names - pins} == set(buses)
    assert len(buses) == 1 + design.key_masters
    assert len(kernel.m_axi_gmem.wdata) == 512
    # Further masters only read.
    written = {name.rpartition("_")[0] for name in names if name.endswith("_wdata")}
    assert written == {package.CONTROL, package.MEMORY}


def test_memory_ports_are_as_the_page_has_them():
    page = (Path(__file__).parents[2] / "docs" / "kernel.md").read_text(encoding="utf-8")
    section = page.partition("## Its memory ports\n")[2].partition("\n## ")[0]
    kernel = Kernel(DESIGNS["banks"])
    reader, writer = AxiReader(64), ResultWriter(get_design("alveo_u50"))
    assert all(to_rtlil(component) for component in (kernel, reader, writer))
    rows = dict(re.findall(r"^\| `(m_axi_gmem1?)`.* \| ([A-Z, ]+) \|$", section, re.MULTILINE))
    assert rows.keys() == set(package.memory_ports(2))
    for port, channels in rows.items():
        bus = getattr(kernel, port)
        names = set(bus.signature.members)
        signals = {channel + signal for channel in channels.split(", ") for signal in CHANNELS[channel]}
        assert names == {signal.lower() for signal in signals}
        assert {len(getattr(bus, name)) for name in names & {"arid", "rid", "awid", "bid"}} == {1}
    addresses = section.partition("**Signals.** ")[2].partition(" of AR and AW")[0]
    assert set(re.findall(r"`(\w+)`", addresses)) == CHANNELS["AR"]
    assert f"of 1 to {reader.burst_beats} beats" in section
    assert f"of writes 1 to {writer.chunk_beats} on a 64-byte bus" in section
    assert f"reads of {reader.outstanding} bursts" in section
    assert f"on each further port {reader.outstanding} reads" in section


def test_what_it_cannot_be_built_for():
    with pytest.raises(ValueError, match="bus_bytes is 128; allowed: up to 64"):
        Kernel(replace(get_design("smartssd_ku15p"), bus_bytes=128))
    short = replace(DESIGNS["wide"], block_tokens=8, head_dims=(64,), topk=None)
    with pytest.raises(ValueError, match="block_tokens is 8 with bus_bytes 64; allowed: a multiple of 16"):
        Kernel(short)

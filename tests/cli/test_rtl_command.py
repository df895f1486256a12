"""`nearkv rtl`: the folder it writes, and what it refuses."""

from __future__ import annotations

import json

import pytest

from nearkv import cli
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_sim.commands import rtl
from nearkv_sim.packaging.files import package_files

FILES = {
    "README.md",
    "i_block.hex",
    "i_keys.hex",
    "i_query.hex",
    "o_scores.hex",
    "replay.json",
    "scorer.v",
    "testbench.v",
}


@pytest.fixture
def nearkv_rtl(monkeypatch):
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"rtl": rtl.COMMAND})
    return lambda *words: cli.main(["rtl", *map(str, words)])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_arguments_give_equal_bytes(nearkv_rtl, tmp_path):
    for name, seed in (("a", 5), ("deep/b", 5), ("c", 6)):
        arguments = ("--design", "tiny", "--blocks", 4, "--seed", seed, "-o", tmp_path / name)
        assert nearkv_rtl(*arguments) == 0
    first, second, other = (contents(tmp_path / name) for name in ("a", "deep/b", "c"))
    assert set(first) == FILES
    assert first == second
    changed = {name for name in FILES if first[name] != other[name]}
    assert {"i_block.hex", "i_keys.hex", "i_query.hex", "o_scores.hex", "README.md", "replay.json"} == changed
    assert str(tmp_path).encode() not in b"".join(first.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "deep"]


def test_a_cards_kernel_has_its_package_beside_the_verilog(nearkv_rtl, tmp_path):
    design = DESIGNS["smartssd_ku15p"]
    assert nearkv_rtl("--design", design.name, "--blocks", 1, "-o", tmp_path / "out") == 0
    package = package_files(design)
    assert {name: (tmp_path / "out" / name).read_text() for name in package} == package
    kernel = {"nearkv_kernel.v", "nearkv_kernel.core"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES | kernel | {"package"}
    assert "`nearkv_kernel.v`" in (tmp_path / "out" / "README.md").read_text()
    ports = (
        (tmp_path / "out" / "nearkv_kernel.v")
        .read_text()
        .partition("module nearkv_kernel(")[2]
        .partition(")")[0]
    )
    assert {"ap_clk", "ap_rst_n", "interrupt", "s_axi_control_awaddr", "m_axi_gmem_araddr"} <= {
        name.strip() for name in ports.split(",")
    }


def test_native_pcie_is_written_whole(nearkv_rtl, tmp_path):
    assert nearkv_rtl("--design", "native_pcie", "--blocks", 1, "-o", tmp_path / "out") == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES | {"nearkv_native_pcie.v"}
    top = (tmp_path / "out" / "nearkv_native_pcie.v").read_text().partition("module nearkv_native_pcie(")[2]
    ports = {name.strip() for name in top.partition(")")[0].split(",")}
    assert {"user_clk", "user_reset", "s_axis_cq_tdata", "m_axis_rq_tuser", "cfg_max_payload"} <= ports


def test_the_description_tells_seed_and_streams(nearkv_rtl, tmp_path):
    arguments = ("--design", "ulx3s_85f", "--blocks", 4, "--seed", 9, "-o", tmp_path / "out")
    assert nearkv_rtl(*arguments) == 0
    described = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert (described["design"], described["seed"]) == ("ulx3s_85f", 9)
    assert {(block["head_dim"], block["key_format"]) for block in described["blocks"]} == {
        (64, "INT8"),
        (64, "INT4"),
        (128, "INT8"),
        (128, "INT4"),
    }
    for stream in described["streams"]:
        lines = (tmp_path / "out" / stream["file"]).read_text().splitlines()
        assert len(lines) == stream["beats"]
        assert {len(line) for line in lines} == {-(-stream["width_bits"] // 4)}
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "seed 9" in readme
    assert "iverilog" in readme
    assert "verilator" in readme


def test_a_pim_device_is_written_the_same_way(nearkv_rtl, tmp_path):
    arguments = ("--design", "tiny_pim", "--heads", 2, "--unit-tokens", 3, "--merge", "exponential")
    for name in ("a", "b"):
        assert nearkv_rtl(*arguments, "-o", tmp_path / name) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    described = json.loads((tmp_path / "a" / "replay.json").read_text())
    assert (described["design"], described["merge"]) == ("tiny_pim", "exponential")
    assert (described["heads"], described["unit_tokens"]) == (["fp16", "int8"], 3)
    streams = {stream["name"]: stream for stream in described["streams"]}
    assert {name for name in streams if name.startswith("o_")} == {"o_output", "o_maximum"}
    # Query, three keys, three values; an INT8 row takes half the beats.
    assert streams["i_rows_3"]["beats"] == (4 + 2 * 3 * 4) + (4 + 2 * 3 * 2)
    for stream in streams.values():
        lines = (tmp_path / "a" / stream["file"]).read_text().splitlines()
        assert len(lines) == stream["beats"]
        assert {len(line) for line in lines} == {-(-stream["width_bits"] // 4)}
    assert "pim_device.v" in (tmp_path / "a" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--design", "huge"), f"design is 'huge'; allowed: {', '.join([*DESIGNS, *PIM_DESIGNS])}\n"),
        (("--design", "tiny_pim", "--heads", 0), "heads is 0; allowed: from 1"),
        (("--design", "tiny_pim", "--unit-tokens", 9), "unit_tokens is 9; design tiny_pim allows: 1 to 8"),
        (("--design", "tiny_pim", "--seed", -1), "seed is -1; allowed: from 0"),
        (("--design", "tiny_pim", "--blocks", 3), "blocks is 3 with PIM design tiny_pim; allowed for it: "),
        (
            ("--design", "tiny", "--merge", "exact"),
            "merge is exact with scorer design tiny; allowed for ",
        ),
        (
            ("--design", "hbm_pim", "--heads", 9, "--unit-tokens", 256),
            "heads is 9; design hbm_pim allows: 1 to 8 with unit_tokens 256",
        ),
        (
            ("--design", "tiny_pim", "--heads", 10**12),
            "heads is 1000000000000; design tiny_pim allows: 1 to ",
        ),
        (("--design", "tiny", "--blocks", 0), "blocks is 0; allowed: 1 to 1024"),
        (("--design", "tiny", "--blocks", 10**12), "blocks is 1000000000000; allowed: 1 to 1024"),
        (("--design", "tiny", "--seed", -1), "seed is -1; allowed: from 0"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(nearkv_rtl, tmp_path, capsys, arguments, message):
    assert nearkv_rtl(*arguments, "-o", tmp_path / "new" / "out") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"nearkv rtl: error: {message}")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused(nearkv_rtl, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert nearkv_rtl("--design", "tiny", "-o", tmp_path / "out") == 2
    assert "exists; allowed: a new folder" in capsys.readouterr().err
    assert list((tmp_path / "out").iterdir()) == []

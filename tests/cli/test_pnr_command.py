"""`nearkv pnr`: seeds, cache, records and refusals, with nextpnr's part played by a table."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from nearkv import cli
from nearkv_hdl.few_pins import FewPins
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_sim.commands import pnr
from nearkv_sim.synthesis import nextpnr, placement
from nearkv_sim.synthesis.nextpnr import PlacementError, PlacementTimeout, Router
from nearkv_sim.synthesis.placement import placed_verilog
from nearkv_sim.synthesis.units import Unit

SLOW_SEEDS = {2}
CLOCKS = {1: 140.0, 2: 163.256, 3: 151.5}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("NEARKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pnr"


@pytest.fixture
def tools(monkeypatch):
    """Calls of the tools, which answer from CLOCKS; synthesis is skipped."""
    calls = []

    def tool(name: str, arguments: list[str], folder: Path, limit_s: float | None) -> None:
        calls.append((name, arguments))
        if name == "ecppack":
            (folder / "routed.bit").write_bytes(b"bits")
            return
        seed = int(arguments[arguments.index("--seed") + 1])
        if limit_s is not None and seed in SLOW_SEEDS and limit_s < 60:
            raise PlacementTimeout(f"{name} had not finished after {limit_s:g} s")
        report = {
            "fmax": {"clk": {"achieved": CLOCKS[seed], "constraint": 250}},
            "utilization": {
                "TRELLIS_FF": {"used": 10 * seed, "available": 100},
                "DCSC": {"used": 0, "available": 2},
            },
        }
        (folder / "report.json").write_text(json.dumps(report))

    monkeypatch.setattr(nextpnr, "_tool", tool)
    monkeypatch.setattr(nextpnr, "require_nextpnr", lambda: "9")
    monkeypatch.setattr(pnr, "require_nextpnr", lambda: "9")
    monkeypatch.setattr(nextpnr, "mapped_netlist", lambda *_: calls.append(("yosys", [])) or "{}")
    return calls


@pytest.fixture
def nearkv_pnr(monkeypatch):
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"pnr": pnr.COMMAND})
    return lambda *words: cli.main(["pnr", *map(str, words)])


def test_the_best_seed_is_taken_and_all_are_shown(nearkv_pnr, tools, tmp_path, capsys):
    arguments = ("--design", "tiny", "--query-group", 1, "--seeds", 3)
    assert nearkv_pnr(*arguments, "--output", tmp_path / "first") == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "first" / "pnr.txt").read_text()
    assert "Fmax, MHz: 163.3\n" in text
    assert "lowest to highest: 140.0 to 163.3\n" in text
    assert "seeds: 1: 140.0, 2: 163.3, 3: 151.5\n" in text
    assert "behavioural twins" in text
    assert (tmp_path / "first" / "tiny.bit").read_bytes() == b"bits"
    (record,) = json.loads((tmp_path / "first" / "pnr.json").read_text())["placements"]
    assert (record["best_seed"], record["query_group"], record["variant"]) == (2, 1, "mult18x18d")
    assert record["used"] == {"TRELLIS_FF": 20}
    assert [name for name, _ in tools] == ["yosys", *["nextpnr_ecp5", "ecppack"] * 3]

    # From the cache: no tool runs, the files are the same.
    tools.clear()
    assert nearkv_pnr(*arguments, "--output", tmp_path / "second") == 0
    assert tools == []
    for name in ("pnr.json", "pnr.txt", "tiny.bit"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


@pytest.mark.usefixtures("tools")
def test_a_seed_that_takes_too_long_is_given_up(nearkv_pnr, tmp_path, capsys):
    arguments = ("--design", "tiny", "--query-group", 1, "--seed-minutes", 0.5)
    assert nearkv_pnr(*arguments, "--seeds", 3, "--output", tmp_path / "three") == 0
    assert "seeds: 1: 140.0, 3: 151.5, 2: not in time\n" in capsys.readouterr().out
    (record,) = json.loads((tmp_path / "three" / "pnr.json").read_text())["placements"]
    assert (record["best_seed"], record["unfinished_seeds"]) == (3, [2])
    SLOW_SEEDS.add(1)
    try:
        assert (
            nearkv_pnr(*arguments, "--design", "ulx3s_85f", "--seeds", 1, "--output", tmp_path / "one") == 2
        )
    finally:
        SLOW_SEEDS.remove(1)
    assert "none of 1 seeds: nextpnr_ecp5 had not finished after 30 s" in capsys.readouterr().err
    assert not (tmp_path / "one").exists()


def test_a_unit_is_named_and_has_a_placement_of_its_own(nearkv_pnr, monkeypatch, tools, tmp_path, capsys):
    placed = []
    monkeypatch.setattr(
        placement, "placed_verilog", lambda design, unit: placed.append(unit) or f"{design.name} {unit}"
    )
    arguments = ("--design", "tiny", "--seeds", 1)
    assert nearkv_pnr(*arguments, "--unit", "kernel", "--output", tmp_path / "kernel") == 0
    assert "unit: kernel\n" in capsys.readouterr().out
    (record,) = json.loads((tmp_path / "kernel" / "pnr.json").read_text())["placements"]
    assert record["unit"] == "kernel"
    assert (tmp_path / "kernel" / "kernel-tiny.bit").read_bytes() == b"bits"
    tools.clear()
    assert nearkv_pnr(*arguments, "--output", tmp_path / "scorer") == 0
    assert placed == [Unit.KERNEL, Unit.SCORER]
    assert tools  # not the kernel's, from the cache
    assert nearkv_pnr("--unit", "kernel", "--board", "ulx3s", "--output", tmp_path / "board") == 2
    assert "unit is kernel with board ulx3s; allowed: one of the two" in capsys.readouterr().err


def test_the_placed_kernel_keeps_its_multipliers():
    verilog = placed_verilog(DESIGNS["tiny"], Unit.KERNEL)
    assert verilog.count("MULT18X18D #(") == DESIGNS["tiny"].macs


def test_the_limit_stops_a_tool(tmp_path, monkeypatch):
    monkeypatch.setattr(nextpnr, "_PROGRAM", "import time; time.sleep(60)")
    with pytest.raises(PlacementTimeout, match=r"ecppack had not finished after 0.2 s"):
        nextpnr._tool("ecppack", [], tmp_path, 0.2)


def test_a_board_has_its_pins_and_its_own_caveats(nearkv_pnr, tools, tmp_path, capsys):
    arguments = ("--board", "ulx3s", "--design", "tiny", "--seeds", 1)
    assert nearkv_pnr(*arguments, "--output", tmp_path / "out") == 0
    text = capsys.readouterr().out
    assert "No board has been loaded" in text
    assert "shift register" not in text
    assert json.loads((tmp_path / "out" / "pnr.json").read_text())["board"] == "ulx3s"
    assert (tmp_path / "out" / "ulx3s-tiny.bit").read_bytes() == b"bits"
    flags = tools[1][1]
    assert flags[flags.index("--lpf") + 1] == "pins.lpf"
    assert "--lpf-allow-unconstrained" not in flags


def test_a_board_refuses_a_design_of_another_part(nearkv_pnr, tools, tmp_path, capsys):
    assert nearkv_pnr("--board", "ulx3s", "--design", "ecp5_5g_85f", "--output", tmp_path / "out") == 2
    assert "is for LFE5UM5G-85F-8BG381C; the board has LFE5U-85F-6BG381C" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert tools == []


@pytest.mark.usefixtures("tools")
def test_pins_are_part_of_the_cache_key():
    device = DESIGNS["tiny"].device
    assert not Router("source", "top", device).route(1).cached
    assert not Router("source", "top", device, "pins").route(1).cached
    assert not Router("source", "top", device, "other pins").route(1).cached
    assert Router("source", "top", device, "pins").route(1).cached


@pytest.mark.parametrize("damage", [("json", "{}"), ("json", "x"), ("bit", "bitz")])
@pytest.mark.usefixtures("tools")
def test_a_damaged_cache_entry_is_made_again(cache, damage):
    device = DESIGNS["tiny"].device
    assert not Router("source", "top", device).route(1).cached
    assert Router("source", "top", device).route(1).cached
    (entry,) = cache.glob(f"*.{damage[0]}")
    entry.write_text(damage[1])
    repaired = Router("source", "top", device).route(1)
    assert (repaired.cached, repaired.fmax_mhz, repaired.bitstream) == (False, 140.0, b"bits")


def test_part_speed_and_seed_reach_the_tool(tools):
    for name, flags in (("ulx3s_85f", ["--85k", "6"]), ("ecp5_5g_85f", ["--um5g-85k", "8"])):
        tools.clear()
        Router("source", "top", DESIGNS[name].device).route(3)
        arguments = tools[1][1]
        assert arguments[0] == flags[0]
        assert arguments[arguments.index("--speed") + 1] == flags[1]
        assert arguments[arguments.index("--seed") + 1] == "3"


@pytest.mark.usefixtures("tools")
def test_what_a_tool_refuses_is_its_own_message(nearkv_pnr, monkeypatch, tmp_path, capsys):
    def refuse(*_):
        raise PlacementError("ERROR: no room")

    monkeypatch.setattr(nextpnr, "_tool", refuse)
    assert nearkv_pnr("--design", "tiny", "--output", tmp_path / "out") == 2
    assert capsys.readouterr().err.endswith("design tiny: ERROR: no room\n")
    assert not (tmp_path / "out").exists()


def test_bad_input_is_one_line_and_writes_nothing(nearkv_pnr, monkeypatch, tmp_path, capsys):
    output = ("--output", tmp_path / "new")
    assert nearkv_pnr(*output, "--design", "smartssd_ku15p") == 2
    assert nearkv_pnr(*output, "--seeds", 0) == 2
    assert nearkv_pnr(*output, "--query-group", 9) == 2
    assert nearkv_pnr(*output, "--seeds", 10**11) == 2
    assert nearkv_pnr(*output, "--seed-minutes", 0) == 2
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "nextpnr" in name else name)
    assert nearkv_pnr(*output, "--design", "tiny") == 2
    errors = capsys.readouterr().err.splitlines()
    assert "part is xcku15p-ffva1156-2-e; allowed for place and route: LFE5U-85F-6BG381C" in errors[0]
    assert errors[1].endswith("seeds is 0; allowed: 1 to 1000")
    assert "query_group is 9" in errors[2]
    assert errors[3].endswith("seeds is 100000000000; allowed: 1 to 1000")
    assert errors[4].endswith("seed-minutes is 0.0; allowed: finite, above 0")
    assert errors[5].endswith("extra `pnr` installs: pip install -e '.[pnr]'")
    assert not (tmp_path / "new").exists()


def test_the_placed_scorer_has_blocks_and_four_pins():
    verilog = placed_verilog(DESIGNS["tiny"], Unit.SCORER)
    assert verilog.count("MULT18X18D #(") == DESIGNS["tiny"].macs
    top = verilog[verilog.index("module nearkv_placed(") :]
    assert top[: top.index(")")].split("(")[1].replace(" ", "").split(",") == ["clk", "rst", "o", "i"]


class Inverter(wiring.Component):
    """Ten inputs, ten registered outputs."""

    def __init__(self) -> None:
        super().__init__({"a": In(10), "b": Out(10)})

    def elaborate(self, _platform):
        m = Module()
        m.d.sync += self.b.eq(~self.a)
        return m


def test_every_port_is_reached_and_seen():
    """A single one travels through all inputs: the parity of the outputs changes while it is inside."""
    wrapper = FewPins(Inverter())
    seen = []

    async def bench(ctx):
        for cycle in range(40):
            ctx.set(wrapper.i, cycle == 10)
            await ctx.tick()
            seen.append(ctx.get(wrapper.o))

    simulator = Simulator(wrapper)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    # Shift register, inverter, output register, two ranks of XOR.
    assert [cycle for cycle in range(8, 40) if seen[cycle]] == list(range(10 + 4, 10 + 4 + 10))


@pytest.mark.usefixtures("tools")
def test_designs_named_one_by_one_add_up(nearkv_pnr, tmp_path):
    folder = tmp_path / "both"
    arguments = ["--design", "tiny", "--design", "ulx3s_85f", "--seeds", "1", "--output", str(folder)]
    assert nearkv_pnr(*arguments) == 0
    placements = json.loads((folder / "pnr.json").read_text())["placements"]
    assert [record["design"] for record in placements] == ["tiny", "ulx3s_85f"]

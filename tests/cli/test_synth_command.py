"""`nearkv synth`: counts, budgets, cache, and netlists that are not what they should be."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import pytest

from nearkv import cli
from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.spec.design import Family
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_sim.commands import synth
from nearkv_sim.synthesis import pim, yosys
from nearkv_sim.synthesis.budgets import BUDGETS, LOGIC_TOLERANCE, budget_problems
from nearkv_sim.synthesis.pim_budgets import PIM_BUDGETS
from nearkv_sim.synthesis.resources import Resources, count_resources, least_plane_brams, mapping_problems
from nearkv_sim.synthesis.yosys import SynthesisError, synthesise

SMALL = ("tiny", "ulx3s_85f")
COUNTER = "module top(input clk, output reg [3:0] q); always @(posedge clk) q <= q + 1; endmodule"


@pytest.fixture
def nearkv_synth(monkeypatch):
    monkeypatch.setattr(cli, "load_commands", lambda *_: {"synth": synth.COMMAND})
    return lambda *words: cli.main(["synth", *map(str, words)])


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Folder of the netlists, empty at first."""
    monkeypatch.setenv("NEARKV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "synth"


def test_small_designs_keep_their_budgets(nearkv_synth, monkeypatch, tmp_path, capsys):
    assert nearkv_synth("--design", *SMALL, "--output", tmp_path / "first") == 0
    table = capsys.readouterr().out
    assert table == (tmp_path / "first" / "synth.txt").read_text()
    assert "upper bounds" in table
    record = json.loads((tmp_path / "first" / "synth.json").read_text())
    assert [entry["design"] for entry in record["designs"]] == list(SMALL)
    for entry, name in zip(record["designs"], SMALL, strict=True):
        assert entry["problems"] == []
        assert entry["has_budget"]
        dsps = entry["resources"]["dsps"]
        assert dsps["used"] == DESIGNS[name].macs
        assert dsps["percent"] == pytest.approx(
            100 * DESIGNS[name].macs / DESIGNS[name].device.dsps, abs=0.01
        )
        assert entry["resources"]["urams"]["percent"] is None

    # From the cache: Yosys is not run, and the files are the same.
    monkeypatch.setattr(yosys, "_run", lambda *_: pytest.fail("Yosys ran"))
    arguments = ("--design", *SMALL, SMALL[0], "--format", "json", "--no-progress")
    assert nearkv_synth(*arguments, "--output", tmp_path / "second") == 0
    assert json.loads(capsys.readouterr().out) == record
    for name in ("synth.json", "synth.txt"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_pim_components_keep_their_budgets_and_are_summed(nearkv_synth, monkeypatch, tmp_path, capsys):
    """The small device: components within budget, RTL and device computed, lines as they come."""
    budgets = PIM_BUDGETS["tiny_pim"]
    made = iter(budgets.values())
    monkeypatch.setattr(pim, "count_resources", lambda *_: next(made))
    monkeypatch.setattr(yosys, "_run", lambda *_: {"LUT6": 1})
    assert nearkv_synth("--design", "tiny_pim", "--output", tmp_path / "out") == 0
    text = capsys.readouterr().out
    assert text == (tmp_path / "out" / "synth.txt").read_text()
    assert "not with areas in mm²" in text
    (entry,) = json.loads((tmp_path / "out" / "synth.json").read_text())["pim_designs"]
    assert [part["component"] for part in entry["components"]] == list(budgets)
    unit, merger, division = (budgets[name].luts for name in budgets)
    assert entry["computed"]["device"]["luts"] == 4 * unit + 3 * merger + division
    assert entry["computed"]["rtl"] == entry["computed"]["device"]  # the small device is whole
    assert next(line for line in text.splitlines() if "device, computed" in line).endswith("computed")


def test_a_pim_component_outside_its_budget_is_a_problem(nearkv_synth, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(yosys, "_run", lambda *_: {"LUT6": 1, "FDRE": 1})
    assert nearkv_synth("--design", "hbm_pim", "--output", tmp_path / "out") == 1
    assert "hbm_pim, processing unit: 1 luts; budget: " in capsys.readouterr().out


def test_every_pim_component_has_a_budget():
    assert {name: list(parts) for name, parts in PIM_BUDGETS.items()} == {
        name: [part.name for part in pim.pim_parts(design)] for name, design in PIM_DESIGNS.items()
    }


@pytest.mark.parametrize("design", PIM_DESIGNS.values(), ids=list(PIM_DESIGNS))
def test_pim_components_are_counted_from_the_bottom(design):
    """Instantiated components as `PimDevice` holds them; a device has a unit per leaf of its tree."""
    device = PimDevice(design)
    held = [unit for level in device._tree._levels for unit in level] + device._upper
    unit, *mergers, division = pim.pim_parts(design)
    assert unit.instantiated == len(device._units)
    assert division.instantiated == division.in_device == 1
    for part in mergers:
        fan_in = int(part.name.split()[-1])
        assert part.instantiated == sum(merger.fan_in == fan_in for merger in held)
    # A tree merges all units into one: every merger of fan-in f takes f − 1 away.
    taken = sum(part.in_device * (int(part.name.split()[-1]) - 1) for part in mergers)
    assert unit.in_device == taken + 1


def test_design_may_be_repeated(nearkv_synth, monkeypatch, tmp_path):
    monkeypatch.setattr(yosys, "_run", lambda *_: {"LUT4": 1})
    words = ("--design", "tiny", "--design", "ulx3s_85f", "tiny")
    nearkv_synth(*words, "--output", tmp_path / "out")
    record = json.loads((tmp_path / "out" / "synth.json").read_text())
    assert [entry["design"] for entry in record["designs"]] == ["tiny", "ulx3s_85f"]


def test_a_unit_of_a_pim_design_is_refused(nearkv_synth, tmp_path, capsys):
    words = ("--design", "tiny", "hbm_pim", "--unit", "scorer", "--output", tmp_path / "out")
    assert nearkv_synth(*words) == 2
    expected = "unit is scorer with PIM design hbm_pim; allowed: with scorer designs only\n"
    assert capsys.readouterr().err == f"nearkv synth: error: {expected}"


def test_a_kernel_is_counted_without_a_budget(nearkv_synth, monkeypatch, tmp_path, capsys):
    """Any number of DSP blocks from the scorer's own on: address arithmetic may take some."""
    cells = {"MULT18X18D": DESIGNS["tiny"].macs + 4, "DP16KD": 23, "LUT4": 1}
    monkeypatch.setattr(yosys, "_run", lambda *_: cells)
    words = ("--unit", "kernel", "--design", "tiny", "--output")
    assert nearkv_synth(*words, tmp_path / "out") == 0
    assert "no budget" in capsys.readouterr().out
    (entry,) = json.loads((tmp_path / "out" / "synth.json").read_text())["designs"]
    assert (entry["unit"], entry["has_budget"], entry["cells"]) == ("kernel", False, cells)
    few = DESIGNS["tiny"].macs - 1
    (problem,) = mapping_problems(DESIGNS["tiny"], Resources(dsps=few, brams=23), None)
    assert problem == "15 DSP blocks for 16 products; allowed: from 16 with variant mult18x18d"


def test_a_kernel_needs_a_design_that_fits(nearkv_synth, tmp_path, capsys):
    output = ("--output", tmp_path / "out")
    assert nearkv_synth("--unit", "kernel", *output) == 2
    assert nearkv_synth("--unit", "native_pcie", "--design", "tiny", *output) == 2
    errors = capsys.readouterr().err.splitlines()
    expected = "unit is kernel without a design; allowed: with --design, since one takes minutes"
    assert errors[0] == f"nearkv synth: error: {expected}"
    assert errors[1].startswith("nearkv synth: error: design tiny: bus_bytes is 8; allowed: 64")
    assert not (tmp_path / "out").exists()


def test_every_design_has_a_budget_without_problems():
    assert list(BUDGETS) == list(DESIGNS)
    for name, design in DESIGNS.items():
        assert mapping_problems(design, BUDGETS[name]) == []


@pytest.mark.parametrize("family", Family)
def test_equal_sources_are_synthesised_once(family):
    first, again = (synthesise(COUNTER, "top", family) for _ in range(2))
    assert not first.cached
    assert again.cached
    assert again.cells == first.cells
    assert count_resources(first.cells, family).flip_flops == 4
    assert not synthesise(COUNTER.replace("+ 1", "+ 3"), "top", family).cached


def test_a_memory_marked_for_ultra_ram_becomes_one():
    memory = (
        "module top(input clk, input we, input [11:0] w, r, input [71:0] d, output reg [71:0] q);"
        ' (* ram_style = "ultra" *) reg [71:0] memory [4095:0];'
        " always @(posedge clk) begin if (we) memory[w] <= d; q <= memory[r]; end endmodule"
    )
    netlist = synthesise(memory, "top", Family.ULTRASCALE_PLUS)
    assert count_resources(netlist.cells, Family.ULTRASCALE_PLUS) == Resources(urams=1)


@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"LUT4": "4"}'])
def test_a_damaged_cache_entry_is_made_again(cache, monkeypatch, damage):
    monkeypatch.setattr(yosys, "_run", lambda *_: {"LUT4": 4})
    synthesise(COUNTER, "top", Family.ECP5)
    (entry,) = cache.glob("*.json")
    entry.write_text(damage)
    repaired = synthesise(COUNTER, "top", Family.ECP5)
    assert (repaired.cached, repaired.cells) == (False, {"LUT4": 4})


def test_what_yosys_refuses_is_its_own_message(cache):
    with pytest.raises(SynthesisError, match="syntax error"):
        synthesise("module top(; endmodule", "top", Family.ECP5)
    assert list(cache.glob("*.json")) == []


def test_netlists_that_miss_dsp_or_block_ram_are_refused():
    for name, design in DESIGNS.items():
        good = BUDGETS[name]
        (problem,) = mapping_problems(design, replace(good, dsps=good.dsps - 1))
        allowed = f"allowed: {good.dsps:g} with variant {design.mac_variant.value}"
        assert problem == f"{good.dsps - 1:g} DSP blocks for {design.macs} products; {allowed}"
        (problem,) = mapping_problems(design, replace(good, brams=least_plane_brams(design) - 0.5))
        assert "which the key planes fill" in problem
        (problem,) = mapping_problems(design, replace(good, luts=design.device.luts + 1))
        assert design.device.part in problem


def test_cells_without_a_price_are_refused():
    with pytest.raises(ValueError, match=r"cells of type \$mul in the netlist; allowed for ecp5: LUT4"):
        count_resources({"LUT4": 3, "$mul": 1}, Family.ECP5)
    assert count_resources({"RAMB18E2": 3, "RAM32M16": 2}, Family.ULTRASCALE_PLUS) == Resources(
        luts=16, brams=1.5
    )


def test_a_budget_is_kept_in_both_directions():
    budget = BUDGETS["tiny"]
    assert budget_problems("tiny", budget) == []
    for change in (1 + LOGIC_TOLERANCE + 0.01, 1 - LOGIC_TOLERANCE - 0.01):
        (problem,) = budget_problems("tiny", replace(budget, luts=round(budget.luts * change)))
        assert problem.endswith(f"luts; budget: {budget.luts} ± 10 %")
    (problem,) = budget_problems("tiny", replace(budget, brams=budget.brams + 1))
    assert problem.endswith("± 0 %")
    assert budget_problems("a design of one's own", budget) == []


def test_a_problem_is_shown_and_exit_code_1(nearkv_synth, monkeypatch, tmp_path, capsys):
    # The netlist of another design: far from this one's budget, and its multipliers are missing.
    monkeypatch.setattr(yosys, "_run", lambda *_: {"LUT4": 100, "TRELLIS_FF": 10})
    assert nearkv_synth("--design", "tiny", "--output", tmp_path / "out") == 1
    table = capsys.readouterr().out
    assert "tiny: 0 DSP blocks for 16 products; allowed: 16 with variant mult18x18d" in table
    assert "tiny: 100 luts; budget: " in table


def test_bad_input_is_one_line_and_writes_nothing(nearkv_synth, monkeypatch, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    assert nearkv_synth("--output", tmp_path / "there") == 2
    assert nearkv_synth("--output", tmp_path / "new", "--design", "tiny", "huge") == 2
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert nearkv_synth("--output", tmp_path / "new", "--design", "tiny") == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].endswith("exists; allowed: a new folder, results are never overwritten")
    assert errors[1].startswith("nearkv synth: error: design is 'huge'; allowed: tiny, ")
    assert errors[2].endswith("extra `synth` installs: pip install -e '.[synth]', or `make synth`")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]

"""`nearkv designs` and `nearkv policies`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from nearkv.command import load_commands
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_sim.golden.reduction_timing import attention_timing
from nearkv_sim.synthesis.pim_budgets import PIM_BUDGETS


def test_every_design_is_listed(nearkv):
    outcome = nearkv("designs")
    assert outcome.code == 0
    scorers, devices = outcome.out.split("\n\n")
    assert [line.split()[0] for line in scorers.splitlines()] == ["name", *DESIGNS]
    assert [line.split()[0] for line in devices.splitlines()] == ["name", *PIM_DESIGNS]
    listed = json.loads(nearkv("designs", "--format", "json").out)
    assert [entry["name"] for entry in listed] == [*DESIGNS, *PIM_DESIGNS]
    assert listed[0]["clock_mhz"] == 50
    assert listed[-1]["units"] == 64


def test_one_design_is_shown_with_what_follows_from_it(nearkv):
    content = json.loads(nearkv("designs", "smartssd_ku15p", "--format", "json").out)
    assert content["multipliers"] == 512
    assert content["bus_bytes_per_second"] == 19_200_000_000
    assert content["head_dim_128"] == {
        "block_bytes": 16384,
        "lane_beats_per_token": 2,
        "lane_beats_per_block": 256,
        "bus_beats_int8": 256,
        "bus_beats_int4": 128,
    }
    assert "multipliers           512" in nearkv("designs", "smartssd_ku15p").out


def test_a_scorer_job_in_cycles_and_time(nearkv):
    """8 blocks of 128 keys of 128 channels, 64 lanes: 2,048 lane beats, and what start and end take."""
    words = ("--tokens", 1024, "--head-dim", 128, "--heads", 5, "--format", "json")
    content = json.loads(nearkv("designs", "smartssd_ku15p", *words).out)
    assert content["job"] == {"tokens": 1024, "head_dim": 128, "heads": 5}
    scoring = content["scoring_int8"]
    assert scoring["passes"] == 1
    assert 0 < scoring["cycles"] - 2048 < 256
    assert scoring["us"] == pytest.approx(scoring["cycles"] / 300, abs=1e-3)
    twice = json.loads(nearkv("designs", "smartssd_ku15p", *words[:4], "--heads", 9, *words[6:]).out)
    assert twice["scoring_int8"]["passes"] == 2
    assert twice["scoring_int8"]["cycles"] - scoring["cycles"] == 2048
    assert content["latency_cycles"] == {"last_lane_beat_to_score": Scorer(DESIGNS["smartssd_ku15p"]).latency}
    assert content["selection_of_a_head"]["selected"] == 102
    assert content["area"]["dsps"] == 256


def test_a_scorer_selects_no_more_than_its_capacity(nearkv):
    content = json.loads(nearkv("designs", "tiny", "--tokens", 2048, "--format", "json").out)
    assert content["selection_of_a_head"] == {"at_most_tokens": 1024}


@pytest.mark.parametrize("name", PIM_DESIGNS)
def test_a_pim_design_is_shown_with_its_cycles(nearkv, name):
    design = PIM_DESIGNS[name]
    content = json.loads(nearkv("designs", name, "--heads", 3, "--format", "json").out)
    tokens = content["job"]["tokens"]
    assert tokens == min(4096, design.tokens)
    for merge in Merge:
        cycles = content[f"attention_{merge.name.lower()}_merge"]["cycles"]
        assert cycles == attention_timing(design, tokens, 3, merge).cycles
    assert content["latency_cycles"]["reduction_and_division"] == PimDevice(design).latency
    assert sum(content["reduction_units"].values()) == sum(design.reduction_units)
    assert content["area_processing_unit"]["luts"] == PIM_BUDGETS[name]["processing unit"].luts
    assert content["area_device_computed"]["dsps"] > content["area_processing_unit"]["dsps"] * design.units
    lines = nearkv("designs", name).out.splitlines()
    assert lines[3].split() == ["units", str(design.units)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("big",), "design is 'big'; allowed: tiny, "),
        (("tiny", "--tokens", 100), "tokens is 100; design tiny allows: multiples of 128"),
        (("tiny", "--head-dim", 128), "head_dim is 128; design tiny allows: 64"),
        (("tiny", "--heads", 0), "heads is 0; allowed: from 1"),
        (("tiny", "--heads", 10**12), "heads is 1000000000000; allowed: 1 to 1024"),
        (("tiny_pim", "--heads", 10**12), "heads is 1000000000000; allowed: 1 to 1024"),
        (("tiny", "--tokens", 10**12), "tokens is 1000000000000; allowed: up to 33554432 with 8 heads"),
        (("hbm_pim", "--head-dim", 64), "head_dim is 64; design hbm_pim allows: 128"),
        (("hbm_pim", "--tokens", 0), "tokens is 0; allowed: from 1"),
        (("tiny_pim", "--tokens", 33), "tokens is 33; design tiny_pim allows: 1 to 32, 8 in each of its 4 u"),
        (("--tokens", 128), "tokens is 128 without a design; allowed: with the NAME of one"),
    ],
)
def test_what_no_design_can_do_is_refused(nearkv, words, message):
    outcome = nearkv("designs", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"nearkv designs: error: {message}")
    assert outcome.err.count("\n") == 1


def test_an_unknown_design_is_answered_with_both_kinds(nearkv):
    assert "alveo_u50, tiny_pim, hbm_pim" in nearkv("designs", "big").err


def test_policies_are_listed_with_description_and_options(nearkv):
    listed = {entry["name"]: entry for entry in json.loads(nearkv("policies", "--format", "json").out)}
    assert listed["hill"]["options"] == {"decay_shift": 3, "surge": 0.0}
    assert {name for name, entry in listed.items() if entry["needs_future"]} == {"belady", "oracle"}
    assert not listed["full"]["bounded"]
    text = nearkv("policies").out
    assert "recency     Keeps the sinks and the most recent tokens" in text
    assert "options: decay_shift=3, surge=0.0" in text


def test_only_the_named_command_is_loaded():
    assert list(load_commands(["policies", "--help"])) == ["policies"]
    everything = list(load_commands())
    assert everything == sorted(everything)
    assert {"policies", "run", "validate"} <= set(everything)
    assert list(load_commands(["nothing"])) == list(load_commands(["--help"])) == everything


def test_output_that_nobody_reads_ends_quietly():
    command = [sys.executable, "-m", "nearkv.cli", "machine", "hillinfer", "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # what `| head` does once it has its lines
        assert process.stderr.read() == b""
    assert process.returncode == 141

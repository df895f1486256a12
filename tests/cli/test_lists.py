"""`nearkv designs` and `nearkv policies`."""

from __future__ import annotations

import json

from nearkv_hdl.spec.designs import DESIGNS


def test_every_design_is_listed(nearkv):
    outcome = nearkv("designs")
    assert outcome.code == 0
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["name", *DESIGNS]
    listed = json.loads(nearkv("designs", "--format", "json").out)
    assert [entry["name"] for entry in listed] == list(DESIGNS)
    assert listed[0]["clock_mhz"] == 50


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


def test_an_unknown_design_is_refused(nearkv):
    outcome = nearkv("designs", "big")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("nearkv designs: error: design is 'big'; allowed: tiny,")


def test_policies_are_listed_with_description_and_options(nearkv):
    listed = {entry["name"]: entry for entry in json.loads(nearkv("policies", "--format", "json").out)}
    assert listed["hill"]["options"] == {"decay_shift": 3, "surge": 0.0}
    assert listed["oracle"]["needs_future"]
    assert not listed["full"]["bounded"]
    text = nearkv("policies").out
    assert "recency  Keeps the sinks and the most recent tokens" in text
    assert "options: decay_shift=3, surge=0.0" in text

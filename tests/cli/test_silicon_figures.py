"""The recorded silicon figures: what they must reach, the page made from them, and a small array counted."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_sim.synthesis.units import Unit

DOCS = Path(__file__).resolve().parents[2] / "docs"
SILICON = runpy.run_path(str(DOCS / "silicon.py"))
FIGURES = json.loads((DOCS / "silicon.json").read_text(encoding="utf-8"))
MOST_LUTS_PER_MAC = 40


def test_the_page_is_current():
    assert (DOCS / "silicon.md").read_text(encoding="utf-8") == SILICON["page"](FIGURES), (
        "run `python docs/silicon.py`"
    )


def test_recorded_arrays_reach_two_products_a_block():
    assert len(FIGURES["mac_arrays"]) == len(SILICON["ARRAYS"])
    for record in FIGURES["mac_arrays"]:
        packed = record["variant"] != "plain"
        assert record["macs"] / record["dsps"] == (2 if packed else 1)
        assert (record["luts"] - record["pairing_luts"]) / record["macs"] <= MOST_LUTS_PER_MAC


@pytest.mark.parametrize("variant", [MacVariant.PLAIN, MacVariant.PACKED_HEADS])
def test_a_small_array_is_counted(variant, monkeypatch, tmp_path):
    monkeypatch.setenv("NEARKV_CACHE", str(tmp_path))
    design = replace(DESIGNS["smartssd_ku15p"], bus_bytes=16, lanes=16, query_group=2, variant=variant)
    record = SILICON["count_array"](design)
    assert record["macs"] == 32
    assert record["dsps"] == design.dsp_blocks == (32 if variant is MacVariant.PLAIN else 16)
    assert record["luts"] / record["macs"] <= MOST_LUTS_PER_MAC


@pytest.mark.parametrize(("earlier", "text"), [(True, "an earlier state"), (False, "the present RTL")])
def test_a_placement_of_earlier_rtl_is_said_to_be_one(earlier, text):
    design = DESIGNS["tiny"]
    digest = SILICON["hashlib"].sha256(SILICON["placed_verilog"](design, Unit.SCORER).encode()).hexdigest()
    placement = {
        "design": "tiny",
        "unit": "scorer",
        "part": design.device.part,
        "lanes": design.lanes,
        "query_group": design.query_group,
        "yosys": "1",
        "nextpnr": "2",
        "verilog_sha256": "0" * 64 if earlier else digest,
        "goal_mhz": 250,
        "fmax_mhz": {"1": 100.0, "2": 120.04},
        "used": {"TRELLIS_FF": 10},
        "available": {"TRELLIS_FF": 100},
    }
    page = SILICON["page"]({"mac_arrays": FIGURES["mac_arrays"], "placements": [placement]})
    assert f"`tiny`, scorer: of {text} of the RTL" in page.replace(
        "the present RTL", "the present RTL of the RTL"
    )
    assert "| 120.0 | 100.0 to 120.0 | 1: 100.0, 2: 120.0 | 0 | 10 (10.0 %) |" in page

"""docs/validation.md: names, cheap areas and plots are current."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from nearkv_sim.validation.areas import AREAS, area_checks, run_checks
from nearkv_sim.validation.plots import curves, figures

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "validation.md").read_text(encoding="utf-8")
GENERATE = runpy.run_path(str(DOCS / "validation.py"))
CHEAP = ("compute", "machines")
AGAIN = "run `python docs/validation.py`"


def test_every_check_is_on_the_page_and_no_other():
    listed = re.findall(r"^\| (?:ok|OUT) \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert listed == [check.name for check in area_checks(AREAS)], AGAIN


@pytest.mark.parametrize("area", CHEAP)
def test_cheap_areas_are_current(area):
    outcomes = run_checks(area_checks([area]))
    assert GENERATE["area_section"](area, outcomes) in PAGE, AGAIN
    for name, content in figures(outcomes).items():
        assert (DOCS / "figures" / name).read_bytes() == content, AGAIN


@pytest.mark.parametrize("section", ["decomposition_section", "claims_section", "units_section"])
def test_sections_are_current(section):
    assert GENERATE[section]() in PAGE, AGAIN


def test_every_figure_is_shown_and_there():
    shown = set(re.findall(r"\(figures/([\w.-]+)\)", PAGE))
    assert shown == {path.name for path in (DOCS / "figures").glob("*.svg")}
    assert len(shown) >= len(curves(run_checks(area_checks(["compute"]))))

"""The tables in docs/exp-unit.md say what the script that writes them finds."""

import importlib
from pathlib import Path

import pytest

from nearkv_hdl.spec.design import Family

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    return importlib.import_module("exp_tables")


def test_errors_are_current(tables):
    text = (DOCS / "exp-unit.md").read_text()
    assert "\n".join(tables.errors()) in text


def test_area_of_the_smallest_class_is_current(tables):
    # All rows take four minutes; the names and bounds of every class are compared, the counts of one unit.
    text = (DOCS / "exp-unit.md").read_text()
    for members in tables.CLASSES:
        for name, core in members.cores.items():
            assert core().accuracy.max_relative_error <= members.bound
            assert f"| {100 * members.bound:g} % | {name} |" in text
    segments = tables.CLASSES[2].cores["segments, 2^5"]
    row = next(line for line in text.splitlines() if "| 0.011 % | segments, 2^5 |" in line)
    for family in Family:
        with_blocks = tables.count(segments, family, luts_only=False)
        assert f"| {with_blocks.luts:g} + {with_blocks.dsps:g} DSP + {with_blocks.brams:g} BRAM |" in row
        assert f"**{tables.count(segments, family, luts_only=True).luts:g}**" in row

"""Every component of the hardware: its docstring has the parts of the template, and the table knows it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import pytest
from amaranth.lib import wiring

import nearkv_hdl
from nearkv_sim.synthesis.catalogue import COMPONENTS
from nearkv_sim.synthesis.catalogue_left_out import LEFT_OUT

PACKAGES = (
    *("arith", "attention", "bus", "migrate", "pim", "stream", "memory", "pdpw16kd", "few_pins"),
    *("pcie", "top"),
)
SECTIONS = ("formula", "timing", "numerics", "args", "members")


def components(*packages: str) -> dict[str, type[wiring.Component]]:
    """Every component that a package or module of nearkv_hdl defines, by name."""
    found = {}
    for module in pkgutil.walk_packages(nearkv_hdl.__path__, "nearkv_hdl."):
        if module.name.split(".")[1] in packages:
            for name, item in vars(importlib.import_module(module.name)).items():
                is_component = inspect.isclass(item) and issubclass(item, wiring.Component)
                if is_component and item.__module__ == module.name:
                    assert name not in found, f"two components are called {name}"
                    found[name] = item
    return found


ALL = components(*PACKAGES)


def sections(component: type[wiring.Component]) -> set[str]:
    """Words of the headings: `Formula: …`, or several as in `Timing, stalls: as …`."""
    headings = re.findall(r"^([A-Z][^:\n]*):", inspect.getdoc(component) or "", re.MULTILINE)
    return {word for heading in headings for word in re.findall(r"\w+", heading.lower())}


def test_the_table_knows_every_component_once():
    listed = [type(entry.build()).__name__ for entry in COMPONENTS]
    left_out = [name for names in LEFT_OUT.values() for name in names]
    assert sorted(listed + left_out) == sorted(ALL)


@pytest.mark.parametrize("entry", COMPONENTS, ids=lambda entry: type(entry.build()).__name__)
def test_entries_give_latency_and_interval(entry):
    component = entry.build()
    assert component.latency >= 0
    assert entry.interval(component) >= 1


@pytest.mark.parametrize("component", ALL.values(), ids=ALL)
def test_docstrings_have_every_part_of_the_template(component):
    assert inspect.getdoc(component) != inspect.getdoc(wiring.Component)
    takes = list(inspect.signature(component).parameters)
    wanted = {section for section in SECTIONS if section != "args" or takes}
    assert sections(component) >= wanted


@pytest.mark.parametrize("component", ALL.values(), ids=ALL)
def test_docstrings_describe_every_argument(component):
    text = inspect.getdoc(component) or ""
    arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
    described = {
        name for names in re.findall(r"^    (\w[\w, ]*):", arguments, re.M) for name in names.split(", ")
    }
    assert described == set(inspect.signature(component).parameters)

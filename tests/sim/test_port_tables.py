"""The documented bits of ports against the exported Verilog, and against Amaranth's packing of values."""

from __future__ import annotations

import re

import pytest

from nearkv_hdl.attention.key_scorer import KeyScorer
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.pim_designs import get_pim_design
from nearkv_hdl.verilog import to_verilog
from nearkv_sim.port_tables import members, port_rows

SMALL = {
    "scorer": lambda: Scorer(get_design("tiny")),
    "key_scorer": lambda: KeyScorer(get_design("tiny")),
    "pim": lambda: PimDevice(get_pim_design("tiny_pim")),
}


def widths(rows: list[list[str]]) -> dict[str, int]:
    """Width of every stream's payload or signal, as the rows have it; they must tile it from bit 0."""
    found: dict[str, int] = {}
    ports: list[str] = []
    for names, _, _, bits, _ in rows:
        if names:
            ports = re.findall(r"`(\w+)`", names)
            found |= dict.fromkeys(ports, 0)
        high, _, low = bits.partition(":")
        assert int(low or high) == found[ports[0]]
        found |= dict.fromkeys(ports, int(high) + 1)
    return found


@pytest.mark.parametrize("unit", SMALL)
def test_rows_tile_the_ports_of_the_verilog(unit):
    component = SMALL[unit]()
    verilog = to_verilog(component, name="top")
    top = verilog[verilog.index("module top(") :]
    top = top[: top.index("endmodule")]
    declared = {
        name: int(high or 0) + 1
        for high, name in re.findall(r"^  (?:input|output) (?:\[(\d+):0\] )?(\w+);", top, re.MULTILINE)
    }
    expected = {}
    for name, width in widths(port_rows(component)).items():
        stream = f"{name}_payload" in declared
        expected[f"{name}_payload" if stream else name] = width
        expected |= {f"{name}_valid": 1, f"{name}_ready": 1} if stream else {}
    assert expected | {"clk": 1, "rst": 1} == declared


def test_bits_are_those_of_a_packed_value():
    layout = Scorer(get_design("smartssd_ku15p")).i_block.payload.shape()
    rows = {row[2]: row for row in port_rows(Scorer(get_design("smartssd_ku15p")))[:6]}
    for field, value, lowest in (
        ("first_token", 5, 5),
        ("shift", [3, 0, 0, 0, 0, 0, 0, 0], 3),
        ("last", 1, 1),
    ):
        low = int(rows[field][3].rpartition(":")[2])
        assert layout.const({field: value}).as_value().value == lowest << low


def test_every_port_is_described():
    for build in SMALL.values():
        assert all(re.match(r"[\w{}]+(?: …)?(?:, [\w{}]+(?: …)?)*: ", line) for line in members(build()))

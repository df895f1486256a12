"""Streams of the exported Verilog, field by field: which bits of a payload mean what."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Flow

from nearkv_hdl.attention.key_scorer import KeyScorer
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.pim_designs import get_pim_design

__all__ = ["CONVENTION", "UNITS", "members", "port_rows"]

# What `nearkv rtl` and docs/folding.md write, on one design each; other designs differ in widths alone.
UNITS: dict[str, Callable[[], wiring.Component]] = {
    "Scorer of `smartssd_ku15p`": lambda: Scorer(get_design("smartssd_ku15p")),
    "KeyScorer of `smartssd_ku15p`": lambda: KeyScorer(get_design("smartssd_ku15p")),
    "PIM device of `hbm_pim`": lambda: PimDevice(get_pim_design("hbm_pim")),
}

CONVENTION = """\
Every stream `x` has the ports `x_payload`, `x_valid` and `x_ready`; a beat passes at a rising edge of `clk`
at which valid and ready are 1. An offered beat must stay until it is taken; no ready waits for a valid. `rst`
is synchronous and active high. Bits below are those of the payload, or of a plain signal; on other designs
widths differ and the order does not. Bytes of keys and headers: `nearkv_hdl.spec.layout`; commands of a
unit: `nearkv_hdl.pim.commands`.
"""

Field = tuple[str, str, str]


def _number(shape: Shape) -> str:
    return f"{'signed' if shape.signed else 'unsigned'} {shape.width}"


def _fields(shape: Any) -> Iterator[Field]:
    """Name, bits and numbers of every field of a payload, from bit 0."""
    parts = (
        [(str(name), field.offset, field.shape) for name, field in shape]
        if isinstance(shape, data.StructLayout)
        else []
    )
    for name, offset, part in parts or [("–", 0, shape)]:
        width = Shape.cast(part).width
        bits = f"{offset + width - 1}:{offset}" if width > 1 else str(offset)
        if isinstance(part, data.ArrayLayout):
            numbers = f"{part.length} × {_number(Shape.cast(part.elem_shape))}, first lowest"
        else:
            numbers = _number(Shape.cast(part))
        yield name, bits, numbers


def port_rows(component: wiring.Component) -> list[list[str]]:
    """Ports, direction, field, bits and numbers of every field; ports that are alike share rows.

    A stream's bits are those of its `_payload` port. Only the first row of ports names them.
    """
    alike: dict[tuple[str, tuple[Field, ...]], list[str]] = {}
    for name, member in component.signature.members.items():
        direction = "in" if member.flow is Flow.In else "out"
        kind, shape = "signal", member
        if member.is_signature:
            kind, shape = "stream", member.signature.members["payload"]
        alike.setdefault((f"{kind} {direction}", tuple(_fields(shape.shape))), []).append(name)
    rows = []
    for (direction, fields), names in alike.items():
        ports = ", ".join(f"`{name}`" for name in names)
        rows += [[ports, direction, *fields[0]], *(["", "", *field] for field in fields[1:])]
    return rows


def members(component: wiring.Component) -> list[str]:
    """What its docstring says of each port, one string each."""
    _, _, section = inspect.getdoc(type(component)).partition("Members:\n")  # type: ignore[union-attr]
    entries = re.split(r"\n(?=\S)", textwrap.dedent(section).strip())
    return [" ".join(entry.split()) for entry in entries]

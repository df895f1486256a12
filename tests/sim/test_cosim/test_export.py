"""Flat, reproducible Verilog, and the components that are refused."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.verilog import ExportError, run_yosys, to_rtlil, to_verilog
from nearkv_sim.cosim.ports import describe_ports


def unelaborated(component):
    """Tell Amaranth that it is no mistake if this component is refused before it is elaborated."""
    component._MustUse__silence = True
    return component


def test_port_names_are_flat(components):
    text = to_verilog(components.Adder(), name="adder")
    header = re.search(r"module adder\((.*?)\);", text, re.DOTALL).group(1)
    assert {name.strip() for name in header.split(",")} == {
        "clk", "rst", "i_pair_payload", "i_pair_valid", "i_pair_ready", "o_sum_payload", "o_sum_valid",
        "o_sum_ready", "o_taking", "o_count", "o_never",
    }  # fmt: skip
    assert "input [80:0] i_pair_payload;" in text
    assert "output o_sum_valid;" in text
    # Never driven, and still an output.
    assert "output o_never;" in text


def test_text_is_reproducible_and_names_no_place(components, tmp_path):
    text = to_verilog(components.Adder())
    assert to_verilog(components.Adder()) == text
    assert "src" not in text
    assert ".py" not in text
    assert str(Path.home()) not in text
    conftest = Path(__file__).with_name("conftest.py")
    script = (
        f"import runpy; names = runpy.run_path({str(conftest)!r});"
        "from nearkv_hdl.verilog import to_verilog; print(to_verilog(names['Adder']()), end='')"
    )
    other = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": "5", "AMARANTH_USE_YOSYS": "system", "YOSYS": "no-such-yosys"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == text


def test_constant_members_are_no_ports():
    class AlwaysReady(wiring.Component):
        i: In(stream.Signature(4, always_ready=True))
        o: Out(4)

        def elaborate(self, _platform):
            m = Module()
            m.d.sync += self.o.eq(self.i.payload)
            return m

    text = to_verilog(AlwaysReady())
    assert "i_valid" in text
    assert "i_ready" not in text
    with pytest.raises(ValueError, match="stream 'i' is always valid or always ready"):
        describe_ports(unelaborated(AlwaysReady()))


def test_colliding_names_and_other_clocks_are_refused(components):
    class Collision(components.Passthrough):
        i_valid: In(1)

    with pytest.raises(ValueError, match="port 'i_valid' stands for two members"):
        to_verilog(unelaborated(Collision()))
    with pytest.raises(ValueError, match="clock domain is 'pixel'; allowed: 'sync' alone"):
        to_rtlil(components.TwoClocks())


def test_yosys_speaks_for_itself(components):
    with pytest.raises(ExportError, match="No such command: no_such_pass"):
        run_yosys(to_rtlil(components.Passthrough()), "no_such_pass")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"enable": In(1)}, "port 'enable' is a plain input"),
        ({"i": In(stream.Signature(0))}, "stream 'i' has a payload of 0 bits"),
        ({"i": In(stream.Signature(4)).array(2)}, "port 'i' is no single stream"),
        ({"bus": Out(wiring.Signature({"i": In(stream.Signature(4))}))}, "port 'bus' is no single stream"),
        ({"o_done": Out(1)}, "component has no streams"),
    ],
)
def test_ports_that_cannot_be_driven(members, message):
    with pytest.raises(ValueError, match=message):
        describe_ports(unelaborated(wiring.Component(members)))

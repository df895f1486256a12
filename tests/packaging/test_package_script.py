"""package_kernel.tcl, evaluated by Tcl against a model of the Vivado commands it uses."""

import re
from dataclasses import replace

import pytest

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.register_map import Access
from nearkv_sim.packaging.files import package_files
from nearkv_sim.packaging.kernel import CARDS


@pytest.fixture(params=CARDS)
def design(request):
    return DESIGNS[request.param]


@pytest.fixture
def script(design):
    return package_files(design)["package/package_kernel.tcl"]


@pytest.fixture
def folder(tmp_path, design):
    for name, text in package_files(design).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "nearkv_kernel.v").write_text("module nearkv_kernel; endmodule\n")
    return tmp_path


@pytest.fixture
def packaged(vivado, script, folder):
    vivado.source(script, folder)
    return vivado


def test_registers_and_fields_are_the_table(packaged):
    registers = {
        handle.removeprefix("register:"): values
        for handle, values in packaged.objects.items()
        if handle.startswith("register:")
    }
    assert list(registers) == [register.name for register in reg.REGISTERS]
    for register in reg.REGISTERS:
        values = registers[register.name]
        assert int(values["address_offset"], 0) == register.offset
        assert int(values["size"]) == 8 * register.size_bytes
        assert values["description"] == register.doc
        # A host that may write is one whose writes do something, and so with reads.
        assert ("write" in values["access"]) == (
            register.access not in (Access.READ_ONLY, Access.CLEAR_ON_READ)
        )
        assert ("read" in values["access"]) == (register.access is not Access.WRITE_ONLY)
        for field in register.fields:
            found = packaged.objects[f"field:{field.name} of register:{register.name}"]
            assert (int(found["bit_offset"]), int(found["bit_width"])) == (field.lsb, field.width)
            assert found["description"] == field.doc
    fields = [handle for handle in packaged.objects if handle.startswith("field:")]
    assert len(fields) == sum(len(register.fields) for register in reg.REGISTERS)
    assert packaged.objects["block:reg0"] == {"range": "4096", "width": "32"}


def test_pointers_name_the_memory_port(packaged, design):
    owners = {
        handle.rpartition("register:")[2]: values["value"]
        for handle, values in packaged.objects.items()
        if handle.startswith("parameter:ASSOCIATED_BUSIF")
    }
    assert owners == {
        **dict.fromkeys(("DESCRIPTOR_ADDRESS", "QUERY_ADDRESS", "RESULT_ADDRESS"), "m_axi_gmem"),
        "KEY_ADDRESS": {"smartssd_ku15p": "m_axi_gmem", "alveo_u50": "m_axi_gmem1"}[design.name],
    }


def test_clock_reset_and_buses(packaged, design):
    assert packaged.part == design.device.part
    assert packaged.associations == [
        {"-busif": "s_axi_control", "-clock": "ap_clk"},
        {"-busif": "m_axi_gmem", "-clock": "ap_clk"},
        *([{"-busif": "m_axi_gmem1", "-clock": "ap_clk"}] if design.key_masters == 2 else []),
        {"-clock": "ap_clk", "-reset": "ap_rst_n"},
    ]
    assert packaged.objects["parameter:POLARITY of interface:ap_rst_n"] == {"value": "ACTIVE_LOW"}
    assert packaged.objects["parameter:FREQ_HZ of interface:ap_clk"] == {"value": str(design.clock_hz)}


def test_it_is_a_kernel(packaged):
    core = packaged.objects["core:current"]
    assert (core["sdx_kernel"], core["sdx_kernel_type"]) == ("true", "rtl")
    assert core["vitis_drc"] == "ctrl_protocol ap_ctrl_chain"
    assert packaged.objects["fileset:sources_1"] == {"top": "nearkv_kernel"}
    assert packaged.xo == {
        "-force": True,
        "-xo_path": "nearkv_kernel.xo",
        "-kernel_name": "nearkv_kernel",
        "-ip_directory": packaged.packaged["-root_dir"],
        "-kernel_xml": "package/kernel.xml",
    }


def test_words_and_commands_without_an_interpreter(script):
    """What can be told of a script without Tcl: brackets pair up, and every line begins a known command."""
    pairs = {"}": "{", "]": "["}
    opened = []
    for character in script:
        if character in pairs.values():
            opened.append(character)
        elif character in pairs:
            assert opened.pop() == pairs[character]
    assert opened == []
    code = re.sub(r"^set registers \{.*?^\}$", "", script, flags=re.DOTALL | re.MULTILINE)
    lines = [line.strip() for line in code.replace("\\\n", " ").splitlines()]
    commands = {line.split()[0] for line in lines if line and not line.startswith(("#", "}"))}
    assert commands == {
        *("set", "foreach", "if", "error", "lassign", "set_property"),
        *("create_project", "add_files", "update_compile_order", "close_project", "package_xo"),
        *(
            f"ipx::{name}"
            for name in (
                *("package_project", "associate_bus_interfaces", "create_xgui_files"),
                *("update_checksums", "check_integrity", "save_core"),
            )
        ),
    }


@pytest.mark.parametrize("text", ["a } b", "{", "C:\\x", "½"])
def test_text_that_tcl_would_take_apart_is_refused(design, monkeypatch, text):
    first = replace(reg.REGISTERS[0], doc=text)
    monkeypatch.setattr(reg, "REGISTERS", (first, *reg.REGISTERS[1:]))
    with pytest.raises(ValueError, match=r"allowed in a Tcl script: ASCII without braces and backslashes"):
        package_files(design)


def test_without_verilog_it_stops_at_once(vivado, refused, script, folder):
    (folder / "nearkv_kernel.v").unlink()
    with pytest.raises(refused, match=r"nearkv_kernel\.v does not exist in"):
        vivado.source(script, folder)
    assert vivado.calls == []


def test_the_model_refuses(bare_vivado, vivado, refused, script, folder):
    with pytest.raises(refused, match="ap_rst_n is no reset interface"):
        bare_vivado.source(script, folder)
    with pytest.raises(refused, match="register has no property adress_offset"):
        vivado.source(script.replace("set_property address_offset", "set_property adress_offset"), folder)

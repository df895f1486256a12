"""kernel.xml against the register table and against what XRT and UG1393 ask of one."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from amaranth.hdl import Value

from nearkv.device.pyxrt_transport import KERNEL_NAME, MEMORY_ARGUMENT
from nearkv_hdl.bus.axi import axi_lite, axi_read, axi_write
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.top.kernel import MODULE_NAME, Kernel
from nearkv_sim.packaging.files import NOTICE, package_files
from nearkv_sim.packaging.kernel import CARDS, CLOCK, INTERRUPT, RESET


@pytest.fixture(params=CARDS)
def design(request):
    return DESIGNS[request.param]


@pytest.fixture
def text(design):
    return package_files(design)["package/kernel.xml"]


@pytest.fixture
def kernel(text):
    root = ElementTree.fromstring(text.encode())
    assert (root.tag, root.attrib) == ("root", {"versionMajor": "1", "versionMinor": "6"})
    (kernel,) = root
    return kernel


def test_kernel_attributes(kernel, text):
    assert kernel.attrib == {
        "name": KERNEL_NAME,
        "language": "ip_c",
        "vlnv": f"nearkv:kernel:nearkv_kernel:{reg.REGISTER_VERSION}.2",
        "attributes": "",
        "preferredWorkGroupSizeMultiple": "0",
        "workGroupSize": "1",
        "interrupt": "true",
        "hwControlProtocol": "ap_ctrl_chain",
    }
    assert [child.tag for child in kernel] == ["ports", "args"]
    assert NOTICE in text


def test_ports_are_those_of_the_buses(kernel, design):
    control, *memories = kernel.find("ports")
    assert (control.get("name"), control.get("mode"), control.get("portType")) == (
        "s_axi_control",
        "slave",
        "addressable",
    )
    names = {"smartssd_ku15p": ["m_axi_gmem"], "alveo_u50": ["m_axi_gmem", "m_axi_gmem1"]}[design.name]
    assert [memory.get("name") for memory in memories] == names
    assert int(control.get("range"), 0) == 1 << ADDRESS_BITS
    for memory in memories:
        assert (memory.get("mode"), memory.get("portType")) == ("master", "addressable")
        assert int(memory.get("range"), 0) == (1 << 64) - 1
    for port, signature in (
        (control, axi_lite(ADDRESS_BITS)),
        *((memory, axi_read(64, design.bus_bytes)) for memory in memories),
        (memories[0], axi_write(64, design.bus_bytes)),
    ):
        widths = {path[0]: len(Value.cast(value)) for path, _, value in signature.flatten(signature.create())}
        data_bits = {width for name, width in widths.items() if name in ("rdata", "wdata")}
        assert data_bits == {int(port.get("dataWidth"))}


def test_names_of_ports_are_those_of_the_rtl(kernel, design):
    members = Kernel(design).signature.members
    names = {port.get("name") for port in kernel.find("ports")}
    assert members.keys() == names | {CLOCK, RESET, INTERRUPT}
    assert MODULE_NAME == KERNEL_NAME


def test_arguments_are_the_table(kernel, design):
    # Every memory port has an argument, which linkers connect it by; the key window goes to the last.
    ports = dict.fromkeys((reg.DESCRIPTOR_ADDRESS, reg.QUERY_ADDRESS, reg.RESULT_ADDRESS), "m_axi_gmem")
    ports[reg.KEY_ADDRESS] = {"smartssd_ku15p": "m_axi_gmem", "alveo_u50": "m_axi_gmem1"}[design.name]
    found = kernel.find("args")
    assert len(found) == len(reg.ARGUMENTS)
    for index, (argument, register) in enumerate(zip(found, reg.ARGUMENTS, strict=True)):
        pointer = register in ports
        assert argument.attrib == {
            "name": register.name.lower(),
            "addressQualifier": "1" if pointer else "0",
            "id": str(index),
            "port": ports.get(register, "s_axi_control"),
            "size": hex(register.size_bytes),
            "offset": hex(register.offset),
            "hostOffset": "0x0",
            "hostSize": hex(register.size_bytes),
            "type": "void*" if pointer else {4: "unsigned int", 8: "unsigned long"}[register.size_bytes],
        }
    # What the host asks XRT's `group_id` for.
    assert found[MEMORY_ARGUMENT].get("port") == "m_axi_gmem"


def test_arguments_stay_clear_of_the_control_block_and_each_other(kernel):
    end = 0x10  # UG1393: below lies ap_ctrl_chain
    for argument in kernel.find("args"):
        offset, size = int(argument.get("offset"), 0), int(argument.get("size"), 0)
        assert offset >= end
        end = offset + size
    assert end <= reg.STATUS_OFFSET


def test_equal_designs_give_equal_bytes(design):
    assert package_files(design) == package_files(DESIGNS[design.name])


@pytest.mark.parametrize("name", sorted(set(DESIGNS) - set(CARDS)))
def test_other_parts_have_no_package(name):
    part = DESIGNS[name].device.part
    with pytest.raises(
        ValueError,
        match=f"design is '{name}' on {part}; allowed for an XRT kernel: smartssd_ku15p, alveo_u50$",
    ):
        package_files(DESIGNS[name])


def test_a_memory_port_without_an_argument_is_refused():
    design = replace(DESIGNS["alveo_u50"], key_masters=4)
    with pytest.raises(ValueError, match="key_masters is 4; allowed for an XRT kernel: up to 2, since"):
        package_files(design)

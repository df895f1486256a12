"""The register table is consistent, and laid out as XRT lays kernels out."""

import pytest

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.layout import HEAD_DIMS
from nearkv_hdl.spec.register_map import Access, Field, Register, check_table


def test_control_block_is_ap_ctrl_chain():
    assert [r.offset for r in (reg.CTRL, reg.GIER, reg.IER, reg.ISR)] == [0x00, 0x04, 0x08, 0x0C]
    assert {f.name: f.lsb for f in reg.CTRL.fields} == {
        "ap_start": 0,
        "ap_done": 1,
        "ap_idle": 2,
        "ap_ready": 3,
        "ap_continue": 4,
    }


def test_arguments_are_packed_with_one_reserved_word_each():
    offset = 0x10
    for argument in reg.ARGUMENTS:
        assert argument.offset == offset, argument.name
        offset += argument.size_bytes + 4
    assert offset <= reg.STATUS_OFFSET


def test_every_register_is_listed_once():
    named = {value for value in vars(reg).values() if isinstance(value, Register)}
    assert named == set(reg.REGISTERS)
    assert all(register.doc for register in reg.REGISTERS)


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_identity_describes_the_design(design):
    values = reg.identity_values(design)
    scorer = reg.SCORER.unpack(values[reg.SCORER])
    assert scorer["query_group"] == design.query_group
    assert scorer["query_bits"] == design.query_bits
    assert tuple(d for i, d in enumerate(HEAD_DIMS) if scorer["head_dims"] >> i & 1) == design.head_dims
    assert reg.STREAM.unpack(values[reg.STREAM]) == {"lanes": design.lanes, "bus_bytes": design.bus_bytes}
    assert reg.BLOCK.unpack(values[reg.BLOCK]) == {"block_tokens": design.block_tokens}
    assert {r for r in reg.REGISTERS if r.reset is None} <= set(values)


def test_fields_pack_and_unpack():
    register = Register("R", 0, 4, Access.READ_WRITE, 0, "", (Field("a", 0, 3, ""), Field("b", 4, 8, "")))
    assert register.pack(a=5, b=0xAB) == 0xAB5
    assert register.unpack(0xFFFFF) == {"a": 7, "b": 0xFF}
    with pytest.raises(ValueError, match=r"R.a is 8; allowed: 0 to 7"):
        register.pack(a=8)
    with pytest.raises(ValueError, match="no field 'c'"):
        register.mask("c")


def entry(name="R", offset=0, size_bytes=4, fields=(), access=Access.READ_WRITE):
    return Register(name, offset, size_bytes, access, 0, "", fields)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ((entry("A", 0, 8), entry("B", 4)), "A and B overlap at 0x4"),
        ((entry("A"), entry("A", 4)), "A is listed twice"),
        ((entry(offset=2),), "aligned to 4"),
        ((entry(size_bytes=2),), "allowed: 4 or 8"),
        ((entry(offset=4092, size_bytes=8),), "leaves the window"),
        ((entry(size_bytes=8, access=Access.CLEAR_ON_READ),), "R of access cor has 8 bytes; allowed: 4"),
        ((entry(fields=(Field("a", 0, 4, ""), Field("b", 3, 1, ""))),), "R.b overlaps"),
        ((entry(fields=(Field("a", 31, 2, ""),)),), "leaves its register"),
    ],
)
def test_bad_tables_are_refused(table, reason):
    with pytest.raises(ValueError, match=reason):
        check_table(table)

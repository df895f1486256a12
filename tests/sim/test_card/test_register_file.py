"""Every register obeys its access rule, on every design."""

import pytest

from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import DESIGNS
from nearkv_hdl.spec.register_map import WINDOW_BYTES, Access
from nearkv_sim.card.register_file import RegisterFile

WORDS = [(r, r.offset + at) for r in reg.REGISTERS for at in range(0, r.size_bytes, 4)]


@pytest.fixture
def file():
    return RegisterFile(DESIGNS["tiny"])


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_reset_values(design):
    file = RegisterFile(design)
    identity = reg.identity_values(design)
    for register, offset in WORDS:
        value = identity[register] if register.reset is None else register.reset
        assert file.read_word(offset) == value >> 8 * (offset - register.offset) & 0xFFFF_FFFF


@pytest.mark.parametrize(("register", "offset"), WORDS, ids=[f"{r.name}+{o - r.offset}" for r, o in WORDS])
def test_access_rule(file, register, offset):
    before = {at: file.read_word(at) for _, at in WORDS}
    assert file.write_word(offset, 0xA5C3_0F1B) is register
    used = register.used_mask >> 8 * (offset - register.offset) & 0xFFFF_FFFF
    seen = {
        Access.READ_WRITE: 0xA5C3_0F1B & used,
        Access.READ_ONLY: before[offset],
        Access.WRITE_ONLY: 0,
        Access.COMMAND: before[offset],
        Access.CLEAR_ON_READ: before[offset],
        Access.TOGGLE_ON_WRITE: before[offset] ^ 0xA5C3_0F1B & used,
    }[register.access]
    assert file.read_word(offset) == seen
    assert {at: file.read_word(at) for _, at in WORDS if at != offset} == {
        at: value for at, value in before.items() if at != offset
    }
    file.reset()
    assert file.read_word(offset) == before[offset]


def test_halves_of_a_long_register(file):
    file.write_word(reg.KEY_ADDRESS.offset, 0x89AB_CDEF)
    file.write_word(reg.KEY_ADDRESS.offset + 4, 0x0123_4567)
    assert file[reg.KEY_ADDRESS] == 0x0123_4567_89AB_CDEF
    file.write_word(reg.KEY_ADDRESS.offset, 1)
    assert file[reg.KEY_ADDRESS] == 0x0123_4567_0000_0001


def test_a_long_register_is_read_without_tearing(file):
    file[reg.CYCLES] = 0x1_FFFF_FFFF
    assert file.read_word(reg.CYCLES.offset) == 0xFFFF_FFFF
    file[reg.CYCLES] = 0x2_0000_0000
    assert file.read_word(reg.TOKENS.offset + 4) == 0
    assert file.read_word(reg.CYCLES.offset + 4) == 1
    assert file.read_word(reg.TOKENS.offset) == 0
    assert file.read_word(reg.CYCLES.offset + 4) == 2


def test_a_read_clears_events(file):
    file[reg.EVENTS] = reg.EVENTS.pack(done=1, failed=1)
    assert file.read_word(reg.EVENTS.offset) == 3
    assert file.read_word(reg.EVENTS.offset) == 0


def test_toggle_clears_what_is_set(file):
    file[reg.ISR] = 1
    file.write_word(reg.ISR.offset, 1)
    assert file[reg.ISR] == 0


def test_reserved_words_read_0_and_keep_nothing(file):
    used = {offset for _, offset in WORDS}
    for offset in set(range(0, WINDOW_BYTES, 4)) - used:
        assert file.write_word(offset, 0xFFFF_FFFF) is None
        assert file.read_word(offset) == 0


def test_bad_words_are_refused(file):
    for offset in (-4, 1, 2, WINDOW_BYTES):
        with pytest.raises(ValueError, match="register offset is"):
            file.read_word(offset)
        with pytest.raises(ValueError, match="register offset is"):
            file.write_word(offset, 0)
    for value in (-1, 1 << 32):
        with pytest.raises(ValueError, match="register value is"):
            file.write_word(0x10, value)

"""Block translator alone: what it reads, what it remembers, what it says of bad entries."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring

from nearkv_hdl.bus.axi_reader import read_beat_layout
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_hdl.migrate.block_translator import BlockTranslator
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import BlockEntry, MoveCode
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_sim.cosim import CompiledComponent
from nearkv_sim.cosim.words import pack_words, unpack_words

SHAPES = MoveShapes(PIM_LAYOUTS["tiny_pim"], slot_bits=2, block_bits=3, address_bits=32)
TABLE_BASE = 0x4000
ENTRIES = 2
OKAY, SLVERR, WINDOW = TransferCode.OKAY, TransferCode.SLVERR, TransferCode.WINDOW
REQUEST = {"block": {"block": 0, "slot": 0}, "generation": 3, "check": 1}
READ_CYCLES = 10
STREAMS = ("i", "o", "o_command", "i_data", "i_status")


class WithTable(wiring.Component):
    """A translator whose table stands still."""

    def __init__(self):
        self.unit = BlockTranslator(SHAPES, ENTRIES)
        super().__init__({name: self.unit.signature.members[name] for name in STREAMS})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.unit = unit = self.unit
        m.d.comb += unit.table_base.eq(TABLE_BASE)
        for name in STREAMS:
            ours = getattr(self, name)
            if name.startswith("i"):
                wiring.connect(m, wiring.flipped(ours), getattr(unit, name))
            else:
                wiring.connect(m, getattr(unit, name), wiring.flipped(ours))
        return m


@cache
def compiled():
    return CompiledComponent(WithTable(), name="translator")


def run(requests, reads):
    """Requests (slot, block, generation or None) and the reads they cause: (status, entry bytes or None).

    Returns (code, address, generation) per request, and the addresses read.
    """
    unit = compiled()
    unit.reset()
    slots, blocks, generations = zip(*requests, strict=True)
    beats = [np.frombuffer(entry, np.uint8) for _, entry in reads if entry is not None]
    inputs = {
        "i": pack_words(
            SHAPES.request,
            block={"slot": slots, "block": blocks},
            generation=[generation or 0 for generation in generations],
            check=[generation is not None for generation in generations],
        )
    }
    if reads:
        statuses = [int(status) for status, _ in reads]
        inputs["i_status"] = pack_words(status_layout(32), code=statuses, address=0)
    if beats:
        inputs["i_data"] = pack_words(read_beat_layout(16), data=np.stack(beats), keep=0xFFFF, last=1)
    result = unit.run(inputs, {"o": len(requests), "o_command": len(reads)}, drain_cycles=20)
    answers = unpack_words(SHAPES.translation, result.outputs["o"])
    commands = unpack_words(command_layout(32, 32), result.outputs["o_command"])
    assert (commands["bytes"] == 16).all()
    rows = zip(answers["code"], answers["address"], answers["generation"], strict=True)
    return [(MoveCode(int(code)), int(a), int(g)) for code, a, g in rows], commands["address"].tolist()


def entry(address, generation):
    return OKAY, BlockEntry(address, generation).pack()


def test_an_entry_is_read_where_it_lies():
    answers, addresses = run([(2, 5, 7)], [entry(0xABC00, 7)])
    assert answers == [(MoveCode.DONE, 0xABC00, 7)]
    assert addresses == [TABLE_BASE + 16 * (2 * 8 + 5)]


def test_the_last_entries_are_remembered_and_the_oldest_makes_room():
    a, b, c = (0, 1, 3), (1, 1, 4), (2, 1, 5)
    reads = [entry(0x1000, 3), entry(0x2000, 4), entry(0x3000, 5), entry(0x1000, 3)]
    answers, addresses = run([a, b, a, b, c, b, a], reads)
    assert [answer[1] for answer in answers] == [0x1000, 0x2000, 0x1000, 0x2000, 0x3000, 0x2000, 0x1000]
    assert addresses == [TABLE_BASE + 16 * (8 * slot + 1) for slot in (0, 1, 2, 0)]


def test_another_generation_and_no_check_read_again():
    reads = [entry(0x1000, 3), entry(0x2000, 4), entry(0x2000, 4), entry(0x2000, 4)]
    answers, _ = run([(0, 1, 3), (0, 1, 4), (0, 1, None), (0, 1, 3), (0, 1, 4)], reads)
    assert answers[1:3] == [(MoveCode.DONE, 0x2000, 4)] * 2
    assert answers[3][0] is MoveCode.STALE
    assert answers[4] == (MoveCode.DONE, 0x2000, 4)


@pytest.mark.parametrize(
    ("read", "code"),
    [
        ((OKAY, bytes(16)), MoveCode.ABSENT),
        (entry(0x1_0000_1000, 3), MoveCode.OUTSIDE),  # its lower 32 bits are those of another block
        (entry(1 << 63, 3), MoveCode.OUTSIDE),
        (entry(0x1000, 9), MoveCode.STALE),
        ((SLVERR, BlockEntry(0x1000, 3).pack()), MoveCode.TABLE_ERROR),
        ((WINDOW, None), MoveCode.TABLE_ERROR),
    ],
)
def test_bad_entries_are_named_and_not_remembered(read, code):
    answers, addresses = run([(0, 1, 3), (0, 1, 3)], [read, entry(0x1000, 3)])
    assert [answer[0] for answer in answers] == [code, MoveCode.DONE]
    assert len(addresses) == 2


def translate(simulate, forget_at):
    """Two requests for one block, whose reads take ten cycles; `i_forget` in one cycle."""
    unit = BlockTranslator(SHAPES, 2)
    entry = int.from_bytes(BlockEntry(0x1000, 3).pack(), "little")

    async def memory(ctx):
        ctx.set(unit.i_status.payload, {"code": TransferCode.OKAY, "address": 0})
        ctx.set(unit.i_data.payload, {"data": entry, "keep": 0xFFFF, "last": 1})
        due = None
        for cycle in range(40):
            ctx.set(unit.i_status.valid, cycle == due)
            ctx.set(unit.i_data.valid, due is not None and cycle == due + 1)
            _, _, asked = await ctx.tick().sample(unit.o_command.valid)
            if asked:
                due = cycle + READ_CYCLES

    async def forget(ctx):
        for cycle in range(40):
            ctx.set(unit.i_forget, cycle == forget_at)
            await ctx.tick()

    transfers = simulate(unit, {"i": [REQUEST] * 2}, ["o", "o_command"], memory, forget)
    assert [(answer.code, answer.address) for _, answer in transfers["o"]] == [(MoveCode.DONE, 0x1000)] * 2
    return transfers


def test_times_of_a_translation(simulate):
    transfers = translate(simulate, None)
    (read, _), *others = transfers["o_command"]
    assert others == []
    start, again = (cycle for cycle, _ in transfers["i"])
    answered, answered_again = (cycle for cycle, _ in transfers["o"])
    assert read - start == 2
    assert answered - read == READ_CYCLES + 2
    assert answered_again - again == BlockTranslator(SHAPES).latency


def test_what_is_read_while_the_table_changes_is_not_remembered(simulate):
    undisturbed = translate(simulate, None)
    (start, _), (again, _) = undisturbed["i"]
    for cycle in (start, start + 1, start + 2, start + 6, again - 4, again - 1, again, again + 1, again + 9):
        reads = len(translate(simulate, cycle)["o_command"])
        assert reads == (2 if start <= cycle <= again else 1), cycle


def test_a_translator_without_entries_is_refused():
    with pytest.raises(ValueError, match=r"entries is 0; allowed: from 1"):
        BlockTranslator(SHAPES, 0)

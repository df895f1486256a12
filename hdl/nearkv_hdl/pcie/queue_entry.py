"""Submission and completion entries as layouts, and what is wrong with a submission."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.spec.queue_entries import (
    ALIGNED_FIELDS,
    LINE_BYTES,
    NONZERO_FIELDS,
    OPCODE_SCORE,
    RESERVED_BITS,
    SUBMISSION,
    GenericStatus,
)

SUBMISSION_ENTRY = data.StructLayout({name: 8 * field.size_bytes for name, field in SUBMISSION.items()})
COMPLETION_ENTRY = data.StructLayout(
    {
        "token": 32,
        "address_line_low": 32,
        "sq_head": 16,
        "address_line_high": 16,
        "command_id": 16,
        "phase": 1,
        "status_code": 8,
        "status_type": 3,
        "_reserved": 4,
    }
)


class EntryCheck(wiring.Component):
    """Says what is wrong with a submission entry before the kernel sees it.

    Formula: INVALID_OPCODE for another opcode than OPCODE_SCORE; else INVALID_FIELD for the first field, by
    rising place, that has a reserved bit set, an address off a 64-byte line, or a 0 where something must be.
    What depends on the design or on several fields is the kernel's to judge.
    Timing: latency 0.
    Numerics: none.

    Members:
        entry: the entry.
        code: a GenericStatus, SUCCESS if nothing is wrong.
        place: first byte of the wrong field.

    """

    def __init__(self) -> None:
        super().__init__({"entry": In(SUBMISSION_ENTRY), "code": Out(8), "place": Out(range(LINE_BYTES))})

    def elaborate(self, platform):
        m = Module()
        entry = self.entry
        wrong = {name: (entry[name] & mask) != 0 for name, mask in RESERVED_BITS.items()}
        wrong |= {name: entry[name] % LINE_BYTES != 0 for name in ALIGNED_FIELDS}
        wrong |= {name: entry[name] == 0 for name in NONZERO_FIELDS}
        invalid = Signal()
        # Of several the first counts: it is assigned last.
        for name in sorted(wrong, key=lambda name: SUBMISSION[name].offset, reverse=True):
            with m.If(wrong[name]):
                m.d.comb += [invalid.eq(1), self.place.eq(SUBMISSION[name].offset)]
        with m.If(entry.opcode != OPCODE_SCORE):
            m.d.comb += [self.code.eq(GenericStatus.INVALID_OPCODE), self.place.eq(0)]
        with m.Elif(invalid):
            m.d.comb += self.code.eq(GenericStatus.INVALID_FIELD)
        return m

"""Completions: from the integrated block to their places in memory, checked against what was asked for."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import PAGE_BYTES
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.pcie.formats import (
    BEAT_BYTES,
    BEAT_DWORDS,
    COMPLETION_DWORDS,
    RC_DESCRIPTOR,
    RC_USER,
    TAG_BITS,
    CompletionError,
    CompletionStatus,
    packet_stream,
)

_LANE_BITS = (BEAT_DWORDS - 1).bit_length()


def expectation_layout(rows: int) -> data.StructLayout:
    """What a tag still expects: bytes, up to the end of the row before `end_row`."""
    return data.StructLayout({"end_row": range(rows), "bytes": range(PAGE_BYTES + 1)})


class CompletionReceiver(wiring.Component):
    """Writes the payload of completions where their requests want it.

    Formula: requests end with a whole row of 16 dwords, so the bytes a tag still expects say where the next
    one goes: dword 16 · end_row − ⌈bytes / 4⌉. A completion is good if the block found nothing wrong, status
    is SC, it is not poisoned, its byte count and address are what is expected next, it holds at least one
    dword and not more than expected, and it is marked as the last exactly if it brings all of that. Nothing
    else is written, so nothing that comes in touches another request's place. A request whose completion is
    not good, was discontinued or is shorter than it says has failed; it ends with the completion that
    the block marks as the last (PG213, Handling of Completion Errors), or by timeout.
    Timing: latency 2 from a beat to its write, and from a packet's last beat to `end`; interval 1. The block
    is never stopped.
    Numerics: none.
    Cuts: `rc` is read by registers and by one memory's address; outputs are gates behind registers.
    Reset: valid bits.

    Args:
        tags: tags in use, a power of two.
        rows: rows of 16 dwords of the memory, a power of two.

    Members:
        rc: completions.
        expect, expect_tag, expectation: a request is issued; only while `expect_ready`.
        expect_ready: no completion changes an expectation in this cycle.
        lookup_tag, outstanding, late: asked of TagPool in the cycle with `looks_up`.
        looks_up: the first beat of a packet is being judged.
        active, active_tag: a packet of an outstanding tag is under way.
        fail, end, end_tag: as of TagPool.
        write_address, write_data, write_enable: to the memory.
        unexpected: a packet of no outstanding tag came and was dropped.
        dropped_late: a packet of a tag that had timed out came and was dropped.

    """

    def __init__(self, tags: int, rows: int) -> None:
        self.tags = tags
        self.rows = rows
        index = range(tags)
        super().__init__(
            {
                "rc": In(packet_stream(RC_USER)),
                "expect": In(1),
                "expect_tag": In(index),
                "expectation": In(expectation_layout(rows)),
                "expect_ready": Out(1),
                "lookup_tag": Out(TAG_BITS),
                "outstanding": In(1),
                "late": In(1),
                "looks_up": Out(1),
                "active": Out(1),
                "active_tag": Out(index),
                "fail": Out(1),
                "end": Out(1),
                "end_tag": Out(index),
                "write_address": Out(range(rows * BEAT_DWORDS)),
                "write_data": Out(8 * BEAT_BYTES),
                "write_enable": Out(BEAT_DWORDS),
                "unexpected": Out(1),
                "dropped_late": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a beat to its write."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        layout = expectation_layout(self.rows)
        m.submodules.expected = expected = SyncMemory(layout.size, self.tags, style="distributed")

        # Rank 1: the beat, and beside a first beat what its tag expects.
        beat_valid, is_first = Signal(), Signal(init=1)
        beat = Signal(8 * BEAT_BYTES, reset_less=True)
        last, discontinue = Signal(reset_less=True), Signal(reset_less=True)
        with m.If(beat_valid):
            m.d.sync += is_first.eq(last)
        m.d.comb += self.rc.tready.eq(1)
        m.d.sync += [
            beat_valid.eq(self.rc.tvalid),
            beat.eq(self.rc.tdata),
            last.eq(self.rc.tlast),
            discontinue.eq(data.View(RC_USER, self.rc.tuser).discontinue),
        ]
        arriving = data.View(RC_DESCRIPTOR, self.rc.tdata[: RC_DESCRIPTOR.size])
        header = data.View(RC_DESCRIPTOR, beat[: RC_DESCRIPTOR.size])
        tag = header.tag[: len(self.end_tag)]
        was_updated, updated_tag, updated = Signal(), Signal.like(self.end_tag), Signal(layout)
        now = Signal(layout)
        m.d.comb += [
            expected.read_row.eq(arriving.tag),
            expected.read_enable.eq(1),
            # The memory shows what was there before an update by the beat just ahead.
            now.eq(Mux(was_updated & (updated_tag == tag), updated.as_value(), expected.read_data)),
        ]

        looks_up, owed, known, good = Signal(), Signal(), Signal(), Signal()
        dwords = Signal(range(PAGE_BYTES // 4 + 1))
        m.d.comb += [
            looks_up.eq(beat_valid & is_first),
            self.looks_up.eq(looks_up),
            self.lookup_tag.eq(header.tag),
            # The packet just ahead may have been its tag's last.
            owed.eq(
                self.outstanding
                & (header.error != CompletionError.BAD_TAG)
                & ~(self.end & (self.end_tag == tag))
            ),
            known.eq(owed & ~self.late),
            dwords.eq((now.bytes + 3) >> 2),
            good.eq(
                (header.error == CompletionError.NONE)
                & (header.status == CompletionStatus.SUCCESSFUL)
                & ~header.poisoned
                & (header.byte_count == now.bytes)
                & (header.lower_address[:6] == (-now.bytes)[:6])
                & (header.dwords != 0)
                & (header.dwords <= dwords)
                & (header.request_completed == (header.dwords == dwords))
            ),
        ]

        # The expectation after it; a new request waits for that.
        rest, update = Signal(layout), Signal()
        m.d.comb += [
            rest.end_row.eq(now.end_row),
            rest.bytes.eq((dwords - header.dwords) << 2),
            update.eq(looks_up & known & good),
            self.expect_ready.eq(~update),
            expected.write_row.eq(Mux(update, tag, self.expect_tag)),
            expected.write_data.eq(Mux(update, rest.as_value(), self.expectation.as_value())),
            expected.write_enable.eq(update | self.expect),
        ]
        m.d.sync += [was_updated.eq(update), updated_tag.eq(tag), updated.eq(rest)]

        # Rank 2: the write, and with a packet's last beat its events.
        valid, final, broken = Signal(), Signal(), Signal()
        counts, was_late, is_good, completes = (
            Signal(name=n) for n in ("counts", "was_late", "ok", "completes")
        )
        left = Signal(11)  # dwords of the packet from this beat's first lane on
        first = Signal()
        payload = Signal(8 * BEAT_BYTES, reset_less=True)
        address = Signal.like(self.write_address)
        m.d.sync += [valid.eq(beat_valid), final.eq(last), broken.eq(discontinue), payload.eq(beat)]
        with m.If(beat_valid):
            m.d.sync += first.eq(is_first)
            with m.If(is_first):
                m.d.sync += [
                    self.active_tag.eq(tag),
                    self.active.eq(owed),
                    counts.eq(owed),
                    was_late.eq(self.late),
                    is_good.eq(known & good),
                    completes.eq(header.request_completed),
                    left.eq(Mux(known & good, header.dwords + COMPLETION_DWORDS, 0)),
                    address.eq((now.end_row << _LANE_BITS) - dwords - COMPLETION_DWORDS),
                ]
            with m.Else():
                m.d.sync += [
                    left.eq(Mux(left > BEAT_DWORDS, left - BEAT_DWORDS, 0)),
                    address.eq(address + BEAT_DWORDS),
                ]
        with m.If(valid & final & ~(beat_valid & is_first)):
            m.d.sync += self.active.eq(0)
        ends = Signal()
        m.d.comb += [
            ends.eq(valid & final),
            self.write_address.eq(address),
            self.write_data.eq(payload),
            self.write_enable.eq(
                Mux(
                    valid,
                    Cat((left > lane) & ~(first & (lane < COMPLETION_DWORDS)) for lane in range(BEAT_DWORDS)),
                    0,
                )
            ),
            self.end_tag.eq(self.active_tag),
            self.end.eq(ends & counts & completes),
            self.fail.eq(ends & counts & ~was_late & (~is_good | broken | (left > BEAT_DWORDS))),
            self.unexpected.eq(ends & ~counts),
            self.dropped_late.eq(ends & counts & was_late),
        ]
        return m

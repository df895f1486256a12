"""Tags of outstanding reads: who has one, what became of it, and when it is safe again."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.pcie.formats import TAG_BITS

SHORT_TAGS = (
    32  # without extended tags a function may use 5 bits (PCI Express Base Specification 3.1, 2.2.6.2)
)


class TagPool(wiring.Component):
    """Gives tags in turn and takes each back once.

    Formula: a tag is taken, its request is sent, completions come, and its answer is given (`release`). It is
    free again when the answer is given and no completion can come any more: its last one came (`end`), or
    its quarantine is over. A tag whose last completion has not come `timeout_cycles` after `sent` has failed;
    its answer may be given, but it rests in quarantine for `quarantine_cycles` more. Tags are offered in
    turn; one in quarantine is passed over, one that is in use is waited for, since answers are given in the
    order of requests.
    Timing: the next tag is offered in the cycle after the last one was taken, one cycle later for each that
    is passed over. The watch visits one tag per cycle without `release`, `end` and `hold`, so a timeout is
    found up to `tags` such cycles late. It never gives up a tag whose request waits, or whose packet is under
    way (`active`).
    Numerics: cycle counts modulo 2^time_bits.
    Cuts: none: all outputs are gates behind registers and inputs.
    Reset: all; only together with what it counts.

    Args:
        tags: a power of two from 2 to 256.
        time_bits: of a cycle count; timeouts and quarantines are shorter than 2^(time_bits − 2) cycles.

    Members:
        extended: tags beyond 31 may be used.
        timeout_cycles, quarantine_cycles: limits.
        tag, available: the tag on offer, whether it is free.
        take: it is taken; only while available.
        waits, sent, sent_tag: the request of that tag waits, from the cycle after `take` on; it leaves in
            this cycle. No other is taken before it leaves.
        hold: no tag is to be given up in this cycle: a completion is being looked up.
        active, active_tag: a packet of that tag is under way.
        lookup_tag, outstanding, late: whether completions of a tag may come, and whether it had timed out.
        fail, end, end_tag: of that tag, something was wrong; the last completion came. Only if outstanding.
        answer_tag, done, failed: whether a tag's answer can be given, and whether it is an error.
        release: the answer of `answer_tag` is given; only if it is done.
        expires: a tag times out.
        tags_free: number.

    Raises ValueError for an argument outside its range.

    """

    def __init__(self, tags: int = 256, time_bits: int = 32) -> None:
        if tags < 2 or tags > 1 << TAG_BITS or tags & tags - 1:
            raise ValueError(f"tags is {tags}; allowed: a power of two from 2 to {1 << TAG_BITS}")
        if 1 << time_bits < 8 * tags:
            raise ValueError(f"time_bits is {time_bits}; allowed: from {(8 * tags - 1).bit_length()}")
        self.tags = tags
        self.time_bits = time_bits
        index = range(tags)
        super().__init__(
            {
                "extended": In(1),
                "timeout_cycles": In(time_bits - 2),
                "quarantine_cycles": In(time_bits - 2),
                "tag": Out(index),
                "available": Out(1),
                "take": In(1),
                "waits": In(1),
                "sent": In(1),
                "sent_tag": In(index),
                "hold": In(1),
                "active": In(1),
                "active_tag": In(index),
                "lookup_tag": In(TAG_BITS),
                "outstanding": Out(1),
                "late": Out(1),
                "fail": In(1),
                "end": In(1),
                "end_tag": In(index),
                "answer_tag": In(index),
                "done": Out(1),
                "failed": Out(1),
                "release": In(1),
                "expires": Out(1),
                "tags_free": Out(range(tags + 1), init=tags),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a release to the tag's offer."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two tags."""
        return 1

    def elaborate(self, platform):
        m = Module()
        # One bit per tag. Of a tag that is neither owed nor held, the others say nothing.
        owed = Signal(self.tags)  # completions may come
        held = Signal(self.tags)  # its answer is not given
        late = Signal(self.tags)  # timed out
        failed = Signal(self.tags)

        last = Signal.like(self.tag)
        in_turn = Signal()
        m.d.comb += [
            last.eq(Mux(self.extended, self.tags - 1, min(self.tags, SHORT_TAGS) - 1)),
            in_turn.eq(self.tag <= last),
            self.available.eq(in_turn & ~(owed | held).bit_select(self.tag, 1)),
        ]
        rests = (owed & late & ~held).bit_select(self.tag, 1)
        with m.If(self.take | ~in_turn | rests):
            m.d.sync += self.tag.eq(Mux(self.tag >= last, 0, self.tag + 1))

        in_range = self.lookup_tag < self.tags
        answers_late = late.bit_select(self.answer_tag, 1)
        m.d.comb += [
            self.outstanding.eq(in_range & owed.bit_select(self.lookup_tag[: len(self.tag)], 1)),
            self.late.eq(late.bit_select(self.lookup_tag[: len(self.tag)], 1)),
            self.done.eq(~owed.bit_select(self.answer_tag, 1) | answers_late),
            self.failed.eq(failed.bit_select(self.answer_tag, 1)),
        ]

        # The watch: `seen` is the tag whose departure `stamps` shows.
        m.submodules.stamps = stamps = SyncMemory(self.time_bits, self.tags, style="distributed")
        now = Signal(self.time_bits)
        limit = Signal(self.time_bits)
        seen = Signal.like(self.tag)
        stale = Signal()  # it was written while it was read
        age = Signal(self.time_bits)
        acts, over = Signal(), Signal()
        m.d.sync += [
            now.eq(now + 1),
            limit.eq(self.timeout_cycles + self.quarantine_cycles),
            stale.eq(self.sent & (self.sent_tag == stamps.read_row)),
            seen.eq(stamps.read_row),
        ]
        watched = acts & owed.bit_select(seen, 1)
        seen_late = late.bit_select(seen, 1)
        m.d.comb += [
            stamps.write_row.eq(self.sent_tag),
            stamps.write_data.eq(now),
            stamps.write_enable.eq(self.sent),
            stamps.read_enable.eq(1),
            acts.eq(
                ~(self.release | self.end | self.hold | stale)
                & ~(self.active & (self.active_tag == seen))
                & ~(self.waits & (self.sent_tag == seen))
            ),
            # Such tags are passed over, or the others would not be watched meanwhile.
            stamps.read_row.eq(seen + ~(self.release | self.end | self.hold)),
            age.eq(now - stamps.read_data),
            self.expires.eq(watched & ~seen_late & (age >= self.timeout_cycles)),
            over.eq(watched & seen_late & (age >= limit)),
        ]

        taken, ended, given, visited = (Signal(self.tags, name=name) for name in ("t", "e", "g", "v"))
        m.d.comb += [
            taken.eq(self.take << self.tag),
            ended.eq(self.end << self.end_tag),
            given.eq(self.release << self.answer_tag),
            visited.eq(1 << seen),
        ]
        expired, rested = Mux(self.expires, visited, 0), Mux(over, visited, 0)
        m.d.sync += [
            owed.eq((owed | taken) & ~ended & ~rested),
            held.eq((held | taken) & ~given),
            late.eq((late | expired) & ~ended & ~rested),
            failed.eq((failed | expired | (self.fail << self.end_tag)) & ~taken),
        ]

        # Whatever makes a tag free last counts it; the watch acts in cycles of its own.
        both = self.end & self.release & (self.end_tag == self.answer_tag)
        by_release = self.release & (~owed.bit_select(self.answer_tag, 1) | both)
        by_end = self.end & ~held.bit_select(self.end_tag, 1)
        by_rest = over & ~held.bit_select(seen, 1)
        m.d.sync += self.tags_free.eq(self.tags_free - self.take + by_release + by_end + by_rest)
        return m

"""Heads and tails of the two queues, and whether the host's doorbells make sense."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.spec.queue_registers import CQ_HEAD_DOORBELL, MAX_QUEUE_ENTRIES, FatalCause

_INDEX_BITS = (MAX_QUEUE_ENTRIES - 1).bit_length()
_DOORBELL_BITS = CQ_HEAD_DOORBELL.used_mask.bit_length()


class QueueIndices(wiring.Component):
    """Where both queues stand.

    Formula: a queue is empty if head and tail are equal, full if the tail is one before the head (NVM Express
    Base Specification 2.0, 3.3.1). The host moves the submission tail and the completion head, the device
    the other two. A doorbell beyond its queue is wrong, and so is a completion head that would pass the
    tail; a wrong one does not count.
    Timing: latency 0 from a submission tail to `work` and from either doorbell to `wrong`, 1 from a
    completion head to `room`; interval 1.
    Numerics: modulo sq_last + 1 and cq_last + 1.
    Reset: all.

    Members:
        sq_last, cq_last: entries of the queues, minus 1.
        sq_tail, cq_head: doorbells.
        clear: back to the start.
        fetched, posted: an entry was taken, a completion was put.
        sq_head, cq_tail, phase: indices, and the phase bit at the tail.
        work: a submission waits.
        room: a completion may be posted.
        wrong: FatalCause of a doorbell that is wrong now, or NONE.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "sq_last": In(_INDEX_BITS),
                "cq_last": In(_INDEX_BITS),
                "sq_tail": In(_DOORBELL_BITS),
                "cq_head": In(_DOORBELL_BITS),
                "clear": In(1),
                "fetched": In(1),
                "posted": In(1),
                "sq_head": Out(_INDEX_BITS),
                "cq_tail": Out(_INDEX_BITS),
                "phase": Out(1, init=1),
                "work": Out(1),
                "room": Out(1),
                "wrong": Out(FatalCause),
            }
        )

    def elaborate(self, platform):
        m = Module()
        head = Signal(_INDEX_BITS)  # of the completion queue, as last accepted
        used = _distance(m, "used", head, self.cq_tail, self.cq_last)
        step = _distance(m, "step", head, self.cq_head[:_INDEX_BITS], self.cq_last)
        moved, beyond = Signal(), Signal()
        m.d.comb += [
            moved.eq(self.cq_head != head),
            beyond.eq((self.cq_head > self.cq_last) | (step > used)),
        ]
        with m.If(moved & ~beyond):
            m.d.sync += head.eq(self.cq_head)
        sq_wrong = self.sq_tail > self.sq_last
        m.d.comb += [
            self.work.eq((self.sq_head != self.sq_tail) & ~sq_wrong),
            self.room.eq(used != self.cq_last),
        ]
        with m.If(sq_wrong):
            m.d.comb += self.wrong.eq(FatalCause.SQ_DOORBELL)
        with m.Elif(moved & beyond):
            m.d.comb += self.wrong.eq(FatalCause.CQ_DOORBELL)
        with m.If(self.fetched):
            m.d.sync += self.sq_head.eq(Mux(self.sq_head == self.sq_last, 0, self.sq_head + 1))
        with m.If(self.posted):
            m.d.sync += self.cq_tail.eq(self.cq_tail + 1)
            with m.If(self.cq_tail == self.cq_last):
                m.d.sync += [self.cq_tail.eq(0), self.phase.eq(~self.phase)]
        with m.If(self.clear):
            m.d.sync += [head.eq(0), self.sq_head.eq(0), self.cq_tail.eq(0), self.phase.eq(1)]
        return m


def _distance(m: Module, name: str, start: Value, end: Value, last: Value) -> Value:
    """Entries from `start` up to `end` in a ring of last + 1, both within it."""
    ahead = Signal(signed(_INDEX_BITS + 1), name=f"{name}_ahead")
    distance = Signal(_INDEX_BITS, name=name)
    m.d.comb += [ahead.eq(end - start), distance.eq(Mux(ahead < 0, ahead + last + 1, ahead))]
    return distance

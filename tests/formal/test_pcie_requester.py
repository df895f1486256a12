"""Proofs on the PCIe requester: the request stream keeps its contract, a tag is used once at a time.

Small: 2 tags, cycle counts of 4 or 5 bits. Times, tags, completions and answers are free; assumed is what the
neighbours of TagPool are built to keep: it is asked only for tags it offers, hears of a last completion only
for tags whose completions may come, and of an answer only if there is one.
"""

import pytest
from amaranth.hdl import Assert, Assume, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In

from nearkv_hdl.pcie.completion_room import CompletionRoom
from nearkv_hdl.pcie.read_splitter import ReadSplitter
from nearkv_hdl.pcie.request_arbiter import RequestArbiter
from nearkv_hdl.pcie.tags import TagPool
from nearkv_hdl.pcie.write_packer import WritePacker
from nearkv_hdl.stream.contract import StreamContract
from nearkv_sim.formal import Bench, Status, prove, prove_stream_contract

TAGS, TIME_BITS = 2, 4
LONGER_TIME_BITS, BOUND_CYCLES = 5, 14  # quarantines longer than a round of the watch
RQ_FIELDS = ("tdata", "tkeep", "tlast", "tuser")


class WithStream(wiring.Component):
    """A component without streams beside one, since a bench needs at least one; its ports as they are."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__({**inner.signature.members, "i": In(stream.Signature(1, always_ready=True))})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.inner = self.inner
        for name, member in self.inner.signature.members.items():
            ours, theirs = getattr(self, name), getattr(self.inner, name)
            m.d.comb += theirs.eq(ours) if member.flow is In else ours.eq(theirs)
        return m


def arbiter_bench():
    """RQ under free sources; whether a write packet's beats come without a gap is up to them."""
    unit = RequestArbiter(TAGS)
    bench = Bench(unit)
    bench.add(
        "rq",
        StreamContract(sum(len(Value.cast(getattr(unit.rq, name))) for name in RQ_FIELDS)),
        valid=unit.rq.tvalid,
        ready=unit.rq.tready,
        payload=Cat(getattr(unit.rq, name) for name in RQ_FIELDS),
    )
    return bench


def test_requests_keep_the_contract():
    bench = arbiter_bench()
    proof = prove(bench.module, bench.free)
    assert proof.status is Status.PROVED, proof.message


def test_packets_are_not_mixed():
    # From a write packet's first beat to its last, no read request is taken, and the other way round.
    unit = RequestArbiter(TAGS)
    bench = Bench(unit)
    m, rq = bench.module, unit.rq
    inside = Signal()
    taken = rq.tvalid & rq.tready
    with m.If(taken):
        m.d.sync += inside.eq(~rq.tlast)
    with m.If(inside):
        m.d.sync += Assert(~(unit.request.valid & unit.request.ready), "a request within a packet")
    m.d.sync += Assert(
        taken == ((unit.request.valid & unit.request.ready) | (unit.packet.valid & unit.packet.ready)),
        "a beat without a source",
    )
    proof = prove(bench.module, bench.free)
    assert proof.status is Status.PROVED, proof.message


@pytest.mark.parametrize("make", [ReadSplitter, WritePacker])
def test_pieces_keep_the_contract(make):
    # Sizes may change at any time.
    proof = prove_stream_contract(make)
    assert proof.status is Status.PROVED, proof.message


def tags_bench(rest_longer_by=0, time_bits=TIME_BITS):
    """A tag is taken only if its answer is given and its completions cannot come any more.

    The bench keeps its own books: completions may come until the last one, or until timeout and quarantine
    have passed since the request left; the bench wants `rest_longer_by` cycles more.
    """
    unit = WithStream(TagPool(TAGS, time_bits))
    bench = Bench(unit)
    m = bench.module
    limit, rest = unit.timeout_cycles, unit.quarantine_cycles
    hold_steady(m, Cat(limit, rest))

    may_come, unanswered = Signal(TAGS), Signal(TAGS)
    unsent, unsent_tag = Signal(), Signal(range(TAGS))
    ages = [Signal(range(1 << time_bits), name=f"age{tag}") for tag in range(TAGS)]
    taken, released, completed = (
        Mux(event, Const(1, TAGS) << tag, 0)
        for event, tag in (
            (unit.take, unit.tag),
            (unit.release, unit.answer_tag),
            (unit.end, unit.end_tag),
        )
    )
    m.d.comb += [
        Assume(~unit.take | (unit.available & (~unsent | unit.sent))),
        Assume(~unit.sent | unsent),
        Assume(unit.waits == unsent),
        Assume(~unsent | (unit.sent_tag == unsent_tag)),
        # Completions are looked up first, and their tag is active up to the last beat.
        Assume(~unit.end | (unit.active & (unit.active_tag == unit.end_tag))),
        Assume(~unit.end | ((unit.lookup_tag == unit.end_tag) & unit.outstanding)),
        Assume(~unit.fail | ((unit.lookup_tag == unit.end_tag) & unit.outstanding)),
        Assume(~unit.release | (unanswered.bit_select(unit.answer_tag, 1) & unit.done)),
    ]
    m.d.sync += [
        may_come.eq((may_come | taken) & ~completed),
        unanswered.eq((unanswered | taken) & ~released),
        unsent.eq((unsent & ~unit.sent) | unit.take),
    ]
    with m.If(unit.take):
        m.d.sync += unsent_tag.eq(unit.tag)
    for tag, age in enumerate(ages):
        with m.If(unit.sent & (unit.sent_tag == tag)):
            m.d.sync += age.eq(0)
        with m.Elif(age != (1 << time_bits) - 1):
            m.d.sync += age.eq(age + 1)

    def over(tag, cycles):
        """Whether so many cycles have passed since the tag's request left."""
        is_unsent = unsent & (unsent_tag == tag)
        return ~is_unsent & (Mux(tag, ages[1], ages[0]) >= cycles)

    rested = over(unit.tag, limit + rest + rest_longer_by)
    with m.If(unit.take):
        m.d.sync += [
            Assert(~unanswered.bit_select(unit.tag, 1), "taken before its answer was given"),
            Assert(~may_come.bit_select(unit.tag, 1) | rested, "taken while completions may come"),
        ]
    with m.If(unanswered.bit_select(unit.answer_tag, 1) & unit.done):
        in_time = ~may_come.bit_select(unit.answer_tag, 1)
        m.d.sync += Assert(in_time | over(unit.answer_tag, limit), "answered before its time")
    m.d.sync += Assert(unit.tags_free <= TAGS, "more tags than there are")
    with m.If(~(may_come | unanswered).any()):
        m.d.sync += Assert(unit.tags_free == TAGS, "a tag is lost, or was counted twice")
    with m.If(unit.available):
        m.d.sync += Assert(unit.tags_free != 0, "a tag is offered that is not counted")
    return bench


def hold_steady(m, value):
    """Assume that a free value stands still, whatever it is."""
    before, started = Signal(len(value), reset_less=True), Signal(reset_less=True)
    m.d.sync += [before.eq(value), started.eq(1)]
    with m.If(started):
        m.d.comb += Assume(value == before)


def test_a_tag_is_used_once_at_a_time():
    bench = tags_bench()
    proof = prove(bench.module, bench.free)
    assert proof.status is Status.PROVED, proof.message


def test_a_tag_rests_its_whole_quarantine():
    bench = tags_bench(time_bits=LONGER_TIME_BITS)
    proof = prove(bench.module, bench.free, bound=BOUND_CYCLES)
    assert proof.status is Status.BOUNDED, proof.message


def test_a_longer_rest_is_refuted():
    # All that differs from the bench above is the assertion on completions that may come.
    bench = tags_bench(rest_longer_by=TAGS + 2)
    assert prove(bench.module, bench.free).status is Status.REFUTED


def room_bench(given_in_excess=0):
    """What is under way and what is free are all there is; nothing falls below 0."""
    unit = WithStream(CompletionRoom(64, 5120))
    bench = Bench(unit)
    m = bench.module
    credits, headers = Signal(range(1 << 12)), Signal(range(1 << 9))  # under way
    needed = 4 * (unit.more_beats + 1) + unit.needed_headers
    given = 4 * (unit.given_more_beats + 1) + unit.given_headers
    m.d.comb += [
        Assume(~unit.take | unit.fits),
        Assume(~unit.give | ((given <= credits + given_in_excess) & (unit.given_headers <= headers))),
    ]
    m.d.sync += [
        credits.eq(credits + Mux(unit.take, needed, 0) - Mux(unit.give, given, 0)),
        headers.eq(headers + Mux(unit.take, unit.needed_headers, 0) - Mux(unit.give, unit.given_headers, 0)),
        Assert(unit.credits_free + credits == 320, "credits are lost or won"),
        Assert(unit.headers_free + headers == 64, "headers are lost or won"),
    ]
    return bench


def test_room_is_never_exceeded():
    bench = room_bench()
    proof = prove(bench.module, bench.free)
    assert proof.status is Status.PROVED, proof.message
    bench = room_bench(given_in_excess=1)
    assert prove(bench.module, bench.free).status is Status.REFUTED

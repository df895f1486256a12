"""The scorer and its parts keep the stream contract and never stand still: proofs.

A deadlock of the scorer would stand in one of three places: the lanes wait for a credit that never comes, a
token finds no place in the output queue, or the streams wait for each other. The first two are proved for all
time on the parts, the third is searched to a bound on the whole scorer.
"""

from functools import partial

import pytest
from amaranth.hdl import Assume, Cat, Module, Mux, Signal

from nearkv_hdl.attention.key_planes import KeyPlanes
from nearkv_hdl.attention.lane_issue import LaneIssue
from nearkv_hdl.attention.query_buffer import BANKS, QueryBuffer
from nearkv_hdl.attention.score_output import ScoreOutput
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import KU15P, LFE5U_85F
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_hdl.spec.scorer_pipeline import pipeline_ranks
from nearkv_hdl.stream.contract import ProgressWatch, TokenCount
from nearkv_sim.formal import (
    Bench,
    Status,
    prove,
    prove_no_deadlock,
    prove_ready_independent,
    prove_stream_contract,
)
from nearkv_sim.formal.properties import STORED_DATA_CELLS

TWO_BLOCKS_CYCLES = 18  # both blocks streamed in, the first one's scores away


def small(variant: MacVariant) -> DesignConfig:
    """Blocks of four tokens, a lane beat each: four beats of keys a plane and one of a head's queries."""
    return DesignConfig(
        name="proof",
        device=LFE5U_85F if variant is MacVariant.MULT18X18D else KU15P,
        bus_bytes=32,
        lanes=64,
        query_group=2 if variant is MacVariant.PACKED_HEADS else 1,
        head_dims=(64,),
        clock_hz=1,
        block_tokens=4,
        variant=variant,
    )


PLAIN = small(MacVariant.PLAIN)


@pytest.fixture(params=MacVariant, ids=lambda variant: variant.value)
def design(request):
    return small(request.param)


def test_contract(design):
    proof = prove_stream_contract(lambda: Scorer(design), cut=STORED_DATA_CELLS)
    assert proof.status is Status.PROVED, proof.message


def test_no_ready_waits_for_a_valid(design):
    proof = prove_ready_independent(lambda: Scorer(design))
    assert proof.status is Status.PROVED, proof.message


def test_no_deadlock(design):
    within = pipeline_ranks(design) + 1  # with all its blocks fed, the first score is what moves next
    proof = prove_no_deadlock(lambda: Scorer(design), within=within, bound=within + TWO_BLOCKS_CYCLES)
    assert proof.status is Status.BOUNDED, proof.message


def lane_issue_bench(credits, *, overdraw=0, loses_credits=False):
    """Lanes with a source of rows, complete queries, and a sink that returns a credit per token it took."""
    m = Module()
    m.submodules.issue = unit = LaneIssue(PLAIN, credits)
    free = {name: Signal(name=name) for name in ("row_complete", "score_taken", "key_format", "lost")}
    m.submodules.outstanding = outstanding = TokenCount(credits - overdraw)
    m.submodules.rows = rows = TokenCount(PLAIN.plane_rows)
    takes_credit = unit.o_valid & unit.o_beat.first
    taken = Signal()
    m.d.comb += [
        unit.ready.eq(-1),
        unit.row_complete.eq(free["row_complete"] & (rows.count != PLAIN.plane_rows)),
        taken.eq(free["score_taken"] & (outstanding.count != 0)),
        unit.score_taken.eq(taken & ~(free["lost"] & loses_credits)),
        unit.key_format.eq(free["key_format"].replicate(BANKS)),
        outstanding.enters.eq(takes_credit),
        outstanding.leaves.eq(taken),
        rows.enters.eq(unit.row_complete),
        rows.leaves.eq(unit.o_valid & unit.o_row_end),
    ]
    # Rows are there and the sink is idle: the lanes must move.
    m.submodules.moves = moves = ProgressWatch(unit.latency + 2, "a lane beat")
    m.d.comb += [
        moves.pending.eq((rows.count != 0) & (outstanding.count == 0)),
        moves.counts.eq(1),
        moves.happens.eq(unit.o_valid),
    ]
    return m, free


@pytest.mark.parametrize("credits", [2, 5])
def test_lanes_spend_the_credits_they_have_and_never_more(credits):
    assert prove(*lane_issue_bench(credits)).status is Status.PROVED
    # All of them can be out at a time: a queue one place shorter would overflow.
    assert prove(*lane_issue_bench(credits, overdraw=1)).status is Status.REFUTED


def test_a_lost_credit_is_found_as_a_deadlock():
    assert prove(*lane_issue_bench(2, loses_credits=True)).status is Status.REFUTED


def score_output_bench(depth, *, places=0):
    """Score output fed by lanes that have as many tokens under way as the queue has places, and some more."""
    unit = ScoreOutput(PLAIN, depth)
    bench = Bench(unit)
    tokens = TokenCount(depth + places)
    count = bench.add("tokens", tokens, enters=unit.valid, leaves=bench.output(None).transfers).count
    bench.module.d.sync += Assume(~unit.valid | (count < depth + places))
    due = ProgressWatch(unit.latency, "o.valid")
    bench.add("due", due, pending=count != 0, counts=1, happens=unit.o.valid)
    return bench


@pytest.mark.parametrize("depth", [3, 8])
def test_the_output_queue_keeps_every_score(depth):
    bench = score_output_bench(depth)
    proof = prove(bench.module, bench.free, cut=STORED_DATA_CELLS)
    assert proof.status is Status.PROVED, proof.message
    # Of one token more than the queue has places one is lost, and waited for in vain.
    bench = score_output_bench(depth, places=1)
    proof = prove(bench.module, bench.free, cut=STORED_DATA_CELLS)
    assert proof.status is Status.REFUTED
    assert "o.valid" in score_output_bench(depth, places=1).replay(proof)


def test_a_queue_that_loses_scores_is_refused():
    with pytest.raises(ValueError, match="depth is 2; allowed: from 3"):
        ScoreOutput(PLAIN, 2)


def serving(m, component, _bench, *, releases=True):
    """A scorer that works off whatever is there: banks, and rows of the low queue."""
    if isinstance(component, QueryBuffer):
        m.d.sync += Assume(component.used == component.ready)
        m.d.sync += Assume(component.release == Mux(releases, component.ready, 0))
    else:
        in_range = [index < len(component.design.head_dims) for index in component.head_dim_index]
        m.d.sync += Assume(Cat(component.known, *in_range).all())
        m.d.sync += Assume(component.release == Mux(releases, -1, 0))
        m.d.sync += Assume(component.low_drop == (component.low_rows != 0))


@pytest.mark.parametrize(("store", "within"), [(QueryBuffer, 0), (KeyPlanes, 1)], ids=["queries", "planes"])
def test_stores_take_what_is_offered(store, within):
    def make():
        return store(PLAIN)

    proof = prove_no_deadlock(make, within=within, constrain=serving)
    assert proof.status is Status.PROVED, proof.message
    # Nothing can be taken for long if no bank is ever released.
    neglect = partial(serving, releases=False)
    assert prove_no_deadlock(make, within=16, constrain=neglect).status is Status.REFUTED
    assert prove_ready_independent(make).status is Status.PROVED

"""Proofs on a small TopK: the stream contract and freedom from deadlock, whatever pauses and resets come.

A deadlock would have to stand in one of the waits of a job. Each part's share is proved for all time: the
emitter moves within `lanes` cycles of a ready sink, a walk ends, a scan answers, the control comes to the
emission after at most two passes. That as many items are selected as announced, so that the emission ends,
is arithmetic: exhaustive tests show it. Whole jobs of the composed unit are searched to a bound.
"""

from __future__ import annotations

import pytest
from amaranth.hdl import Assume, Cat, Signal, Value

from nearkv_hdl.attention.topk import TopK
from nearkv_hdl.attention.topk_control import TopKControl
from nearkv_hdl.attention.topk_emit import TopKEmitter
from nearkv_hdl.attention.topk_rows import TopKRows
from nearkv_hdl.attention.topk_scan import HistogramScan
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_hdl.stream.contract import ProgressWatch, TokenCount
from nearkv_sim.formal import Bench, Status, prove, prove_stream_contract

# Two digits and three, two lanes and one.
CONFIGS = {
    "two_lanes": TopKConfig(
        capacity=4, lanes=2, score_bits=3, digit_bits=2, scan_columns=2, candidate_rows=2, token_bits=2
    ),
    "three_digits": TopKConfig(
        capacity=3, lanes=1, score_bits=3, digit_bits=1, scan_columns=1, candidate_rows=2, token_bits=2
    ),
}
BOUND_CYCLES = 48  # holds clearing, a frame of one beat and its job without a pass
SCAN_LATENCY = 2  # of the environment in the control's proof: every second cycle answers
SETTLE_CYCLES = 6


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def wait(bench, name, limit, *, pending=1, counts=1, happens):
    """Claim that something comes within a number of cycles."""
    bench.add(name, ProgressWatch(limit, name), pending=pending, counts=counts, happens=happens)


def settled(bench, **options):
    return prove(bench.module, bench.free, timeout_seconds=120, **options)


def test_stream_contract(config):
    proof = prove_stream_contract(lambda: TopK(config))
    assert proof.status is Status.PROVED, proof.message


def emitter_bench(config, limit):
    unit = TopKEmitter(config)
    bench = Bench(unit)
    wait(bench, "row_taken", limit, counts=unit.o.ready, happens=unit.enable)
    return bench


def test_emitter_moves(config):
    """A row waits for no more cycles of a ready sink than there are lanes; the bound is tight."""
    limit = config.lanes
    assert settled(emitter_bench(config, limit), cut=["$mem_v2"]).status is Status.PROVED
    assert settled(emitter_bench(config, limit - 1), cut=["$mem_v2"]).status is Status.REFUTED


def rows_bench(config, limit):
    unit = TopKRows(config)
    bench = Bench(unit)
    m = bench.module
    walking = Signal()
    m.d.sync += walking.eq((walking | unit.start) & ~unit.ended & ~unit.clear)
    # What the control holds still during a walk. `count` must stand one cycle before.
    held = Cat(unit.count, Value.cast(unit.search))
    before = Signal(len(held))
    m.d.sync += before.eq(held)
    # Replays are proved by the control's order: only after a walk that kept something.
    m.d.comb += Assume(~unit.search.replay & (unit.count >= 1) & (unit.count <= config.capacity))
    m.d.comb += Assume(~(walking | unit.start) | (held == before))
    m.d.comb += Assume(~(walking & unit.start))
    wait(bench, "walk_ended", limit, pending=walking, counts=unit.enable, happens=unit.ended)
    return bench


def test_a_walk_ends(config):
    """After as many enabled cycles as the score memory has rows."""
    limit = config.rows - 1  # the cycle of `ended` itself is not counted
    proof = settled(rows_bench(config, limit), cut=["$mem_v2"])
    assert proof.status is Status.PROVED, proof.message


def scan_bench(config, limit):
    unit = HistogramScan(config, config.lanes, bank_latency=1)
    bench = Bench(unit)
    m = bench.module
    # Rows come one cycle after they are asked for; the next scan starts after this one's result.
    asked, due = Signal(), Signal()
    m.d.sync += [asked.eq(unit.o_row.valid), due.eq((due | unit.i.valid) & ~unit.o.valid)]
    m.d.comb += [Assume(unit.i_rows.valid == asked), Assume(~(unit.i.valid & due))]
    wait(bench, "result", limit, pending=due, happens=unit.o.valid)
    return bench


def test_a_scan_answers(config):
    """At the stated latency, whatever the counters; the bound is tight."""
    latency = scan_bench(config, 0).component.latency
    assert settled(scan_bench(config, latency - 1)).status is Status.PROVED
    assert settled(scan_bench(config, latency - 2)).status is Status.REFUTED


def control_bench(config, limit):
    unit = TopKControl(config, SETTLE_CYCLES)
    bench = Bench(unit)
    m = bench.module
    # Scans and walks answer every second cycle; what they answer is free.
    for name in ("i_window_valid", "walk_ended"):
        answered = Signal(name=f"{name}_before", init=1)
        m.d.sync += answered.eq(bench.free[name])
        m.d.comb += Assume(bench.free[name] | answered)
    due = Signal()
    m.d.sync += due.eq((due | (unit.load_enable & unit.load_ended)) & ~unit.emit_start)
    wait(bench, "emission", limit, pending=due, happens=unit.emit_start)
    return bench


def test_control_comes_to_the_emission(config):
    """After the first digit and at most two passes, each a few cycles more than `settle`, scan and walk."""
    digits = -(-config.score_bits // config.digit_bits)
    one = SETTLE_CYCLES + 2 * SCAN_LATENCY + 5  # settle, scan, place, move, walk
    proof = settled(control_bench(config, digits * one))
    assert proof.status is Status.PROVED, proof.message
    assert settled(control_bench(config, (digits - 1) * one)).status is Status.REFUTED


def whole_bench(config):
    """Every wait that TopK may impose on its neighbours, for jobs that need no pass."""
    unit = TopK(config)
    bench = Bench(unit)
    m = bench.module
    job_taken = unit.i_job.valid & unit.i_job.ready
    frame_in = unit.i.valid & unit.i.ready & unit.i.payload.last
    frame_out = unit.o.valid & unit.o.ready & unit.o.payload.last
    status_out = unit.o_status.valid & unit.o_status.ready
    k = unit.i_job.payload.k
    m.d.comb += Assume((k == 0) | (k >= config.capacity))  # nothing, or all: the first digit decides

    # One frame and one status a job. Two short frames may wait in the output register while a third loads.
    frames = bench.add("frames", TokenCount(3), enters=job_taken, leaves=frame_out).count
    statuses = bench.add("statuses", TokenCount(1), enters=job_taken, leaves=status_out).count
    due_frames = bench.add("due_frames", TokenCount(3), enters=frame_in, leaves=frame_out).count
    due_statuses = bench.add("due_statuses", TokenCount(1), enters=frame_in, leaves=status_out).count
    loading = Signal()
    m.d.sync += loading.eq((loading | job_taken) & ~frame_in)

    job = unit.latency + config.rows + config.capacity
    assert unit.clear_latency + 1 + job <= BOUND_CYCLES  # else the search would end before the limits
    idle = (frames == 0) & (statuses == 0)
    wait(bench, "job", unit.clear_latency, pending=unit.i_job.valid & idle, happens=job_taken)
    wait(bench, "beat", 0, pending=unit.i.valid & loading, happens=unit.i.ready)
    wait(bench, "status", job, pending=due_statuses != 0, happens=unit.o_status.valid)
    wait(bench, "item", job, pending=due_frames != 0, happens=unit.o.valid)
    wait(bench, "frame", job, pending=due_frames != 0, counts=unit.o.ready, happens=frame_out)
    return bench


def test_whole_jobs_to_a_bound():
    bench = whole_bench(CONFIGS["two_lanes"])
    proof = settled(bench, bound=BOUND_CYCLES)
    assert proof.status is Status.BOUNDED, proof.message

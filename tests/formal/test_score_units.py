"""Score statistics and row scorer: contract, readiness, no deadlock, under any pauses and resets."""

from __future__ import annotations

import pytest
from amaranth.hdl import Assert, Value

from nearkv_hdl.attention.row_scorer import RowScorer
from nearkv_hdl.attention.score_statistics import ScoreStatistics
from nearkv_hdl.attention.score_statistics_head import HeadAccumulator
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import LFE5U_85F
from nearkv_hdl.spec.score_statistics import STATISTICS_DEGREE
from nearkv_sim.formal import (
    Bench,
    Status,
    prove,
    prove_no_deadlock,
    prove_ready_independent,
    prove_stream_contract,
)


def small(query_group: int) -> DesignConfig:
    return DesignConfig(
        name=f"group{query_group}",
        device=LFE5U_85F,
        bus_bytes=4,
        lanes=4,
        query_group=query_group,
        head_dims=(64,),
        clock_hz=1_000_000,
        block_tokens=4,
    )


@pytest.fixture(params=[1, 2])
def statistics(request):
    return lambda: ScoreStatistics(small(request.param))


def test_statistics_keep_the_stream_contract(statistics):
    assert prove_stream_contract(statistics).status is Status.PROVED


def test_statistics_pass_every_score_in_its_cycle_unchanged(statistics):
    unit = statistics()
    bench = Bench(unit)
    score_in, score_out = bench.input("i"), bench.output("o")
    same = Value.cast(unit.i.payload) == Value.cast(unit.o.payload)
    bench.module.d.comb += [
        Assert(score_in.transfers == score_out.transfers, "fork: taken on one side only"),
        Assert(~score_out.transfers | same, "fork: payload changed"),
    ]
    assert prove(bench.module, bench.free).status is Status.PROVED


def test_statistics_wait_for_no_token(statistics):
    assert prove_ready_independent(statistics).status is Status.PROVED


@pytest.mark.parametrize("query_group", [1, 2])
def test_statistics_never_hang(query_group):
    """With all neighbours willing something moves at least as often as this; the bound is tight."""

    def make():
        return ScoreStatistics(small(query_group))

    # After a job's last token: the maxima, then the next job's constants; then a job is taken again.
    limit = HeadAccumulator(STATISTICS_DEGREE).maximum_latency + query_group
    assert prove_no_deadlock(make, within=limit).status is Status.PROVED
    assert prove_no_deadlock(make, within=limit - 1).status is Status.REFUTED


# What the queries' memory, the multipliers and the shifters give is free: a proof covers any numbers.
ROW_DATA = ("$mul", "$mem_v2", "$shr", "$sshr", "$shl")


@pytest.fixture(params=[1, 2])
def row_scorer(request):
    return lambda: RowScorer(small(request.param))


def test_rows_keep_the_stream_contract(row_scorer):
    assert prove_stream_contract(row_scorer, cut=ROW_DATA).status is Status.PROVED


def test_rows_wait_for_no_token(row_scorer):
    assert prove_ready_independent(row_scorer).status is Status.PROVED


def test_rows_never_hang():
    """With all neighbours willing only one cycle in succession, after the queries, passes idle."""

    def make():
        return RowScorer(small(1))

    assert prove_no_deadlock(make, within=1, cut=ROW_DATA).status is Status.PROVED
    assert prove_no_deadlock(make, within=0, cut=ROW_DATA).status is Status.REFUTED

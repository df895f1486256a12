"""Golden arithmetic and compiled RTL are one engine: equal scores, equal cycles, no stale block."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.codec.key_block import join_planes
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.cosim import Stalls
from nearkv_sim.engines import EngineStalled, GoldenEngine, ScoreOverflow
from nearkv_sim.engines_rtl import RtlEngine
from nearkv_sim.golden.scorer import ScorerModel
from nearkv_sim.golden.scorer_timing import job_cycles


def by_hand(design, job):
    """Scores in plain int64, one block at a time."""
    layout = design.layout(job.head_dim)
    scores = []
    for block, planes in enumerate(job.planes):
        high, low = planes[: layout.plane_bytes], planes[layout.plane_bytes :]
        codes = join_planes(high, low if len(low) else None, layout).astype(np.int64)
        dots = codes @ job.query_codes[block].T.astype(np.int64)
        scores.append(job.bias[block] + (dots << job.shift[block]))
    return np.concatenate(scores)


@pytest.mark.parametrize("formats", [(KeyFormat.INT8,), (KeyFormat.INT4,), tuple(KeyFormat)], ids=str)
def test_engines_agree(design, golden, rtl, random_job, formats):
    address = 0
    for head_dim in design.head_dims:
        for blocks in (1, 2, 7):
            for heads in range(1, design.query_group + 1):
                job = random_job(design, blocks, heads, head_dim, formats, address=address)
                address += 1 << 24
                first, second = golden.run(job), rtl.run(job)
                assert first.scores.dtype == second.scores.dtype == np.int32
                assert np.array_equal(first.scores, by_hand(design, job))
                assert np.array_equal(second.scores, first.scores)
                assert second.cycles == first.cycles
                assert first.cycles == job_cycles(design, [head_dim] * blocks, job.key_formats)


def test_stalls_change_the_cycles_alone(design, golden, random_job):
    stalls = Stalls(seed=3, input_probability=0.6, output_probability=0.4, mean_burst_cycles=9)
    stalled = RtlEngine(design, stalls)
    job = random_job(design, 5, design.query_group, design.head_dims[-1])
    expected, found = golden.run(job), stalled.run(job)
    assert np.array_equal(found.scores, expected.scores)
    assert found.cycles > 1.1 * expected.cycles


@pytest.mark.parametrize("engine", ["golden", "rtl"])
def test_overflow_is_reported_and_leaves_nothing_behind(design, random_job, engine, request):
    engine = request.getfixturevalue(engine)
    job = random_job(design, 2, design.query_group, 64)
    bias = job.bias.copy()
    bias[1, -1] = (1 << 31) - 1
    codes = np.sign(np.ones_like(job.query_codes)) * design.query_code.max
    bad = replace(job, bias=bias, query_codes=codes, planes=tuple(p * 0 + 0x77 for p in job.planes))
    with pytest.raises(ScoreOverflow):
        engine.run(bad)
    good = replace(job, sources=tuple((a, g + 1) for a, g in job.sources))
    assert np.array_equal(engine.run(good).scores, by_hand(design, good))


def test_a_scorer_that_starves_is_stalled_and_recovers(design, rtl, random_job):
    job = random_job(design, 3, 1, 64)
    short = replace(job, planes=(*job.planes[:2], job.planes[2][: -design.bus_bytes]))
    with pytest.raises(EngineStalled, match="nothing moved"):
        rtl.run(short)
    assert np.array_equal(rtl.run(job).scores, by_hand(design, job))


def test_a_rewritten_block_is_decoded_again(design, golden, random_job):
    first = random_job(design, 4, 1, 64, generation=1)
    golden.run(first)
    second = random_job(design, 4, 1, 64, generation=1)
    # Blocks 0 and 2 were written again, 1 and 3 are the old ones.
    mixed = replace(
        first,
        planes=(second.planes[0], first.planes[1], second.planes[2], first.planes[3]),
        key_formats=(
            second.key_formats[0],
            first.key_formats[1],
            second.key_formats[2],
            first.key_formats[3],
        ),
        sources=tuple((a, 2 - block % 2) for block, (a, _) in enumerate(first.sources)),
    )
    assert np.array_equal(golden.run(mixed).scores, by_hand(design, mixed))
    assert np.array_equal(golden.run(mixed).scores, by_hand(design, mixed))


@pytest.mark.parametrize("capacity_blocks", [0, 1, 3, 4, 6, 100])
def test_any_cache_size_gives_the_same_scores(design, random_job, rng, capacity_blocks):
    itemsize = np.dtype(ScorerModel(design).exact_dtype(64)).itemsize
    engine = GoldenEngine(design, cache_bytes=capacity_blocks * design.block_tokens * 64 * itemsize)
    jobs = [random_job(design, 4, 1, 64, address=1 << (24 + i)) for i in range(3)]
    for _ in range(12):
        job = jobs[rng.integers(3)]
        order = rng.permutation(4)[: rng.integers(1, 5)]
        part = replace(
            job,
            planes=tuple(job.planes[i] for i in order),
            sources=tuple(job.sources[i] for i in order),
            key_formats=tuple(job.key_formats[i] for i in order),
            first_tokens=job.first_tokens[order],
            query_codes=job.query_codes[order],
            shift=job.shift[order],
            bias=job.bias[order],
        )
        assert np.array_equal(engine.run(part).scores, by_hand(design, part))


def test_a_negative_cache_is_refused(design):
    with pytest.raises(ValueError, match="cache_bytes is -1; allowed: from 0"):
        GoldenEngine(design, cache_bytes=-1)

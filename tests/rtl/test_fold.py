"""FoldUnit's RTL against its golden twin: streams bit for bit, pauses, flags, latency and interval."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import PreparedQuery, prepare_query
from nearkv.trace.format import read_trace
from nearkv_hdl.attention.fold_config import HEAD_SLOTS, QUEUED_BLOCKS, fold_lanes
from nearkv_hdl.attention.fold_headers import header_layout
from nearkv_hdl.attention.fold_queries import mantissa_layout
from nearkv_hdl.attention.fold_unit import FoldUnit
from nearkv_hdl.attention.query_buffer import command_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, KU15P
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.cosim import CompiledComponent, CosimDeadlock, RunResult, Stalls, unpack_words
from nearkv_sim.fold_job import FoldJob, fold_job, fold_words, random_fold_job, scorer_words
from nearkv_sim.formal import Status, prove_ready_independent, prove_stream_contract

INT8, INT4 = KeyFormat.INT8, KeyFormat.INT4
FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"


def custom(**changes) -> DesignConfig:
    parameters = {
        "name": "custom",
        "device": KU15P,
        "bus_bytes": 16,
        "lanes": 16,
        "query_group": 2,
        "head_dims": (64, 128, 256),
        "clock_hz": 100_000_000,
        "block_tokens": 16,
    }
    return DesignConfig(**{**parameters, **changes})


SHAPES = {
    "group1": custom(query_group=1, query_bits=10),
    "group2": custom(),
    "group3": custom(query_group=3, query_bits=12, lanes=32),
    # Half a bus beat of mean codes at head_dim 64, and blocks shorter than either pass's latency.
    "group8": custom(query_group=8, bus_bytes=128, lanes=64, block_tokens=64),
    "all_lanes": custom(query_group=8, bus_bytes=16, lanes=8, head_dims=(64,), block_tokens=8),
}


@cache
def compiled(name: str) -> tuple[DesignConfig, CompiledComponent]:
    design = DESIGNS[name] if name in DESIGNS else SHAPES[name]
    return design, CompiledComponent(FoldUnit(design), name=f"fold_{name}", flatten=False)


def run(name: str, jobs: list[FoldJob], stalls: Stalls | None = None) -> RunResult:
    design, unit = compiled(name)
    blocks = sum(len(job.blocks) for job in jobs)
    beats = sum(len(job.blocks) * design.query_beats(job.blocks.headers.layout.head_dim) for job in jobs)
    return unit.run(
        fold_words(design, jobs), {"o_block": blocks, "o_query": beats}, stalls=stalls, drain_cycles=64
    )


def check(name: str, jobs: list[FoldJob], stalls: Stalls | None = None) -> RunResult:
    design, _ = compiled(name)
    result = run(name, jobs, stalls)
    expected = scorer_words(design, jobs)
    found, wanted = (
        unpack_words(command_layout(design), words)
        for words in (result.outputs["o_block"], expected["i_block"])
    )
    for field, values in wanted.items():
        np.testing.assert_array_equal(found[field], values, err_msg=field)
    np.testing.assert_array_equal(result.outputs["o_query"], expected["i_query"])
    assert result.signals["o_overflow"] == 0
    assert result.signals["o_framing_error"] == 0
    return result


def random_jobs(design: DesignConfig, count: int, rng: np.random.Generator, **options) -> list[FoldJob]:
    return [random_fold_job(design, int(rng.integers(1, 6)), rng, **options) for _ in range(count)]


@pytest.mark.parametrize("extreme", [False, True], ids=["normal", "extreme"])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_bit_exact_with_pauses(name, extreme):
    rng = np.random.default_rng(7)
    design, _ = compiled(name)
    for trial, pause in enumerate((0.0, 0.0, 0.3, 0.7)):
        stalls = Stalls(seed=trial, input_probability=pause, output_probability=0.7 - pause)
        check(name, random_jobs(design, 12, rng, extreme=extreme), stalls if trial else None)


def test_a_saturating_half_needs_the_next_shift_on_one_side_only():
    """Products at the end of what fits each shift, on either side of 0, and their neighbours."""
    design, _ = compiled("group2")
    edge = (2 * design.query_code.max + 1) << np.arange(7)  # in half codes at e = 0
    jobs, shifts = [], []
    for beside in (-1, 0, 1):
        for number, half_codes in enumerate(edge.tolist()):
            job = random_fold_job(design, 1, np.random.default_rng(number), head_dim=64)
            job.blocks.headers.scale[:] = 1
            mantissa = np.zeros((2, 64), np.int64)
            mantissa[:, number] = half_codes + beside, -half_codes - beside
            query = PreparedQuery(mantissa, np.zeros(2, np.int64))
            jobs.append(replace(job, query=query, unit=np.full(2, 25)))
            shifts.append([number + (beside >= 0), number + (beside > 0)])
    result = check("group2", jobs)
    found = unpack_words(command_layout(design), result.outputs["o_block"])["shift"]
    assert found.tolist() == shifts


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_is_bit_exact(name):
    rng = np.random.default_rng(8)
    design, _ = compiled(name)
    for head_dim in design.head_dims:
        check(name, random_jobs(design, 3, rng, head_dim=head_dim))
        check(name, random_jobs(design, 3, rng, head_dim=head_dim, extreme=True), Stalls(seed=head_dim))


@pytest.mark.parametrize("query_bits", [8, 10])
def test_real_keys_and_queries_are_bit_exact(query_bits):
    """Every block of the fixture with its own queries, both formats in turn, a job per stream."""
    name = {8: "smartssd_ku15p", 10: "alveo_u50"}[query_bits]
    design, _ = compiled(name)
    jobs = []
    for stream in read_trace(FIXTURE).streams:
        blocks = quantise_keys(stream.key)
        queries = stream.query.reshape(-1, stream.query.shape[-1])[:: len(stream.query) * 32]
        query = prepare_query(queries[: design.query_group])
        jobs.append(fold_job(design, query, blocks, (INT8, INT4) * (len(blocks) // 2)))
    assert design.query_bits == query_bits
    check(name, jobs, Stalls(seed=query_bits))


@pytest.mark.parametrize("name", ["tiny", "group2", "group8", "smartssd_ku15p"])
def test_latency_is_what_the_component_says(name):
    """From the last header beat of a lone block, its query set long loaded, to its command."""
    design, unit = compiled(name)
    fold = FoldUnit(design)
    for head_dim in design.head_dims:
        assert (HEAD_SLOTS - 1) * head_dim // fold_lanes(design) >= fold.place_latency
        job = random_fold_job(design, 1, np.random.default_rng(head_dim), head_dim=head_dim)
        words = fold_words(design, [job])
        gaps = np.zeros(len(words["i_headers"]), np.int64)
        gaps[0] = 2 * len(words["i_mantissas"])
        beats = {"o_block": 1, "o_query": design.query_beats(head_dim)}
        result = unit.run(words, beats, gaps={"i_headers": gaps})
        last_header = result.ports["i_headers"].last_cycle
        assert result.ports["i_mantissas"].last_cycle < last_header
        assert result.ports["o_block"].last_cycle - last_header == fold.block_latency(head_dim)
        assert result.ports["o_query"].first_cycle == result.ports["o_block"].last_cycle + 1
    assert fold.latency == fold.block_latency(design.head_dims[-1])


@pytest.mark.parametrize("name", ["tiny", "smartssd_ku15p"])
def test_interval_is_what_the_component_says(name):
    """Blocks follow each other without a lost cycle, over the ends of jobs, too."""
    design, _ = compiled(name)
    for head_dim in design.head_dims:
        rng = np.random.default_rng(head_dim)
        jobs = [random_fold_job(design, 10, rng, head_dim=head_dim) for _ in range(4)]
        one, many = run(name, jobs[:1]), run(name, jobs)
        between = many.ports["o_block"].last_cycle - one.ports["o_block"].last_cycle
        assert between == 30 * FoldUnit(design).block_interval(head_dim)


@pytest.mark.parametrize("name", ["group2", "tiny"])
def test_a_blocked_output_holds_everything_and_loses_nothing(name):
    """Commands alone, then codes alone, are hardly taken."""
    rng = np.random.default_rng(3)
    design, _ = compiled(name)
    for port in ("o_block", "o_query"):
        result = check(name, random_jobs(design, 8, rng), Stalls(1, 0.0, 0.0, per_port={port: 0.98}))
        assert result.ports[port].blocked_cycles > 100


def test_contract_for_all_time():
    """Valid held, payload stable, and no gate from a ready to a valid or back."""
    proof = prove_stream_contract(lambda: FoldUnit(SHAPES["group2"]), cut=("$mul", "$mem_v2"))
    assert proof.status is Status.PROVED, proof.message
    proof = prove_ready_independent(lambda: FoldUnit(SHAPES["group2"]))
    assert proof.status is Status.PROVED, proof.message


def test_codes_wait_for_their_command():
    design, unit = compiled("group2")
    jobs = [random_fold_job(design, QUEUED_BLOCKS + 2, np.random.default_rng(0))]
    with pytest.raises(CosimDeadlock, match=r"o_query 0 of 8 beats \(not valid"):
        unit.run(fold_words(design, jobs), {"o_query": 8}, max_idle_cycles=500)
    check("group2", jobs)


@pytest.mark.parametrize("port", ["i_headers", "i_mantissas"])
def test_a_misplaced_last_is_flagged(port):
    design, unit = compiled("group2")
    jobs = [random_fold_job(design, 2, np.random.default_rng(8), head_dim=64)]
    words = fold_words(design, jobs)
    words[port] = words[port].copy()
    layout = header_layout(design) if port == "i_headers" else mantissa_layout(design)
    words[port][3, -1] |= 1 << layout["last"].offset % 32
    result = unit.run(words, {"o_block": 2, "o_query": 2 * design.query_beats(64)})
    assert result.signals["o_framing_error"] == 1
    unit.reset()
    check("group2", jobs)


@pytest.mark.parametrize(
    ("change", "flagged"),
    [("infinite scale", True), ("nan centre", True), ("unit", True), ("one unit", False), ("bias", True)],
)
def test_what_does_not_fit_is_flagged(change, flagged):
    """Operands that the host would have refused; a unit one above the host's choice is none of them."""
    design, unit = compiled("group2")
    job = random_fold_job(design, 2, np.random.default_rng(5), head_dim=128)
    host = fold_job(design, job.query, job.blocks, job.key_format)
    units, headers = host.unit.copy(), host.blocks.headers
    if change == "infinite scale":
        headers.scale[1, 77] = np.inf
    elif change == "nan centre":
        headers.centre[0, 127] = np.nan
    elif change == "unit":
        units -= 12
    elif change == "one unit":
        units += 1
    else:
        headers.centre[0] = np.where(host.query.mantissa[0] > 0, 65504, -65504).astype(np.float16)
    job = FoldJob(host.query, units, host.blocks, host.key_format, host.first_token)
    result = unit.run(fold_words(design, [job]), {"o_block": 2, "o_query": 2 * design.query_beats(128)})
    assert result.signals["o_overflow"] == flagged
    unit.reset()

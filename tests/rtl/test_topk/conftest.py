"""A bench that sends jobs into a compiled top-k unit and holds every beat against the golden model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from nearkv_hdl.attention.topk import TopK
from nearkv_hdl.attention.topk_control import status_layout
from nearkv_hdl.attention.topk_load import item_layout, job_layout
from nearkv_hdl.spec.topk_config import TOPK_DESIGNS, TopKConfig
from nearkv_sim.cosim import CompiledComponent, pack_words, unpack_words
from nearkv_sim.golden.topk import TopKModel

# Small units that differ in every parameter; buckets, kept scores and capacity are few, so that random jobs
# reach every limit.
SMALL = {
    "four_lanes": TopKConfig(
        capacity=64, lanes=4, score_bits=8, digit_bits=4, scan_columns=2, candidate_rows=4
    ),
    "runs_of_8": TopKConfig(
        capacity=48,
        lanes=2,
        score_bits=9,
        digit_bits=3,
        scan_columns=4,
        candidate_rows=3,
        token_bits=10,
        token_run=8,
    ),
    "one_lane": TopKConfig(
        capacity=26, lanes=1, score_bits=5, digit_bits=2, scan_columns=1, candidate_rows=5, token_run=2
    ),
    "eight_lanes": TopKConfig(
        capacity=64, lanes=8, score_bits=10, digit_bits=6, scan_columns=8, candidate_rows=2, token_run=4
    ),
}
SURPLUS_CYCLES = 40  # in which no beat may come after the expected ones


@dataclass(frozen=True)
class Job:
    """One job. Defaults: tokens 0, 1, …, a window over the whole range. `holes`: null beats before items."""

    scores: np.ndarray
    k: int
    tokens: np.ndarray | None = None
    window_base: int | None = None
    window_shift: int | None = None
    holes: tuple[int, ...] = field(default=())

    def token_array(self) -> np.ndarray:
        return np.arange(len(self.scores)) if self.tokens is None else np.asarray(self.tokens)


class Bench:
    """A compiled unit and its golden twin."""

    def __init__(self, config: TopKConfig, name: str) -> None:
        self.config = config
        self.component = TopK(config)
        self.model = TopKModel(config)
        self.compiled = CompiledComponent(self.component, name=f"topk-{name}")

    def frame(self, job: Job) -> dict[str, np.ndarray]:
        """Fields of a job's beats."""
        where = np.insert(np.arange(len(job.scores)), job.holes, -1).astype(np.int64)
        if not len(where):
            where = np.array([-1])
        keep = where >= 0
        padded_tokens = np.append(job.token_array(), 0).astype(np.int64)
        padded_scores = np.append(job.scores, self.config.score.max).astype(np.int64)  # a tempting null beat
        last = np.arange(len(where)) == len(where) - 1
        return {
            "token": padded_tokens[where],
            "score": padded_scores[where],
            "keep": keep.astype(np.int64),
            "last": last.astype(np.int64),
        }

    def run(self, jobs: list[Job], **options):
        """Run jobs back to back; returns (golden results, RunResult) after comparing every field."""
        config = self.config
        results = [
            self.model.select(
                job.token_array(),
                np.asarray(job.scores),
                job.k,
                window_base=job.window_base,
                window_shift=job.window_shift,
            )
            for job in jobs
        ]
        frames = [self.frame(job) for job in jobs]
        items = pack_words(
            item_layout(config),
            **{key: np.concatenate([frame[key] for frame in frames]) for key in frames[0]},
        )
        full = (config.score.min, config.residual_bits)
        windows = [
            tuple(whole if given is None else given for given, whole in zip(window, full, strict=True))
            for window in ((job.window_base, job.window_shift) for job in jobs)
        ]
        commands = pack_words(
            job_layout(config),
            k=np.array([job.k for job in jobs]),
            window_base=np.array([base for base, _ in windows]),
            window_shift=np.array([shift for _, shift in windows]),
        )
        lengths = [max(1, result.count) for result in results]
        outcome = self.compiled.run(
            {"i_job": commands, "i": items},
            {"o": sum(lengths), "o_status": len(jobs)},
            max_idle_cycles=4 * config.rows + 8 * config.scan_rows + 200,
            drain_cycles=SURPLUS_CYCLES,
            **options,
        )
        self._compare(results, lengths, outcome)
        return results, outcome

    def cycles_after_last_beat(self, job: Job):
        """(golden result, cycles from the last beat to the last item) for a ready sink."""
        (result,), outcome = self.run([job])
        return result, outcome.ports["o"].last_cycle - outcome.ports["i"].last_cycle

    def _compare(self, results, lengths, outcome) -> None:
        got = unpack_words(item_layout(self.config), outcome.outputs["o"])
        status = unpack_words(status_layout(self.config), outcome.outputs["o_status"])
        ends = np.cumsum(lengths)
        last = np.zeros(ends[-1], np.int64)
        last[ends - 1] = 1
        np.testing.assert_array_equal(got["last"], last)
        for index, (result, end, length) in enumerate(zip(results, ends, lengths, strict=True)):
            part = slice(end - length, end)
            assert got["keep"][part].tolist() == [int(result.count > 0)] * length
            if result.count:
                np.testing.assert_array_equal(got["token"][part].astype(np.int64), result.tokens)
                np.testing.assert_array_equal(got["score"][part], result.scores)
                assert status["threshold"][index] == result.threshold
            for name in ("count", "memory_passes", "window_hit", "clipped", "overrun", "unordered"):
                assert int(status[name][index]) == int(getattr(result, name)), name


@pytest.fixture(scope="session")
def bench():
    """Benches by name: a small unit or a named design; built once per session."""
    benches: dict[str, Bench] = {}

    def get(name: str) -> Bench:
        if name not in benches:
            benches[name] = Bench({**SMALL, **TOPK_DESIGNS}[name], name)
        return benches[name]

    return get


@pytest.fixture(scope="session")
def make_job():
    return Job


@pytest.fixture(scope="session")
def make_bench():
    return Bench

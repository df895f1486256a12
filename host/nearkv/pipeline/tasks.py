"""The dependency graph of decode steps.

Layer by layer, with `lookahead_layers` = a:

    query(ℓ)          after rest(ℓ − 1) and the layer's weights
    predict(ℓ)        after rest(ℓ − 1 − a), or the step before, without which the token is not known
    score_hot(ℓ)      after predict(ℓ)
    stream_codes(ℓ)   at any time, two layers of codes in flight: it depends on no query
    score_cold(ℓ)     after stream_codes(ℓ) and send_query(ℓ); then return_scores(ℓ)
    fetch_hot, fetch_cold(ℓ)   after the scores of their pool, or of both pools with joint selection
    fetch_late(ℓ)     after query(ℓ), the layer's own
    attend(ℓ)         after query(ℓ) and every fetch; then rest(ℓ)

Rows that no score selects (full, recency) and weights are fetched up to two layers ahead. The new token's
rows leave the GPU after query(ℓ) and are written to the cold tier at the end of the step, as if sealing were
spread evenly; promotions and demotions run beside the layer, a sequence that was put aside must come back
before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nearkv.machine import Machine, Timing
from nearkv.pipeline.roles import find_roles
from nearkv.pipeline.settings import Method, PipelineSettings
from nearkv.pipeline.task import Task
from nearkv.pipeline.times import StepTimes
from nearkv.pipeline.work import LayerWork, ModelGeometry, StepLoad, layer_work, output_kernel

BUFFERED_LAYERS = 2
Key = tuple[int, int, str]  # step, layer, name of a task


class _Graph:
    """Tasks with names to refer to."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self._index: dict[Key, int] = {}

    def add(self, name: str, step: int, layer: int, timing: Timing, after: Iterable[Key]) -> None:
        """Add a task behind those of `after` that exist: work of size 0 has no task."""
        known = tuple(sorted({self._index[key] for key in after if key in self._index}))
        self._index[step, layer, name] = len(self.tasks)
        self.tasks.append(Task(name, step, layer, timing, known))


def decode_tasks(
    machine: Machine, model: ModelGeometry, load: StepLoad, settings: PipelineSettings, *, steps: int = 1
) -> list[Task]:
    """Tasks of `steps` decode steps one after the other.

    Raises:
        ValueError: fewer than one step, a machine without what the method needs, work that cannot be.

    """
    if steps < 1:
        raise ValueError(f"steps is {steps!r}; allowed: from 1")
    times = StepTimes(machine, settings)
    work = step_work(machine, model, load, settings)
    graph = _Graph()
    for step in range(steps):
        for layer in range(model.layers):
            _Layer(graph, times, work, step, layer, model.layers).build()
        sealed = times.moved(times.roles.hot_tier, times.roles.cold_tier, model.layers * work.sealed)
        graph.add("seal", step, model.layers, sealed, [(step, model.layers - 1, "append")])
        output = times.kernel(output_kernel(model, load.batch))
        graph.add("output", step, model.layers, output, [(step, model.layers - 1, "rest")])
    return graph.tasks


def step_work(
    machine: Machine, model: ModelGeometry, load: StepLoad, settings: PipelineSettings
) -> LayerWork:
    """Work of a layer with the capacities of the machine's memories.

    Raises:
        ValueError: as `layer_work`; also for more in a pool than its tier holds.

    """
    roles, tier = find_roles(machine), machine.description.tier
    card_bytes = tier(roles.card_tier).capacity_bytes if roles.card_tier else 0
    work = layer_work(
        model, load, settings, card_bytes=card_bytes, gpu_bytes=tier(roles.gpu_tier).capacity_bytes
    )
    for name, layer_bytes in ((roles.hot_tier, work.hot_kv), (roles.cold_tier, work.cold_kv)):
        held, most = model.layers * layer_bytes, tier(name).capacity_bytes
        if held > most:
            raise ValueError(f"KV cache in {name} is {held} bytes; allowed: what it holds, {most}")
    return work


@dataclass(frozen=True)
class _Layer:
    """Adds the tasks of one layer of one step."""

    graph: _Graph
    times: StepTimes
    work: LayerWork
    step: int
    layer: int
    layers: int

    def at(self, name: str, back: int = 0) -> Key:
        """A task of this layer, or of `back` layers before in the order of the decode."""
        number = self.step * self.layers + self.layer - back
        return number // self.layers, number % self.layers, name

    def add(self, name: str, timing: Timing, *after: Key) -> None:
        """A task of this layer."""
        self.graph.add(name, self.step, self.layer, timing, after)

    def input_of(self, back: int) -> Key:
        """What makes the input of the layer `back` before: the layer before it, or the step before."""
        if self.layer - back <= 0:
            return self.step - 1, self.layers, "output"
        return self.at("rest", back + 1)

    def build(self) -> None:
        """Everything, in an order in which each task comes after those it waits for."""
        times, work, lookahead = self.times, self.work, self.times.settings.lookahead_layers
        roles = times.roles
        if work.weights:
            timing = times.moved(roles.hot_tier, roles.gpu_tier, work.weights)
            self.add("fetch_weights", timing, self.at("rest", BUFFERED_LAYERS))
        self.add("query", times.kernel(work.query), self.input_of(0), self.at("fetch_weights"))
        if times.settings.selects:
            if lookahead:
                self.add("predict", times.kernel(work.prediction), self.input_of(lookahead))
            self._score(self.at("predict" if lookahead else "query"))
        self._fetch()
        fetches = [self.at(name) for name in ("fetch_hot", "fetch_cold", "fetch_late", "resume")]
        self.add("attend", times.kernel(work.attention), self.at("query"), *fetches)
        self.add("rest", times.kernel(work.rest), self.at("attend"))
        self.add("append", times.moved(roles.gpu_tier, roles.hot_tier, work.appended), self.at("query"))
        if work.demoted:
            timing = times.moved(roles.hot_tier, roles.cold_tier, work.demoted)
            self.add("demote", timing, self.at("fetch_hot"))
        if work.promoted:
            timing = times.moved(roles.cold_tier, roles.hot_tier, work.promoted)
            self.add("promote", timing, self.at("fetch_cold"))

    def _score(self, query: Key) -> None:
        times, work, roles = self.times, self.work, self.times.roles
        if times.settings.method is Method.HOST_SCORING:
            if work.streamed:
                timing = times.moved(roles.cold_tier, roles.hot_tier, work.streamed)
                self.add("stream_codes", timing, self.at("score_hot", BUFFERED_LAYERS))
            if work.hot_scored:
                timing = times.scored(roles.cpu, work.hot_scored)
                self.add("score_hot", timing, query, self.at("stream_codes"))
            return
        if work.hot_scored:
            self.add("score_hot", times.scored(roles.cpu, work.hot_scored), query)
        if not work.cold_scored:
            return
        if work.streamed:
            timing = times.moved(roles.cold_tier, roles.card_tier, work.streamed)
            self.add("stream_codes", timing, self.at("score_cold", BUFFERED_LAYERS))
        self.add("send_query", times.moved(roles.hot_tier, roles.card_tier, work.queries), query)
        timing = times.scored(roles.card, work.cold_scored, times.settings.code_bits)
        self.add("score_cold", timing, self.at("stream_codes"), self.at("send_query"))
        scores = times.moved(roles.card_tier, roles.hot_tier, work.scores)
        self.add("return_scores", scores, self.at("score_cold"))

    def _fetch(self) -> None:
        times, work, roles = self.times, self.work, self.times.roles
        hot_scores, cold_scores = [self.at("score_hot")], [self.at("return_scores")]
        if times.settings.method is Method.HOST_SCORING:
            hot_scores = cold_scores = [self.at("score_hot")]
        elif times.settings.method is not Method.NEAR_DATA:
            hot_scores = cold_scores = [self.at("rest", BUFFERED_LAYERS)]
        elif times.settings.joint_selection:
            hot_scores = cold_scores = [*hot_scores, *cold_scores]
        if work.hot_fetched:
            timing = times.moved(roles.hot_tier, roles.gpu_tier, work.hot_fetched, work.piece, work.hot_kv)
            self.add("fetch_hot", timing, *hot_scores)
        if work.cold_fetched:
            timing = times.moved(roles.cold_tier, roles.gpu_tier, work.cold_fetched, work.piece, work.cold_kv)
            self.add("fetch_cold", timing, *cold_scores)
        if work.late_fetched:
            timing = times.moved(roles.cold_tier, roles.gpu_tier, work.late_fetched, work.piece, work.cold_kv)
            self.add("fetch_late", timing, *cold_scores, self.at("query"))
        if work.preempted:
            self.add("preempt", times.moved(roles.hot_tier, roles.cold_tier, work.preempted))
            timing = times.moved(roles.cold_tier, roles.hot_tier, work.preempted)
            self.add("resume", timing, self.at("preempt"))

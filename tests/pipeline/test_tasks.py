"""The graph: what waits for what, and that a prediction never peeks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv.machine import MachineDescription
from nearkv.pipeline.settings import Method, PipelineSettings
from nearkv.pipeline.tasks import decode_tasks
from nearkv.pipeline.work import StepLoad

TOKEN_BYTES = 4096
LOAD = StepLoad(context_tokens=1280, batch=2, hot_bytes=8 * 2 * 1024 * TOKEN_BYTES)


def graph(machine, geometry, load=LOAD, steps=2, **settings):
    return decode_tasks(machine, geometry, load, PipelineSettings(**settings), steps=steps)


def ancestors(tasks, label: str) -> set[str]:
    index = {task.label: number for number, task in enumerate(tasks)}
    found: set[int] = set()
    queue = [index[label]]
    while queue:
        for before in tasks[queue.pop()].after:
            if before not in found:
                found.add(before)
                queue.append(before)
    return {tasks[number].label for number in found}


def waits(tasks, label: str) -> set[str]:
    (task,) = (task for task in tasks if task.label == label)
    return {tasks[number].label for number in task.after}


def test_edges_of_a_layer(rates, geometry):
    tasks = graph(rates(card_capacity_bytes=8), geometry, late_fraction=0.5)
    assert waits(tasks, "0.3.predict") == {"0.1.rest"}
    assert waits(tasks, "0.3.query") == {"0.2.rest"}
    assert waits(tasks, "0.3.score_hot") == {"0.3.predict"}
    assert waits(tasks, "0.3.stream_codes") == {"0.1.score_cold"}
    assert waits(tasks, "0.3.score_cold") == {"0.3.stream_codes", "0.3.send_query"}
    assert waits(tasks, "0.3.return_scores") == {"0.3.score_cold"}
    assert waits(tasks, "0.3.fetch_hot") == {"0.3.score_hot"}
    assert waits(tasks, "0.3.fetch_cold") == {"0.3.return_scores"}
    assert waits(tasks, "0.3.fetch_late") == {"0.3.return_scores", "0.3.query"}
    assert waits(tasks, "0.3.attend") == {"0.3.query", "0.3.fetch_hot", "0.3.fetch_cold", "0.3.fetch_late"}
    assert waits(tasks, "0.3.rest") == {"0.3.attend"}
    assert waits(tasks, "0.8.output") == {"0.7.rest"}
    assert waits(tasks, "1.0.query") == waits(tasks, "1.1.predict") == {"0.8.output"}
    assert waits(tasks, "1.0.stream_codes") == {"0.6.score_cold"}


@pytest.mark.parametrize("lookahead", [0, 1, 2, 7, 8, 20])
@pytest.mark.parametrize("method", [Method.NEAR_DATA, Method.HOST_SCORING])
def test_a_prediction_knows_only_layers_before_it_and_the_token(rates, geometry, lookahead, method):
    """What scores layer ℓ must not descend from work of layers after ℓ − lookahead; nor precede its token."""
    tasks = graph(rates(), geometry, lookahead_layers=lookahead, method=method)
    for layer in range(geometry.layers):
        name = f"1.{layer}.{'predict' if lookahead else 'query'}"
        known = ancestors(tasks, name)
        assert "0.8.output" in known
        for other in range(max(0, layer - lookahead), geometry.layers):
            assert f"1.{other}.rest" not in known
        if layer - lookahead - 1 >= 0:
            assert f"1.{layer - lookahead - 1}.rest" in known
        assert name in ancestors(tasks, f"1.{layer}.fetch_cold")


def test_joint_selection_waits_for_both_pools(rates, geometry):
    tasks = graph(rates(), geometry, joint_selection=True)
    assert waits(tasks, "0.3.fetch_hot") == waits(tasks, "0.3.fetch_cold")
    assert waits(tasks, "0.3.fetch_hot") == {"0.3.score_hot", "0.3.return_scores"}


def test_unscored_rows_and_weights_come_two_layers_ahead(rates, geometry):
    tasks = graph(rates(gpu_capacity_bytes=10**7), geometry, method=Method.FULL)
    assert waits(tasks, "0.3.fetch_hot") == {"0.1.rest"}
    assert waits(tasks, "0.3.fetch_weights") == {"0.1.rest"}
    assert waits(tasks, "0.3.query") == {"0.2.rest", "0.3.fetch_weights"}


def test_a_preempted_sequence_is_back_before_the_layer_attends(rates, geometry):
    tasks = graph(rates(), geometry, replace(LOAD, preempted_bytes=8 * 10**6))
    assert {"0.3.preempt", "0.3.resume"} <= ancestors(tasks, "0.3.attend")


def test_selected_rows_are_gathered_others_are_not(rates, geometry):
    machine = rates()
    graph(machine, geometry)
    assert ("gather", "nand", "vram") in machine.asked
    assert ("gather", "dram", "vram") in machine.asked
    machine = rates()
    graph(machine, geometry, method=Method.FULL)
    assert not [asked for asked in machine.asked if asked[0] == "gather"]


def test_the_cap_occupies_links_for_longer(rates, geometry):
    def link_ps(cap: float) -> int:
        tasks = graph(rates(), geometry, steps=1, link_cap=cap)
        return sum(task.timing.busy_ps.get("drive_link in", 0) for task in tasks)

    assert link_ps(0.7) == pytest.approx(link_ps(1.0) / 0.7, rel=1e-6)


def test_machines_without_a_part_are_refused(rates, geometry):
    class Bare(rates):
        @property
        def description(self) -> MachineDescription:
            whole = super().description
            return replace(whole, processors=whole.processors[:1])

    with pytest.raises(ValueError, match="machine rates has no cpu; method near_data needs one"):
        graph(Bare(), geometry)
    assert graph(Bare(), geometry, method=Method.FULL)
    with pytest.raises(
        ValueError, match="KV cache in dram is 67108864 bytes; allowed: what it holds, 67108863"
    ):
        graph(rates(hot_capacity_bytes=67_108_863), geometry)
    with pytest.raises(ValueError, match="steps is 0; allowed: from 1"):
        graph(rates(), geometry, steps=0)

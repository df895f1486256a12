"""Any order of calls, completions, faults and cancellations against a model that is a list of tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nearkv.kvcache.mover import Outcome
from nearkv.kvcache.placement import COLD, KEEP
from nearkv.kvcache.sequences import CapacityError, SequenceState, TransferError

RUNNING, PREEMPTED = SequenceState.RUNNING, SequenceState.PREEMPTED
STREAMS = np.array([[0], [1]])
PICK = st.integers(0, 30)
SEED = st.integers(0, 1 << 16)
OUTCOME = st.sampled_from([Outcome.ERROR, Outcome.NO_SPACE, Outcome.OK, None])


class CacheMachine(RuleBasedStateMachine):
    """`model` maps a sequence to the origin of each of its tokens: (request, token) of the pattern."""

    @initialize(seed=SEED, hot_rows=st.sampled_from([(48,), (64,), (28, 36)]), min_seen=st.integers(1, 2))
    def make(self, seed, hot_rows, min_seen):
        self.faults: list[Outcome | None] = []
        self.disturbed = False  # a leg may have failed or stalled since nothing was under way
        self.row_tiers = len(hot_rows)
        self.rig = self.rig_of(
            hot_rows=hot_rows,
            cold_blocks=(4, 6),
            min_seen=min_seen,
            block_tokens=4,
            batch_rows=6,
            seed=seed,
            timeout_ps=200_000,
            reserve_rows=4,
            fault=lambda *_: self.faults.pop() if self.faults else Outcome.OK,
        )
        self.model: dict[str, list[tuple[int, int]]] = {}
        self.writes: dict[str, int] = {}  # request whose pattern a sequence appends
        self.count = 0
        for prompt in (0, 1, 2):
            self.start(prompt)
            self.append(prompt, 9)

    def names(self, state=None):
        return [name for name in self.model if state is None or self.rig.cache.state(name) is state]

    def pick(self, number, state=None):
        return (names := self.names(state))[number % len(names)]

    def has_any(self):
        return bool(self.names())

    def has_running(self):
        return bool(self.names(RUNNING))

    def has_preempted(self):
        return bool(self.names(PREEMPTED))

    def new_name(self):
        self.count += 1
        return f"s{self.count}"

    @precondition(lambda self: len(self.model) < 6)
    @rule(prompt=st.integers(0, 3))
    def start(self, prompt):
        """Prompt 0 is nobody else's; the others are prefixes that may be here already."""
        name = self.new_name()
        keys = [f"p{prompt}.{i}" for i in range(3)] if prompt else []
        self.writes[name] = 1000 + prompt if prompt else self.count
        self.model[name] = [(self.writes[name], token) for token in range(self.rig.cache.start(name, keys))]

    @precondition(has_running)
    @rule(number=PICK, count=st.integers(1, 6))
    def append(self, number, count):
        tokens = self.model[name := self.pick(number, RUNNING)]
        new = np.arange(len(tokens), len(tokens) + count)
        try:
            self.rig.cache.step({name: self.pattern_of(self.writes[name], STREAMS, new)})
        except CapacityError:
            return
        tokens += [(self.writes[name], token) for token in new.tolist()]

    @precondition(lambda self: 0 < len(self.model) < 6)
    @rule(number=PICK, share=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]))
    def fork(self, number, share):
        name, new_name = self.pick(number), self.new_name()
        tokens = int(share * len(self.model[name]))
        try:
            self.rig.cache.fork(name, new_name, tokens)
        except (CapacityError, TransferError):
            return
        self.model[new_name] = self.model[name][:tokens]
        self.writes[new_name] = self.count

    @precondition(has_running)
    @rule(number=PICK)
    def preempt(self, number):
        self.rig.cache.preempt(self.pick(number, RUNNING))

    @precondition(has_preempted)
    @rule(number=PICK)
    def resume(self, number):
        name = self.pick(number, PREEMPTED)
        try:
            self.rig.cache.resume(name)
        except (CapacityError, TransferError):
            assert self.rig.cache.state(name) is PREEMPTED

    @precondition(has_any)
    @rule(number=PICK, keep=st.booleans())
    def end(self, number, keep):
        name = self.pick(number)
        (self.rig.cache.free if keep else self.rig.cache.cancel)(name)
        del self.model[name]

    @precondition(has_running)
    @rule(number=PICK, seed=SEED, value=st.sampled_from([None, COLD, 0]))
    def place(self, number, seed, value):
        name = self.pick(number, RUNNING)
        choices = [KEEP, COLD, *range(self.row_tiers)] if value is None else [value]
        shape = (len(STREAMS), len(self.model[name]))
        self.rig.cache.place(name, np.random.default_rng(seed).choice(np.array(choices, np.int8), shape))

    @precondition(has_running)
    @rule(number=PICK, first=PICK, count=st.integers(1, 8), cancel=st.booleans())
    def prefetch(self, number, first, count, cancel):
        name = self.pick(number, RUNNING)
        if length := len(self.model[name]):
            prefetch = self.rig.cache.prefetch(name, STREAMS, np.arange(first, first + count) % length)
            prefetch.query()
            (prefetch.cancel if cancel else prefetch.wait)()
            assert 0 <= prefetch.loaded_rows <= len(prefetch.rows)

    @precondition(has_running)
    @rule(number=PICK, token=PICK, on=st.booleans())
    def pin(self, number, token, on):
        name = self.pick(number, RUNNING)
        if length := len(self.model[name]):
            (self.rig.cache.pin if on else self.rig.cache.unpin)(name, [0, 1], token % length)

    @precondition(has_running)
    @rule(number=PICK)
    def read(self, number):
        """Every row of a sequence, each compared with its own bytes."""
        name = self.pick(number, RUNNING)
        origin = np.array(self.model[name]).reshape(-1, 2)
        found = self.rig.cache.read(name, STREAMS, np.arange(len(origin)))
        assert self.disturbed or not found.missing.any()
        for stream in STREAMS[:, 0]:
            part = slice(stream * len(origin), (stream + 1) * len(origin))
            for index in np.flatnonzero(~found.missing[part]):
                keys, values = self.pattern_of(int(origin[index, 0]), stream, origin[index, 1])
                assert found.keys[part][index].tobytes() == keys.tobytes()
                assert found.values[part][index].tobytes() == values.tobytes()

    @rule(outcomes=st.lists(OUTCOME, min_size=1, max_size=4))
    def inject(self, outcomes):
        self.faults[:] = outcomes
        self.disturbed = True

    @rule(duration_ps=st.integers(0, 40_000))
    def advance(self, duration_ps):
        self.rig.clock.advance(duration_ps)

    @rule()
    def idle(self):
        self.faults.clear()
        self.rig.idle()
        assert self.rig.cache.engine.active == 0
        self.disturbed = False

    @invariant()
    def counts_add_up(self):
        for tier in self.rig.cache.occupancy().values():
            assert tier.free + tier.pinned + tier.evictable == tier.total
        assert self.rig.cache.sequences() == list(self.model)
        for name, tokens in self.model.items():
            assert self.rig.cache.tokens(name) == len(tokens)

    def teardown(self):
        self.idle()
        for name in self.names(RUNNING):
            self.read(self.names(RUNNING).index(name))
        for name in self.names():
            self.rig.cache.cancel(name)
        self.rig.idle()
        assert all(tier.pinned == 0 for tier in self.rig.cache.occupancy().values())


def test_any_history_serves_each_sequence_its_own_bytes(rig_of, pattern_of):
    machine = type("Machine", (CacheMachine,), {})
    machine.rig_of, machine.pattern_of = staticmethod(rig_of), staticmethod(pattern_of)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=50,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

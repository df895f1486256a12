"""Prefetches: every state, right waiting times, nothing left behind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nearkv.kvcache.mover import Leg, Outcome
from nearkv.kvcache.placement import COLD
from nearkv.kvcache.prefetch import PrefetchState


@pytest.fixture
def cold_rig(rig_of):
    """A sequence of 16 tokens whose 32 rows are home only."""

    def make(**options):
        rig = rig_of(**options)
        rig.start("a", 16)
        rig.idle()
        rig.cache.place("a", rig.wanted("a", COLD))
        return rig

    return make


def test_f6_a_prefetch_passes_its_states_and_counts_the_time_waited(cold_rig):
    rig = cold_rig(batch_rows=32)
    prefetch = rig.cache.prefetch("a", *rig.everything("a"))
    assert prefetch.state is PrefetchState.REGISTERED
    assert rig.cache.engine.active == 0
    start_ps = rig.clock.now_ps
    assert prefetch.query() is PrefetchState.QUERIED
    assert prefetch.wait() is PrefetchState.COMPLETE
    # 1 ns + 512 B at 1 GB/s to read, 1 ns + 512 B at 2 GB/s on the link.
    assert prefetch.waited_ps == rig.clock.now_ps - start_ps == 1_000 + 512_000 + 1_000 + 256_000
    assert prefetch.loaded_rows == 32
    assert prefetch.wait() is PrefetchState.COMPLETE
    assert prefetch.waited_ps == 770_000


def test_f6_what_compute_hides_is_not_waited_for(cold_rig):
    rig = cold_rig(batch_rows=32)
    prefetch = rig.cache.prefetch("a", *rig.everything("a"))
    prefetch.query()
    rig.clock.advance(500_000)
    prefetch.wait()
    assert prefetch.waited_ps == 270_000
    done = rig.cache.prefetch("a", *rig.everything("a"))
    assert done.wait() is PrefetchState.COMPLETE  # all there already
    assert done.waited_ps == 0


def test_f6_missed_partial_timed_out_and_cancelled(cold_rig):
    fault = {"outcome": Outcome.OK}
    reads = (Leg.READ, "cold0")
    rig = cold_rig(fault=lambda leg, source, _: fault["outcome"] if (leg, source) == reads else Outcome.OK)
    streams, tokens = rig.everything("a")
    fault["outcome"] = Outcome.ERROR
    missed = rig.cache.prefetch("a", streams, tokens[:4])
    assert (missed.wait(), missed.loaded_rows) == (PrefetchState.MISSED, 0)
    fault["outcome"] = Outcome.OK
    assert rig.cache.prefetch("a", streams, tokens[:4]).wait() is PrefetchState.COMPLETE
    fault["outcome"] = Outcome.ERROR
    partial = rig.cache.prefetch("a", streams, tokens)
    assert (partial.wait(), partial.loaded_rows) == (PrefetchState.PARTIAL, 8)
    fault["outcome"] = None
    late = rig.cache.prefetch("a", streams, tokens, timeout_ps=30_000)
    assert (late.wait(), late.waited_ps) == (PrefetchState.TIMED_OUT, 30_000)
    gone = rig.cache.prefetch("a", streams, tokens)
    gone.query()
    assert gone.cancel() is gone.wait() is PrefetchState.CANCELLED
    never = rig.cache.prefetch("a", streams, tokens)
    assert never.cancel() is never.wait() is PrefetchState.CANCELLED  # before it was looked up
    assert rig.pinned()["hot0"] == 0
    fault["outcome"] = Outcome.OK
    assert not rig.check("a").missing.any()


@pytest.mark.parametrize("queried", [False, True])
@pytest.mark.parametrize("end", ["preempt", "free", "cancel"])
def test_f6_the_end_of_its_sequence_ends_a_prefetch(cold_rig, end, queried):
    """Its rows may be another's by then: the prefetch starts nothing and touches nobody's slots."""
    rig = cold_rig(seed=6, max_blocks=4)
    prefetch = rig.cache.prefetch("a", *rig.everything("a"))
    if queried:
        prefetch.query()
    getattr(rig.cache, end)("a")
    if end != "preempt":
        rig.start("a", 16)  # the same block numbers, the same name
        rig.idle()
        rig.cache.place("a", rig.wanted("a", COLD))
    assert prefetch.wait() is prefetch.query() is prefetch.cancel() is PrefetchState.CANCELLED
    assert prefetch.loaded_rows == rig.cache.engine.active == 0
    if end != "preempt":
        assert not rig.check("a").hot.any()


@pytest.mark.parametrize("order", list(itertools.permutations(["query", "wait", "cancel", "advance"])))
def test_f6_no_order_of_calls_leaks_a_slot(cold_rig, order):
    """Two prefetches of overlapping rows, the calls of one in every order while the other is under way."""
    rig = cold_rig(seed=1)
    streams, tokens = rig.everything("a")
    other = rig.cache.prefetch("a", streams, tokens[:10])
    other.query()
    prefetch = rig.cache.prefetch("a", streams, tokens[4:])
    for call in order:
        rig.clock.advance(9_000) if call == "advance" else getattr(prefetch, call)()
    waited_first = order.index("wait") < order.index("cancel")
    assert prefetch.state is (PrefetchState.COMPLETE if waited_first else PrefetchState.CANCELLED)
    assert other.wait() is PrefetchState.COMPLETE
    rig.idle()
    assert rig.pinned()["hot0"] == 0
    assert rig.cache.engine.active == 0
    found = rig.check("a")
    assert 20 <= found.hot.sum() <= 32
    assert found.hot.all() or not waited_first
    assert not found.missing.any()


def test_a_prefetch_of_what_has_no_copy_at_all_is_missed(cold_rig):
    rig = cold_rig()
    rig.cache._table.home_tokens[:] = 0  # as after the loss of a drive
    prefetch = rig.cache.prefetch("a", 0, np.arange(3))
    assert prefetch.wait() is PrefetchState.MISSED
    assert rig.check("a").missing.all()

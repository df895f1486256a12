"""LRU, FIFO, LFU, ARC and S3-FIFO against textbook vectors and one-access-at-a-time implementations."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from itertools import combinations

import numpy as np
import pytest

from nearkv.policy.arc import Arc
from nearkv.policy.base import StreamInfo
from nearkv.policy.belady import Belady
from nearkv.policy.fifo import Fifo
from nearkv.policy.lfu import Lfu
from nearkv.policy.lru import Lru
from nearkv.policy.replay import AccessList, replay_accesses
from nearkv.policy.s3_fifo import S3Fifo


def replay(policy, tokens, capacity, accesses, pinned=None, **options):
    """(hits, hot tokens) after each step; an access is a token or a list of them."""
    lists = [np.atleast_1d(np.array(access, np.int64)) for access in accesses]
    fresh = policy(StreamInfo(0, 0, tokens), **options)
    steps = replay_accesses(fresh, AccessList(tokens, lists), capacity, pinned)
    return [(step.hits, set(np.flatnonzero(step.placement).tolist())) for step in steps]


class TextbookLru:
    def __init__(self, capacity):
        self.capacity, self.line = capacity, OrderedDict()

    def access(self, token):
        self.line[token] = None
        self.line.move_to_end(token)
        if len(self.line) > self.capacity:
            self.line.popitem(last=False)

    def hot(self):
        return set(self.line)


class TextbookFifo:
    def __init__(self, capacity):
        self.capacity, self.line = capacity, deque()

    def access(self, token):
        if token not in self.line:
            self.line.append(token)
        if len(self.line) > self.capacity:
            self.line.popleft()

    def hot(self):
        return set(self.line)


class TextbookLfu:
    """A token's count is lost when it leaves; among equals the least recently used leaves."""

    def __init__(self, capacity):
        self.capacity, self.uses, self.last, self.now = capacity, Counter(), {}, 0

    def access(self, token):
        if token not in self.uses and len(self.uses) == self.capacity:
            victim = min(self.uses, key=lambda t: (self.uses[t], self.last[t]))
            del self.uses[victim]
        self.now += 1
        self.uses[token] += 1
        self.last[token] = self.now

    def hot(self):
        return set(self.uses)


class TextbookArc:
    """Figure 4 of Megiddo and Modha, FAST 2003, case by case; lists run from LRU to MRU."""

    def __init__(self, capacity):
        self.c, self.p = capacity, 0.0
        self.t1, self.t2, self.b1, self.b2 = [], [], [], []

    def replace(self, token):
        if self.t1 and (len(self.t1) > self.p or (token in self.b2 and len(self.t1) == self.p)):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))

    def access(self, token):
        if token in self.t1 or token in self.t2:
            (self.t1 if token in self.t1 else self.t2).remove(token)
        elif token in self.b1:
            self.p = min(self.c, self.p + max(len(self.b2) / len(self.b1), 1))
            self.replace(token)
            self.b1.remove(token)
        elif token in self.b2:
            self.p = max(0, self.p - max(len(self.b1) / len(self.b2), 1))
            self.replace(token)
            self.b2.remove(token)
        else:
            self.make_room_for_new(token)
            self.t1.append(token)
            return
        self.t2.append(token)

    def make_room_for_new(self, token):
        total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
        if len(self.t1) + len(self.b1) == self.c:
            if len(self.t1) < self.c:
                self.b1.pop(0)
                self.replace(token)
            else:
                self.t1.pop(0)
        elif total >= self.c:
            if total == 2 * self.c:
                self.b2.pop(0)
            self.replace(token)

    def hot(self):
        return set(self.t1) | set(self.t2)


class TextbookS3Fifo:
    """Algorithm 1 of Yang et al., SOSP 2023, with one limit on both queues together."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.small_target = -(-capacity // 10)
        self.small, self.main, self.ghost, self.uses = deque(), deque(), deque(), {}

    def access(self, token):
        if token in self.small or token in self.main:
            self.uses[token] = min(self.uses[token] + 1, 3)
            return
        while len(self.small) + len(self.main) >= self.capacity:
            self.evict_small() if len(self.small) >= self.small_target else self.evict_main()
        if token in self.ghost:
            self.ghost.remove(token)
            self.main.append(token)
        else:
            self.small.append(token)
        self.uses[token] = 0

    def evict_small(self):
        while self.small:
            token = self.small.popleft()
            if self.uses[token] < 2:
                self.ghost.append(token)
                while len(self.ghost) > self.capacity - self.small_target:
                    self.ghost.popleft()
                return
            self.uses[token] = 0
            self.main.append(token)

    def evict_main(self):
        while self.uses[self.main[0]]:
            token = self.main.popleft()
            self.uses[token] -= 1
            self.main.append(token)
        self.main.popleft()

    def hot(self):
        return set(self.small) | set(self.main)


TEXTBOOK = {Lru: TextbookLru, Fifo: TextbookFifo, Lfu: TextbookLfu, Arc: TextbookArc, S3Fifo: TextbookS3Fifo}


def workload(seed, tokens=40, steps=1500):
    """Skewed accesses whose favourites change, with scans in between."""
    rng = np.random.default_rng(seed)
    accesses = []
    while len(accesses) < steps:
        favourites = rng.permutation(tokens)
        ranks = rng.zipf(1.3, 60) - 1
        accesses += favourites[ranks[ranks < tokens]].tolist()
        if rng.random() < 0.4:
            start = int(rng.integers(tokens))
            accesses += [(start + i) % tokens for i in range(int(rng.integers(5, 25)))]
    return accesses[:steps]


@pytest.mark.parametrize("capacity", [1, 2, 3, 9, 20, 39])
@pytest.mark.parametrize("policy", TEXTBOOK, ids=lambda policy: policy.__name__)
def test_one_access_at_a_time_is_the_textbook(policy, capacity):
    for seed in range(3):
        accesses = workload(seed)
        reference = TEXTBOOK[policy](capacity)
        for step, (hits, hot) in enumerate(replay(policy, 40, capacity, accesses)):
            assert hits == (accesses[step] in reference.hot()), (seed, step)
            reference.access(accesses[step])
            assert hot == reference.hot(), (seed, step)


@pytest.mark.parametrize("policy", TEXTBOOK, ids=lambda policy: policy.__name__)
def test_the_pins_leave_a_smaller_textbook_cache(policy):
    pinned = np.zeros(43, bool)
    pinned[40:] = True
    accesses = workload(7)
    bare = replay(policy, 40, 9, accesses)
    # Accesses of pinned tokens in between change nothing for the others.
    mixed = [access for pair in zip(accesses, [40, 41, 42] * 500, strict=True) for access in pair]
    with_pins = replay(policy, 43, 12, mixed, pinned)
    assert [hot - {40, 41, 42} for _, hot in with_pins[1::2]] == [hot for _, hot in bare]


def test_lru_and_fifo_differ_on_1_2_3_1_4_with_three_slots():
    accesses = [1, 2, 3, 1, 4]
    assert replay(Lru, 5, 3, accesses)[-1] == (0, {1, 3, 4})
    assert replay(Fifo, 5, 3, accesses)[-1] == (0, {2, 3, 4})


def test_fifo_suffers_beladys_anomaly():
    """Nine faults with three frames and ten with four (Belady, Nelson and Shedler, CACM 12(6), 1969)."""
    accesses = [1, 2, 3, 4, 1, 2, 5, 1, 2, 3, 4, 5]
    misses = {c: 12 - sum(hits for hits, _ in replay(Fifo, 6, c, accesses)) for c in (3, 4)}
    assert misses == {3: 9, 4: 10}


PAGES = (7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1)


def test_faults_of_a_textbook_page_string():
    """Silberschatz, Galvin and Gagne, Operating System Concepts: 15 for FIFO, 12 for LRU, 9 at best.

    The book's optimum must admit each page; one that need not has 8.
    """
    faults = {p: 20 - sum(hits for hits, _ in replay(p, 8, 3, PAGES)) for p in (Fifo, Lru, Belady)}
    assert faults == {Fifo: 15, Lru: 12, Belady: 8}
    assert most_hits([{page} for page in PAGES], 3) == 12


def most_hits(accesses, capacity):
    """By trying every pool that can be made of what is at hand, step by step."""
    best = {frozenset(): 0}
    for accessed in accesses:
        grown: dict[frozenset[int], int] = {}
        for hot, hits in best.items():
            at_hand = hot | accessed
            for kept in combinations(at_hand, min(capacity, len(at_hand))):
                key = frozenset(kept)
                grown[key] = max(grown.get(key, 0), hits + len(hot & accessed))
        best = grown
    return max(best.values())


@pytest.mark.parametrize("seed", range(12))
def test_no_pool_on_demand_hits_more_than_belady(seed):
    rng = np.random.default_rng(seed)
    size = 1 + seed % 3
    accesses = [set(rng.choice(8, size, replace=False).tolist()) for _ in range(25)]
    found = sum(hits for hits, _ in replay(Belady, 8, 3, [sorted(step) for step in accesses]))
    assert found == most_hits(accesses, 3)


def test_lfu_evicts_the_least_used_then_the_least_recent():
    """Two slots: 1, 2, 1, then 3 replaces 2; after 3 again, 4 replaces 1, the longer unused of the two."""
    found = replay(Lfu, 5, 2, [1, 2, 1, 3, 3, 4])
    assert [hot for _, hot in found[2:]] == [{1, 2}, {1, 3}, {1, 3}, {3, 4}]


def test_arc_learns_from_its_ghosts():
    """Two slots, worked by hand: T1 T2 | B1 B2 and p after every access."""
    policy = Arc(StreamInfo(0, 0, 5))
    accesses = [np.array([token]) for token in (0, 1, 0, 2, 1, 3)]
    steps = replay_accesses(policy, AccessList(5, accesses), 2)
    found = [(set(np.flatnonzero(step.placement).tolist()), policy.target_tokens) for step in steps]
    # 2 evicts 1 from T1 to B1; 1 is found there: p = 1, T1 = {2} is not above p, so 0 leaves T2 for B2.
    assert found[3] == ({0, 2}, 0)
    assert found[4] == ({1, 2}, 1)
    # 3 is new with |T1| = p = 1: T2 gives way again.
    assert found[5] == ({2, 3}, 1)


@pytest.mark.parametrize("policy", TEXTBOOK, ids=lambda policy: policy.__name__)
def test_what_a_step_fetched_enters_and_nothing_else_is_read(policy):
    rng = np.random.default_rng(3)
    accesses = [np.sort(rng.choice(60, 8, replace=False)).tolist() for _ in range(80)]
    before: set[int] = set()
    for accessed, (_, hot) in zip(accesses, replay(policy, 60, 20, accesses), strict=True):
        assert hot - before <= set(accessed)
        assert set(accessed) - before <= hot  # 8 fit in 20
        before = hot


@pytest.mark.parametrize("policy", [Lru, Fifo], ids=lambda policy: policy.__name__)
def test_a_step_of_many_accesses_is_many_steps(policy):
    """In ascending order; for FIFO the hits first, since a step is served before anything is evicted."""
    rng = np.random.default_rng(5)
    accesses = [np.sort(rng.choice(50, 4, replace=False)).tolist() for _ in range(100)]
    reference = TEXTBOOK[policy](25)
    for accessed, (_, hot) in zip(accesses, replay(policy, 50, 25, accesses), strict=True):
        missed = {token for token in accessed if token not in reference.hot()}
        order = accessed if policy is Lru else sorted(accessed, key=lambda token: (token in missed, token))
        for token in order:
            reference.access(token)
        assert hot == reference.hot()


@pytest.mark.parametrize("policy", TEXTBOOK, ids=lambda policy: policy.__name__)
def test_more_fetched_than_there_is_room_keeps_the_last(policy):
    (_, hot), *_ = replay(policy, 12, 3, [[0, 2, 4, 6, 8, 10]])
    assert hot == {6, 8, 10}


@pytest.mark.parametrize("small_fraction", [0.0, 1.0, -0.1])
def test_s3_fifo_refuses_a_small_queue_out_of_range(small_fraction):
    with pytest.raises(ValueError, match=f"small_fraction is {small_fraction}; allowed: above 0, below 1"):
        S3Fifo(StreamInfo(0, 0, 8), small_fraction=small_fraction)

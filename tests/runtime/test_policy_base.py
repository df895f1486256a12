"""Ranking, the rules of a placement, and finding policies by name."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from nearkv.policy.base import Observation, StreamInfo
from nearkv.policy.ranking import highest, top_lowest_index
from nearkv.policy.recency import Recency
from nearkv.policy.registry import build_policy, find_policy, installed_policies, summary
from nearkv.policy.replay import AccessList, replay_accesses

STREAM = StreamInfo(layer=0, kv_head=0, max_tokens=64)


def observation(sealed: int = 6, capacity: int = 3, pinned: tuple[int, ...] = (0,), **changes) -> Observation:
    mask = np.zeros(sealed, bool)
    mask[list(pinned)] = True
    fields = {
        "step": 0,
        "tokens": sealed + 1,
        "sealed_tokens": sealed,
        "capacity_tokens": capacity,
        "pinned": mask,
        "hot": mask.copy(),
        "selected": np.array([1], np.int64),
        "weight": np.array([1.0]),
    }
    return Observation(**(fields | changes))


def test_ties_go_where_the_name_says():
    values = np.array([5, 7, 5, 7, 5])
    assert top_lowest_index(values, 3).tolist() == [0, 1, 3]
    assert highest(values, 3).tolist() == [1, 3, 4]


@pytest.mark.parametrize("count", range(8))
def test_ranking_equals_a_stable_sort(count):
    values = np.random.default_rng(count).integers(0, 4, 7)
    order = sorted(range(7), key=lambda i: (-values[i], i))
    assert top_lowest_index(values, count).tolist() == sorted(order[:count])
    newest = sorted(range(7), key=lambda i: (-values[i], -i))
    assert highest(values, count).tolist() == sorted(newest[:count])


@pytest.mark.parametrize("count", [-1, 4])
def test_ranking_refuses_a_count_out_of_range(count):
    with pytest.raises(ValueError, match=f"count is {count}; allowed: 0 to 3"):
        top_lowest_index(np.arange(3), count)


def test_fill_keeps_pins_and_takes_the_best_of_the_rest():
    seen = observation(pinned=(0, 4), capacity=4)
    assert np.flatnonzero(seen.fill(np.array([0, 3, 1, 2, 0, 3]))).tolist() == [0, 1, 4, 5]


def test_fill_never_exceeds_what_there_is():
    assert observation(capacity=6).fill(np.zeros(6)).all()
    assert observation(capacity=0, pinned=()).fill(np.zeros(6)).sum() == 0


def test_fill_refuses_a_priority_of_another_length():
    with pytest.raises(ValueError, match=r"priority has shape \(5,\); allowed: \(6,\)"):
        observation().fill(np.zeros(5))


def test_fill_refuses_nan():
    with pytest.raises(ValueError, match="priority is nan at token 4; allowed: values that can be compared"):
        observation().fill(np.array([1, 2, 3, np.inf, np.nan, np.nan]))
    assert np.flatnonzero(observation().fill(np.array([0, np.inf, 1, 2, -np.inf, 0]))).tolist() == [0, 1, 3]


def test_what_a_policy_does_with_its_array_afterwards_changes_nothing():
    own = np.array([True, False, False, False, False, True])
    placement = observation().check(own)
    own[:] = False
    assert np.flatnonzero(placement).tolist() == [0, 5]


def test_a_policy_may_fill_the_same_array_at_every_step():
    class Reuses(Recency):
        def __init__(self, stream):
            super().__init__(stream)
            self.answer = np.zeros(6, bool)

        def place(self, seen):
            self.answer[:] = seen.fill(np.isin(np.arange(6), seen.selected))
            return self.answer

    trace = AccessList(6, [np.array([step % 6]) for step in range(5)])
    steps = list(replay_accesses(Reuses(STREAM), trace, 1))
    assert [np.flatnonzero(step.placement).tolist() for step in steps] == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ([True] * 6, "placement is list; allowed: a numpy array of bool"),
        (np.ones(6), "placement is float64; allowed: a numpy array of bool"),
        (np.ma.masked_array(np.eye(6)[0] > 0, mask=True), "placement is MaskedArray; allowed: a numpy array"),
        (np.ones(5, bool), r"shape \(5,\); allowed: \(6,\)"),
        (np.ones(6, bool), "holds 6 tokens; allowed: at most 3"),
        (np.array([False, True, True, False, False, False]), "leaves token 0 cold, which is pinned"),
    ],
)
def test_a_placement_against_the_rules_is_refused(placement, message):
    with pytest.raises(ValueError, match=message):
        observation().check(placement)


@pytest.mark.parametrize("name", ["pinned", "hot", "selected", "weight", "next_weight"])
def test_a_policy_cannot_change_what_it_sees(name):
    """Else it could unpin a token before the check, or change what the step's record says."""
    seen = observation(next_weight=np.zeros(8))
    with pytest.raises(ValueError, match="read-only"):
        getattr(seen, name)[0] = 0


def test_recency_is_the_pins_and_the_newest():
    assert np.flatnonzero(Recency(STREAM).place(observation())).tolist() == [0, 4, 5]


def test_every_installed_policy_has_a_name_and_a_description():
    found = installed_policies()
    assert {"full", "recency", "hill", "oracle"} <= found.keys()
    assert list(found) == sorted(found)
    for policy in found.values():
        assert summary(policy).endswith(".")


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"policy is 'hil'; allowed: .*hill.*module:Class"):
        find_policy("hil")


USER_MODULE = '''
import numpy as np
from nearkv.policy import Policy

class LeastRecent(Policy):
    """Keeps the tokens selected last."""

    def __init__(self, stream, window=8):
        super().__init__(stream)
        self.window = window
        self.last_use = np.zeros(stream.max_tokens)

    def place(self, seen):
        self.last_use[seen.selected] = seen.step + 1
        return seen.fill(self.last_use[: seen.sealed_tokens])

class Needs(LeastRecent):
    def __init__(self, stream, window):
        super().__init__(stream, window)

class Open(LeastRecent):
    def __init__(self, stream, *rest, window=8, **others):
        super().__init__(stream, window)

class Closed(LeastRecent):
    def __init__(self):
        super().__init__(None)

class Broken(LeastRecent):
    def __init__(self, stream):
        {}["no such key"]

class Unfinished(Policy):
    pass

number = 3
'''


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A module in the current directory, which is not on the path by itself."""
    (tmp_path / "users_own_policy.py").write_text(USER_MODULE)
    (tmp_path / "unfinished_module.py").write_text("def (")
    (tmp_path / "leaving_module.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "users_own_policy"
    sys.modules.pop("users_own_policy", None)


def test_a_policy_of_the_user_is_found_by_module_and_class(user_module):
    policy = build_policy(f"{user_module}:LeastRecent", STREAM, {"window": 4})
    assert policy.window == 4
    assert np.flatnonzero(policy.place(observation())).tolist() == [0, 1, 5]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("users_own_policy:Missing", "has no 'Missing'"),
        ("users_own_policy:number", "allowed: a subclass of nearkv.policy.base.Policy"),
        ("users_own_policy:Unfinished", r"does not implement place\(\)"),
        ("no_such_module:Policy", "cannot import 'no_such_module'"),
        (":Policy", "policy is ':Policy'; allowed: module:Class"),
        ("..relative:Policy", "policy is '..relative:Policy'; allowed: module:Class"),
        ("./path:Policy", "policy is './path:Policy'; allowed: module:Class"),
        ("unfinished_module:Policy", "'unfinished_module' raised SyntaxError: "),
        ("leaving_module:Policy", "'leaving_module' raised SystemExit: 0"),
    ],
)
@pytest.mark.usefixtures("user_module")
def test_a_wrong_module_or_class_is_refused(name, message):
    with pytest.raises(ValueError, match=message):
        find_policy(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("recency", {"window": 3}, "policy recency has no option 'window'; allowed: none"),
        ("hill", {"decay": 3}, "policy hill has no option 'decay'; allowed: decay_shift, surge"),
        ("hill", {"decay_shift": "3"}, "decay_shift is '3'; allowed: int"),
        ("hill", {"decay_shift": True}, "decay_shift is True; allowed: int"),
        ("hill", {"decay_shift": 16}, "decay_shift is 16; allowed: 0 to 15"),
        ("hill", {"surge": -1}, "surge is -1; allowed: 0 to 65535"),
        ("hill", {"surge": 10**400}, "surge is 10*; allowed: 0 to 65535"),
        ("users_own_policy:Closed", {}, "its constructor raised TypeError: "),
        ("users_own_policy:Broken", {}, "its constructor raised KeyError: 'no such key'"),
        ("users_own_policy:Open", {"others": 1}, "has no option 'others'; allowed: window"),
    ],
)
@pytest.mark.usefixtures("user_module")
def test_wrong_options_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_policy(name, STREAM, options)


def test_options_without_a_default_are_required(user_module):
    name = f"{user_module}:Needs"
    with pytest.raises(ValueError, match="needs the option 'window'"):
        build_policy(name, STREAM, {})
    assert build_policy(name, STREAM, {"window": 2}).window == 2


def test_a_constructor_that_takes_anything_has_its_named_options_alone(user_module):
    assert build_policy(f"{user_module}:Open", STREAM, {"window": 2}).window == 2


def test_the_seed_and_the_stream_decide_the_random_numbers():
    draws = [
        Recency(StreamInfo(layer, head, 8, seed)).rng.integers(1 << 62)
        for layer, head, seed in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))
    ]
    assert len(set(draws)) == 4
    assert draws[0] == draws[4]

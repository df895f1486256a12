"""The compiled driver: values, cycles, stalls, and every way a component can be caught misbehaving."""

import numpy as np
import pytest

from nearkv_sim.cosim import (
    CompiledComponent,
    CosimContractError,
    CosimDeadlock,
    CosimSurplus,
    Stalls,
    pack_words,
    unpack_words,
)


@pytest.fixture(scope="module")
def adder(components):
    return CompiledComponent(components.Adder(), name="adder")


def pairs(components, beats, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(0, 1 << 40, (2, beats))
    words = pack_words(components.PAIR, a=a, b=b, last=np.arange(beats) == beats - 1)
    return words, (a + b).astype(np.uint64)


def test_three_beats_by_hand(adder, components):
    words = pack_words(components.PAIR, a=[1, 0xFFFFFFFF, 2**40 - 1], b=[2, 1, 2**40 - 1], last=[0, 0, 1])
    adder.reset()
    result = adder.run({"i_pair": words}, {"o_sum": 3})
    # Words are little end first: 3; 2^32; 2^41 - 2 with `last` as bit 41.
    assert result.outputs["o_sum"].tolist() == [[3, 0], [0, 1], [0xFFFFFFFE, 0x1FF | 0x200]]
    # One register stage, then two cycles through the FIFO; cycle 0 takes the first beat.
    assert result.ports["i_pair"].first_cycle == 0
    assert result.ports["i_pair"].last_cycle == 2
    assert result.ports["o_sum"].first_cycle == 3
    assert result.ports["o_sum"].last_cycle == 5
    assert result.cycles == 6
    assert result.ports["o_sum"].starved_cycles == 3
    assert result.ports["i_pair"].blocked_cycles == 0
    taking = result.flags["o_taking"]
    assert (taking.high_cycles, taking.first_high_cycle, taking.last_high_cycle) == (3, 0, 2)
    never = result.flags["o_never"]
    assert (never.high_cycles, never.first_high_cycle, never.last_high_cycle) == (0, None, None)
    assert "o_count" not in result.flags
    assert result.signals == {"o_taking": 0, "o_count": 3, "o_never": 0}


@pytest.mark.parametrize(
    "stalls",
    [
        None,
        Stalls(1),
        Stalls(2, input_probability=0.9, output_probability=0),
        Stalls(3, input_probability=0, output_probability=0.9),
        Stalls(4, mean_burst_cycles=20),
        Stalls(5, per_port={"o_sum": 0.99}),
    ],
    ids=["full rate", "both", "slow source", "slow sink", "bursts", "one port"],
)
def test_values_do_not_depend_on_stalls(adder, components, stalls):
    words, sums = pairs(components, 2_000)
    result = adder.run({"i_pair": words}, {"o_sum": 2_000}, stalls=stalls, drain_cycles=50)
    fields = unpack_words(components.SUM, result.outputs["o_sum"])
    np.testing.assert_array_equal(fields["sum"], sums)
    np.testing.assert_array_equal(np.flatnonzero(fields["last"]), [1_999])
    assert result.flags["o_taking"].high_cycles == 2_000


def test_a_seed_gives_one_pattern_and_another_seed_another(adder, components):
    words, _ = pairs(components, 1_000)

    def run(seed):
        adder.reset()
        result = adder.run({"i_pair": words}, {"o_sum": 1_000}, stalls=Stalls(seed))
        return result.cycles, result.ports

    assert run(7) == run(7)
    assert run(7) != run(8)


@pytest.mark.parametrize("burst", [None, 10.0])
def test_stalls_take_the_share_and_the_length_they_promise(components, burst):
    passthrough = CompiledComponent(components.Passthrough(), name="passthrough")
    beats = 40_000
    stalls = Stalls(11, input_probability=0, output_probability=0.5, mean_burst_cycles=burst)
    result = passthrough.run({"i": np.zeros((beats, 1), np.uint32)}, {"o": beats}, stalls=stalls)
    blocked = result.ports["o"].blocked_cycles
    # Twenty standard deviations of the sum, bursts making it wider by the root of twice their length.
    assert abs(blocked - beats) < 20 * (2 * beats * (2 * (burst or 1))) ** 0.5
    assert result.cycles == beats + blocked
    assert result.ports["i"].blocked_cycles == blocked


def test_gaps_place_every_beat(adder, components):
    words, _ = pairs(components, 4)
    adder.reset()
    result = adder.run({"i_pair": words}, {"o_sum": 4}, gaps={"i_pair": [5, 0, 3, 20_000]})
    assert result.ports["i_pair"].first_cycle == 5
    # 5, 6, 10, then 20,000 idle cycles: longer than max_idle_cycles, and no deadlock.
    assert result.ports["i_pair"].last_cycle == 20_011
    assert result.ports["i_pair"].starved_cycles == 5 + 3 + 20_000


def test_state_persists_until_reset(adder, components):
    words, sums = pairs(components, 6)
    adder.reset()
    # The component holds five pairs; the sixth enters on the last edge, after `signals` were read.
    assert adder.run({"i_pair": words}, {"o_sum": 1}).signals["o_count"] == 5
    rest = adder.run({}, {"o_sum": 5})
    np.testing.assert_array_equal(unpack_words(components.SUM, rest.outputs["o_sum"])["sum"], sums[1:])
    assert rest.signals["o_count"] == 6
    assert rest.ports["o_sum"].first_cycle == 0
    adder.reset()
    assert adder.run({"i_pair": words[:1]}, {"o_sum": 1}, drain_cycles=10).signals["o_count"] == 1


def test_nothing_to_do_takes_no_cycle(adder):
    assert adder.run({}, {}).cycles == 0


def test_two_instances_share_a_library_but_no_state(components):
    first, second = (CompiledComponent(components.Adder(), name="adder") for _ in range(2))
    words, sums = pairs(components, 3)
    first.run({"i_pair": words}, {})
    with pytest.raises(CosimDeadlock):
        second.run({}, {"o_sum": 1}, max_idle_cycles=50)
    np.testing.assert_array_equal(
        unpack_words(components.SUM, first.run({}, {"o_sum": 3}).outputs["o_sum"])["sum"], sums
    )


def test_components_without_clock_and_with_false_loops(components):
    words = np.arange(200, dtype=np.uint32).reshape(-1, 1)
    passthrough = CompiledComponent(components.Passthrough(), name="passthrough")
    result = passthrough.run({"i": words}, {"o": 200}, stalls=Stalls(3))
    np.testing.assert_array_equal(result.outputs["o"], words)

    loop = CompiledComponent(components.FalseLoop(), name="false-loop")
    bits = words & 1
    result = loop.run({"i": bits}, {"o": 200}, stalls=Stalls(3), drain_cycles=30)
    # Bit 0 is the input; bit 1 inverts bit 0; bit 2 repeats bit 1.
    np.testing.assert_array_equal(result.outputs["o"], np.where(bits, 0b001, 0b110))


def test_deadlock_names_the_ports_that_waited(adder, components):
    words, _ = pairs(components, 3)
    adder.reset()
    with pytest.raises(
        CosimDeadlock, match=r"adder: nothing moved for 100 cycles.*o_sum 3 of 4 beats \(not valid, ready\)"
    ):
        adder.run({"i_pair": words}, {"o_sum": 4}, max_idle_cycles=100)
    with pytest.raises(CosimDeadlock, match=r"i_pair 5 of 20 beats \(valid, not ready\)"):
        adder.run({"i_pair": np.zeros((20, 3), np.uint32)}, {}, max_idle_cycles=100)
    # The failed runs left nothing behind.
    assert adder.run({"i_pair": words}, {"o_sum": 3}, drain_cycles=20).signals["o_count"] == 3


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("duplicate", CosimSurplus, "o_sum sent 1 beats beyond the 20 expected"),
        ("swallow", CosimDeadlock, "o_sum 19 of 20 beats"),
        ("withdraw", CosimContractError, "o_sum withdrew valid before the beat was taken"),
        ("change", CosimContractError, "o_sum changed its payload before the beat was taken"),
    ],
)
def test_broken_components_are_caught(components, fault, error, message):
    broken = CompiledComponent(components.Adder(fault), name=f"adder-{fault}")
    words, _ = pairs(components, 20)
    with pytest.raises(error, match=message):
        broken.run({"i_pair": words}, {"o_sum": 20}, stalls=Stalls(5), max_idle_cycles=100, drain_cycles=30)


def test_surplus_beats_are_handed_over(components):
    broken = CompiledComponent(components.Adder("duplicate"), name="adder-duplicate")
    words, _ = pairs(components, 20)
    with pytest.raises(CosimSurplus) as caught:
        broken.run({"i_pair": words}, {"o_sum": 20}, drain_cycles=30)
    assert caught.value.port == "o_sum"
    assert unpack_words(components.SUM, caught.value.beats)["last"].tolist() == [1]


@pytest.mark.parametrize("fault", ["wrong", "peek"])
def test_wrong_values_show(components, fault):
    broken = CompiledComponent(components.Adder(fault), name=f"adder-{fault}")
    words, sums = pairs(components, 200)
    result = broken.run({"i_pair": words}, {"o_sum": 200}, stalls=Stalls(5))
    assert (unpack_words(components.SUM, result.outputs["o_sum"])["sum"] != sums).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": {"i_pear": np.zeros((1, 3), np.uint32)}}, "input is 'i_pear'; adder allows: i_pair"),
        ({"inputs": {"o_sum": np.zeros((1, 3), np.uint32)}}, "input is 'o_sum'; adder allows: i_pair"),
        ({"outputs": {"i_pair": 1}}, "output is 'i_pair'; adder allows: o_sum"),
        ({"outputs": {"o_sum": -1}}, "beats of o_sum is -1; allowed: at least 0"),
        (
            {"inputs": {"i_pair": np.zeros((1, 3), np.int32)}},
            r"i_pair is int32 \[1, 3\]; allowed: uint32 \[beats, 3\]",
        ),
        ({"inputs": {"i_pair": np.zeros((1, 2), np.uint32)}}, r"i_pair is uint32 \[1, 2\]"),
        (
            {"inputs": {"i_pair": np.full((1, 3), 1 << 17, np.uint32)}},
            "allowed: 81 bits, so the last word is below 131072",
        ),
        ({"gaps": {"i_pair": [1]}}, r"gaps of i_pair are int64 \[1\]; allowed: integers \[0\]"),
        ({"gaps": {"o_sum": [1]}}, "input is 'o_sum'"),
        ({"stalls": Stalls(0, per_port={"o_some": 0.5})}, "stream is 'o_some'; adder allows: i_pair, o_sum"),
        ({"max_idle_cycles": 0}, "max_idle_cycles is 0; allowed: at least 1"),
        ({"drain_cycles": -1}, "drain_cycles is -1; allowed: at least 0"),
    ],
)
def test_bad_arguments(adder, arguments, message):
    with pytest.raises(ValueError, match=message):
        adder.run(**{"inputs": {}, "outputs": {}, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_probability": 1}, "input_probability is 1; allowed: 0 <= p < 1"),
        ({"output_probability": -0.1}, "output_probability is -0.1"),
        ({"per_port": {"o": 2}}, r"per_port\['o'\] is 2"),
        (
            {"mean_burst_cycles": 0.5},
            "mean_burst_cycles is 0.5; allowed for input_probability 0.25: at least 1",
        ),
        ({"input_probability": 0.9, "mean_burst_cycles": 8}, "at least 9"),
    ],
)
def test_bad_stalls(arguments, message):
    with pytest.raises(ValueError, match=message):
        Stalls(0, **arguments)

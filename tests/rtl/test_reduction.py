"""Reduction unit, tree, division and network, compiled, against their golden twins."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from nearkv_hdl.pim.final_division import FinalDivision, output_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.reduction_network import ReductionNetwork, ReductionTree
from nearkv_hdl.pim.reduction_unit import ReductionUnit
from nearkv_hdl.pim.scaled_sum import ScaledSum
from nearkv_hdl.spec.attention import DEFAULT_DEGREE, Merge
from nearkv_sim.cosim import CompiledComponent, Stalls, pack_words, unpack_words
from nearkv_sim.golden.attention import Partial
from nearkv_sim.golden.partial_beats import concatenate_fields, maximum_fields, partial_fields, partial_of
from nearkv_sim.golden.reduction import divide, merge, reduce_tree

LANES, HEAD_DIM, BEATS = 4, 16, 4
FAN_IN = 3
FAN_INS, DIVIDERS = (2, 2), 2
DRAIN_CYCLES = 60
PAUSES = [None, Stalls(1), Stalls(2, 0.6, 0.2), Stalls(3, 0.1, 0.8, mean_burst_cycles=7)]
LARGEST = 1 << 45  # of a sum, so that FAN_IN of them fit 48 bits


@cache
def unit() -> tuple[ReductionUnit, CompiledComponent]:
    component = ReductionUnit(FAN_IN, LANES, DEFAULT_DEGREE)
    return component, CompiledComponent(ReductionUnit(FAN_IN, LANES, DEFAULT_DEGREE), name="reduction_unit")


@cache
def network() -> tuple[ReductionNetwork, CompiledComponent]:
    build = lambda: ReductionNetwork(FAN_INS, LANES, DIVIDERS, DEFAULT_DEGREE)  # noqa: E731
    return build(), CompiledComponent(build(), name="reduction_network")


def random_partials(rng, count: int, heads: int, kind: Merge, spread: int) -> list[Partial]:
    """Partials of several heads; under one maximum for an exact merge, else `spread` apart at most."""
    shared = rng.integers(-1000, 1000, heads) << 16
    return [
        Partial(
            shared if kind is Merge.EXACT else rng.integers(-spread, spread + 1, heads),
            rng.integers(1, LARGEST, heads) >> rng.integers(0, 40, heads),
            rng.integers(-LARGEST, LARGEST, (heads, HEAD_DIM)) >> rng.integers(0, 40, (heads, HEAD_DIM)),
        )
        for _ in range(count)
    ]


def inputs_of(fields) -> dict:
    return {f"i_{child}": pack_words(partial_layout(LANES), **f) for child, f in enumerate(fields)}


def reduce_on_rtl(fields, beats: int, stalls=None):
    _, rtl = unit()
    rtl.reset()
    result = rtl.run(inputs_of(fields), {"o": beats}, stalls=stalls, drain_cycles=DRAIN_CYCLES)
    return result, unpack_words(partial_layout(LANES), result.outputs["o"])


def test_three_children_by_hand():
    ones = np.ones((1, HEAD_DIM), np.int64)
    children = [Partial(np.array([7 << 16]), np.array([10**i]), ones * (i - 3)) for i in range(3)]
    fields = [partial_fields(p, -3, Merge.EXACT, LANES) for p in children]
    result, beats = reduce_on_rtl(fields, 1 + BEATS)
    partial, exponent = partial_of(beats["data"], HEAD_DIM)
    assert partial.maximum.tolist() == [7 << 16]
    assert partial.total.tolist() == [111]
    assert partial.sums.tolist() == [[-6] * HEAD_DIM]
    assert exponent.tolist() == [-3]
    assert beats["last"].tolist() == [0, 0, 0, 0, 1]
    assert not result.flags["o_mismatch"].high_cycles


@pytest.mark.parametrize("kind", list(Merge))
@pytest.mark.parametrize("stalls", PAUSES)
@pytest.mark.parametrize("spread", [0, 1, 3 << 16, (1 << 31) - 1])
def test_unit_equals_golden(kind, stalls, spread):
    """Jobs of both kinds and lone maxima back to back, maxima from equal to the whole range apart."""
    rng = np.random.default_rng(spread)
    heads = 30
    partials = random_partials(rng, FAN_IN, heads, kind, spread)
    fields = [
        concatenate_fields([partial_fields(p, 5, kind, LANES), maximum_fields(p.maximum, -1, LANES)])
        for p in partials
    ]
    result, beats = reduce_on_rtl(fields, heads * (1 + BEATS) + heads, stalls)
    expected = merge(partials, kind)
    wanted = concatenate_fields(
        [partial_fields(expected, 5, kind, LANES), maximum_fields(expected.maximum, -1, LANES)]
    )
    for field, values in wanted.items():
        assert np.array_equal(beats[field], values), field
    assert not result.flags["o_mismatch"].high_cycles
    assert not result.flags["o_overflow"].high_cycles


def test_jobs_of_both_kinds_alternate():
    rng = np.random.default_rng(9)
    jobs = [(kind, random_partials(rng, FAN_IN, 1, kind, 1 << 18)) for kind in list(Merge) * 5]
    fields = [
        concatenate_fields([partial_fields(parts[child], 0, kind, LANES) for kind, parts in jobs])
        for child in range(FAN_IN)
    ]
    _, beats = reduce_on_rtl(fields, len(jobs) * (1 + BEATS), Stalls(4))
    expected = concatenate_fields([partial_fields(merge(p, kind), 0, kind, LANES) for kind, p in jobs])
    assert np.array_equal(beats["data"], expected["data"])


@pytest.mark.parametrize("kind", list(Merge))
def test_unit_latency_and_interval(kind):
    component, _ = unit()
    heads = 5
    partials = random_partials(np.random.default_rng(0), FAN_IN, heads, kind, 1 << 17)
    fields = [partial_fields(p, 0, kind, LANES) for p in partials]
    result, _ = reduce_on_rtl(fields, heads * (1 + BEATS))
    interval = component.interval(BEATS, kind)
    assert result.cycles == heads * interval + component.latency
    last = result.ports[f"i_{FAN_IN - 1}"].last_cycle
    assert result.ports["o"].last_cycle - last == component.latency


@pytest.mark.parametrize("what", ["maximum", "kind", "length"])
def test_children_that_differ_raise_mismatch(what):
    partials = random_partials(np.random.default_rng(0), FAN_IN, 1, Merge.EXACT, 0)
    fields = [partial_fields(p, 0, Merge.EXACT, LANES) for p in partials]
    if what == "maximum":
        odd = Partial(partials[1].maximum + 1, partials[1].total, partials[1].sums)
        fields[1] = partial_fields(odd, 0, Merge.EXACT, LANES)
    elif what == "kind":
        fields[1] = partial_fields(partials[1], 0, Merge.EXPONENTIAL, LANES)
    else:
        fields[1]["last"][1] = 1
    result, _ = reduce_on_rtl(fields, 1 + BEATS)
    assert result.flags["o_mismatch"].high_cycles


def test_sum_beyond_48_bits_raises_overflow():
    high = Partial(np.zeros(1, np.int64), np.ones(1, np.int64), np.full((1, HEAD_DIM), (1 << 47) - 1))
    result, _ = reduce_on_rtl([partial_fields(high, 0, Merge.EXACT, LANES)] * FAN_IN, 1 + BEATS)
    assert result.flags["o_overflow"].high_cycles


def run_network(partials, kind: Merge, exponent: int, stalls=None):
    _, rtl = network()
    heads = len(partials[0].maximum)
    fields = [
        concatenate_fields([maximum_fields(p.maximum, 0, LANES), partial_fields(p, exponent, kind, LANES)])
        for p in partials
    ]
    rtl.reset()
    result = rtl.run(
        inputs_of(fields),
        {"o_output": heads * HEAD_DIM // DIVIDERS, "o_maximum": heads},
        stalls=stalls,
        drain_cycles=DRAIN_CYCLES,
    )
    output = unpack_words(output_layout(DIVIDERS), result.outputs["o_output"])
    maxima = result.outputs["o_maximum"][:, 0].astype(np.uint16).view(np.int16)
    return result, output, maxima


@pytest.mark.parametrize("kind", list(Merge))
@pytest.mark.parametrize("stalls", PAUSES)
@pytest.mark.parametrize("exponent", [-13, -2, 0, 9, 16])
def test_network_equals_golden(kind, stalls, exponent):
    """Two levels and the division: normal, subnormal and overflowing results."""
    rng = np.random.default_rng(exponent + 20)
    heads = 40
    partials = random_partials(rng, 4, heads, kind, 1 << 18)
    _, output, maxima = run_network(partials, kind, exponent, stalls)
    expected = reduce_tree(partials, FAN_INS, kind)
    bits = divide(expected, exponent).view(np.uint16)
    assert np.array_equal(output["data"].reshape(heads, HEAD_DIM), bits)
    assert np.array_equal(maxima, expected.maximum >> 16)
    ends = output["last"].reshape(heads, -1)
    assert ends[:, -1].all()
    assert not ends[:, :-1].any()


def test_division_of_exact_ties_and_their_neighbours():
    """Halfway between two FP16 numbers the even one wins; one unit beside it the nearer one."""
    cases = [((2 * (1024 + i) + 1) << 20) + step for i in range(4) for step in (-1, 0, 1)]
    sums = np.resize(np.array(cases + [-c for c in cases], np.int64), (3, HEAD_DIM))
    zero = Partial(np.zeros(3, np.int64), np.zeros(3, np.int64), np.zeros((3, HEAD_DIM), np.int64))
    whole = Partial(zero.maximum, np.full(3, 1 << 32), sums)
    _, output, _ = run_network([whole, zero, zero, zero], Merge.EXACT, 0)
    values = output["data"].reshape(3, HEAD_DIM).astype(np.uint16).view(np.float16)
    for value, total in zip(values.ravel(), sums.ravel(), strict=True):
        exact = Fraction(int(total), 1 << 32)
        spacing = Fraction(float(np.spacing(np.abs(value))))
        distance = abs(Fraction(float(value)) - exact)
        assert distance <= spacing / 2
        if distance == spacing / 2:
            assert int(value.view(np.uint16)) % 2 == 0


def test_network_latency():
    """From the first header at the inputs to the first output, and the rate of heads."""
    component, _ = network()
    for heads in (1, 6):
        partials = random_partials(np.random.default_rng(1), 4, heads, Merge.EXACT, 0)
        fields = [partial_fields(p, 0, Merge.EXACT, LANES) for p in partials]
        _, rtl = network()
        rtl.reset()
        result = rtl.run(inputs_of(fields), {"o_output": heads * HEAD_DIM // DIVIDERS})
        # Each level adds the turns of its children, header first; the output begins with the first sums.
        turns = sum(fan_in - 1 for fan_in in FAN_INS)
        first_sums = FAN_INS[0]  # the header's turns at the first level come before
        assert result.ports["o_output"].first_cycle == component.latency + turns + first_sums
        assert result.ports["o_output"].last_cycle == (
            component.latency
            + turns
            + first_sums
            + (heads - 1) * component.interval(BEATS)
            + (BEATS - 1) * FAN_INS[0]
            + LANES // DIVIDERS
            - 1
        )


@pytest.mark.parametrize(
    ("build", "quoted"),
    [
        (lambda: ReductionUnit(1, 4), "fan_in is 1"),
        (lambda: ReductionUnit(2, 1), "partial_lanes is 1"),
        (lambda: ReductionTree((), 4), r"fan_ins is \(\)"),
        (lambda: FinalDivision(4, 3), "dividers is 3"),
        (lambda: ScaledSum(0, 2), "lanes is 0"),
    ],
)
def test_refusals_quote_the_value(build, quoted):
    with pytest.raises(ValueError, match=quoted):
        build()

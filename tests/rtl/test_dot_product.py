"""The dot product units, all variants: chunks with gaps between them, extremes, latency."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv_hdl.attention.dot_product import DotProduct
from nearkv_hdl.attention.packed_dot_product import PackedDotProduct
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import KU15P, LFE5U_85F
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_hdl.spec.scorer_pipeline import dot_ranks

PLAIN, HEADS, KEYS, BLOCKS = (
    MacVariant.PLAIN,
    MacVariant.PACKED_HEADS,
    MacVariant.PACKED_KEYS,
    MacVariant.MULT18X18D,
)
# Terms before packed fields are split: 16, 1, 8, 2; with 32 and 16 products a beat there is a tree behind.
CASES = [
    (PLAIN, 8),
    (PLAIN, 12),
    (BLOCKS, 8),
    (BLOCKS, 12),
    (HEADS, 8),
    (HEADS, 10),
    (KEYS, 8),
    (KEYS, 10),
]


def design(variant: MacVariant, query_bits: int = 8, lanes: int = 32) -> DesignConfig:
    return DesignConfig(
        name="dot",
        device=LFE5U_85F if variant is BLOCKS else KU15P,
        bus_bytes=lanes,
        lanes=lanes,
        query_group=2,
        head_dims=(64, 128),
        clock_hz=1,
        query_bits=query_bits,
        block_tokens=16,
        variant=variant,
    )


class Bench:
    """Drives any variant with beats of codes and queries; one or two dot products come back.

    A beat is (codes, queries, valid, first) with codes [keys, n] and queries [heads, n]; the variant says how
    many keys and heads it takes and the number n of channels.
    """

    def __init__(self, config: DesignConfig) -> None:
        self.config = config
        packed = config.mac_variant in (HEADS, KEYS)
        self.unit = PackedDotProduct(config) if packed else DotProduct(config)
        self.lead = self.unit.lead if packed else 0
        self.keys, self.heads = {HEADS: (1, 2), KEYS: (2, 1)}.get(config.mac_variant, (1, 1))
        self.channels = config.lanes // self.keys

    def operands(self, codes, queries):
        """Values of the early and of the late port, as rows of rows."""
        if self.config.mac_variant is HEADS:
            return queries, codes
        if self.config.mac_variant is KEYS:
            return codes, queries
        return [], [codes[0], queries[0]]

    def run(self, beats) -> list[list[int]]:
        """Value of `o` in the cycle `latency` after each beat."""
        unit, packed = self.unit, self.lead > 0
        late_ports = [unit.narrow] if packed else [unit.codes, unit.query]
        early_ports = list(unit.wide) if packed else []
        zero = np.zeros(self.channels, int)
        idle = ([zero] * self.keys, [zero] * self.heads, False, False)
        padded = [*[idle] * self.lead, *beats, *[idle] * (unit.latency + self.lead)]
        seen = []

        async def bench(ctx):
            for cycle in range(len(padded) - self.lead):
                early = self.operands(*padded[cycle + self.lead][:2])[0]
                late = self.operands(*padded[cycle][:2])[1]
                for port, row in zip([*early_ports, *late_ports], [*early, *late], strict=True):
                    for lane, value in enumerate(row):
                        ctx.set(port[lane], int(value))
                ctx.set(unit.valid, padded[cycle][2])
                ctx.set(unit.first, padded[cycle][3])
                await ctx.tick()
                seen.append([ctx.get(o) for o in unit.o] if packed else [ctx.get(unit.o)])

        simulator = Simulator(unit)
        simulator.add_clock(1e-6)
        simulator.add_testbench(bench)
        simulator.run()
        return seen[self.lead + unit.latency - 1 :][: len(beats)]


@pytest.mark.parametrize("variant", MacVariant)
def test_two_chunks_by_hand(variant):
    bench = Bench(design(variant, lanes=8))
    n = bench.channels
    one, two = np.full(n, 1), np.full(n, 2)
    # The second key or head is the first one's negative: its sum borrows from, or into, the other field.
    codes, more_codes = [[row, -row][: bench.keys] for row in (one, two)]
    queries = [two, -two][: bench.heads]
    sums = bench.run([(codes, queries, True, True), (more_codes, queries, True, False)])
    expected = [[2 * n, -2 * n], [6 * n, -6 * n]]
    assert sums == [row[: bench.keys * bench.heads] for row in expected]


@pytest.mark.parametrize(("variant", "query_bits"), CASES)
def test_gaps_within_a_token_leave_its_sum_alone(variant, query_bits):
    """Random tokens of random chunk counts; between the beats lie cycles full of garbage without valid."""
    rng = np.random.default_rng(query_bits)
    bench = Bench(design(variant, query_bits))
    largest = bench.config.query_code.max
    n = bench.channels

    def draw(kind: int):
        if kind == 0:
            return (
                rng.integers(-128, 128, (bench.keys, n)),
                rng.integers(-largest, largest + 1, (bench.heads, n)),
            )
        return (
            np.repeat(rng.choice([-128, 127], (bench.keys, 1)), n, axis=1),
            np.repeat(rng.choice([-largest, largest], (bench.heads, 1)), n, axis=1),
        )

    beats, expected = [], []
    for token in range(24):
        total = np.zeros((bench.keys, bench.heads), int)
        kind = token % 2
        for chunk in range(int(rng.integers(1, 1 + 128 // bench.config.lanes))):
            for _ in range(int(rng.integers(0, 3))):
                beats.append((*draw(0), False, True))
                expected.append(None)
            codes, queries = draw(kind)
            total = total + codes @ queries.T
            beats.append((codes, queries, True, chunk == 0))
            expected.append(total.ravel().tolist())
    seen = bench.run(beats)
    assert [s for s, e in zip(seen, expected, strict=True) if e is not None] == [
        e for e in expected if e is not None
    ]


@pytest.mark.parametrize(
    ("variant", "query_bits", "latency"),
    [
        (PLAIN, 8, 1 + 5 + 1),
        (BLOCKS, 8, 3 + 5 + 1),
        (HEADS, 8, 1 + 4 + 1 + 1 + 1),
        (HEADS, 10, 1 + 0 + 1 + 5 + 1),
        (KEYS, 8, 1 + 3 + 1 + 1 + 1),
        (KEYS, 10, 1 + 1 + 1 + 3 + 1),
    ],
)
def test_latency_and_width_are_composed(variant, query_bits, latency):
    config = design(variant, query_bits)
    unit = Bench(config).unit
    assert (unit.latency, unit.interval) == (latency, 1)
    assert latency == dot_ranks(config)
    first = unit.o if variant in (PLAIN, BLOCKS) else unit.o[0]
    assert len(first) == config.dot.width == 8 + query_bits + 7


@pytest.mark.parametrize("variant", [PLAIN, BLOCKS])
def test_what_packs_nothing_is_refused(variant):
    with pytest.raises(ValueError, match=f"variant is {variant.value}; allowed: packed_heads, packed_keys"):
        PackedDotProduct(design(variant))

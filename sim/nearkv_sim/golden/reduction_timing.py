"""Cycles of attention on a whole device, and the share of them that the reduction adds.

The model follows units of equal load, level by level, with the latencies of the RTL. It equals the RTL where
the tree keeps up with the units (tests compare a device of two levels); larger devices are computed from it.

    python -m nearkv_sim.golden.reduction_timing        prints the table of docs/reduction.md
"""

from __future__ import annotations

from dataclasses import dataclass

from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS

# Latencies of the RTL components, as their properties say; a test compares them.
_PRODUCT = 5
_SCORE_FIXED = 3  # beside the adder tree's levels
_SUMS = 3
_READER = 3
_UNIT = 6  # of a reduction unit
_DIVISION = 21
_COMMAND = 2
_WEIGHTS_FIXED = 4  # beside the polynomial's 2 cycles per degree
TABLE_TOKENS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
TABLE_HEADS = 8


@dataclass(frozen=True)
class AttentionTiming:
    """Cycles from the first command to the last output.

    Attributes:
        cycles: all of them.
        unit_cycles: what they would be if maxima and results cost no cycles after the units.

    """

    cycles: int
    unit_cycles: int

    @property
    def exposed_share(self) -> float:
        """Share of the cycles that the reduction adds."""
        return (self.cycles - self.unit_cycles) / self.cycles


class _Level:
    """A reduction unit: beats of its children in turn."""

    def __init__(self, fan_in: int, merge: Merge, factor_cycles: int) -> None:
        self.fan_in, self.merge, self.factor_cycles = fan_in, merge, factor_cycles
        self.free = 0

    def pass_on(self, arrivals: list[int]) -> list[int]:
        """Cycles in which merged beats are offered, from those in which the children's are."""
        offered = []
        for index, arrival in enumerate(arrivals):
            end = max(self.free, arrival) + self.fan_in - 1
            self.free = end + 1
            if index == 0 and len(arrivals) > 1 and self.merge is Merge.EXPONENTIAL:
                end += self.factor_cycles + self.fan_in
                self.free = end + 1
            offered.append(end + _UNIT)
        return offered


def score_latency(design: PimDesign) -> int:
    """Cycles from a key row's last beat to its stored logit."""
    return _PRODUCT + _SCORE_FIXED + design.lanes.bit_length() - 1


def accumulate_cycles(design: PimDesign) -> int:
    """Cycles from the acceptance of ACCUMULATE to its first lane beat."""
    return 1 + _WEIGHTS_FIXED + 2 * design.degree


def attention_timing(
    design: PimDesign,
    tokens: int,
    heads: int,
    merge: Merge,
    *,
    fan_ins: tuple[int, ...] | None = None,
    barrier: bool = True,
) -> AttentionTiming:
    """Timing of `heads` heads back to back, each over `tokens` tokens spread evenly over the units.

    The keys of the next head are scored before the values of the present one, so that the barrier of an
    exact merge lies behind them.

    Args:
        design: unit, levels, dividers.
        tokens: tokens per device; a unit works on ceil(tokens / units).
        heads: heads.
        merge: kind of merge.
        fan_ins: levels; the design's by default.
        barrier: whether ACCUMULATE waits for the global maximum and its way down, a cycle per level.

    Raises:
        ValueError: fewer than one token or head.

    """
    if tokens < 1 or heads < 1:
        raise ValueError(f"tokens is {tokens} and heads {heads}; allowed: at least 1 of both")
    levels = design.fan_ins if fan_ins is None else fan_ins
    units = 1
    for fan_in in levels:
        units *= fan_in
    per_unit = -(-tokens // units)
    waits = barrier and merge is Merge.EXACT
    ideal = _walk(design, per_unit, heads, merge, (), waits=False)
    return AttentionTiming(_walk(design, per_unit, heads, merge, levels, waits=waits), ideal)


def _walk(
    design: PimDesign, per_unit: int, heads: int, merge: Merge, fan_ins: tuple[int, ...], *, waits: bool
) -> int:
    """Cycle after the last output, or after the last sum if there is no tree."""
    factor_cycles = 2 * design.degree + 1
    tree = [_Level(fan_in, merge, factor_cycles) for fan_in in fan_ins]
    beats = per_unit * design.beats
    rows_per_beat = design.partial_lanes // design.lanes
    steps = design.partial_lanes // design.dividers
    now = divider_free = reader_free = sums_free = finished = 0
    scored, maximum = [0] * heads, [0] * heads

    def through_tree(arrivals: list[int]) -> list[int]:
        for level in tree:
            arrivals = level.pass_on(arrivals)
        return arrivals

    def keys(head: int) -> None:
        nonlocal now, reader_free
        now += _COMMAND + design.beats  # query
        now += _COMMAND + beats
        scored[head] = now - 1 + score_latency(design)
        begin = max(now + 1, reader_free)
        header = max(begin, scored[head]) + _READER
        reader_free = header
        now = begin + 1
        top = through_tree([header])[0] if tree else header
        maximum[head] = top + 1 + len(fan_ins)

    keys(0)
    for head in range(heads):
        if head + 1 < heads:
            keys(head + 1)
        if waits:
            now = max(now, maximum[head])
        begin = max(now + 1, scored[head] + 1, sums_free)
        now = begin - 1 + accumulate_cycles(design) + beats
        settled = now - 1 + _PRODUCT + _SUMS
        begin = max(now + 1, reader_free)
        header = max(begin, settled) + _READER
        now = begin + 1
        sums = [header + 1 + rows_per_beat * (beat + 1) for beat in range(design.partial_beats)]
        arrivals = [header, *sums]
        if not tree:
            finished = max(finished, header - _READER)
            reader_free = sums_free = header
            continue
        # The reader is free when its last row has left; its buffer of two waits for the first level's turns.
        merged = tree[0].pass_on(arrivals)
        held = merged[-3] - _UNIT + 1 if len(merged) >= 3 else 0
        reader_free = sums_free = max(arrivals[-1], held)
        for level in tree[1:]:
            merged = level.pass_on(merged)
        divider_free = max(divider_free, merged[0]) + 1
        for beat in merged[1:]:
            divider_free = max(divider_free, beat) + steps
        finished = divider_free - 1 + _DIVISION
    return finished + 1


def table() -> str:
    """Exposed share of every named design and both merges, as Markdown."""
    lines = [
        "| design | merge | " + " | ".join(str(t) for t in TABLE_TOKENS) + " |",
        "|---|---|" + "---|" * len(TABLE_TOKENS),
    ]
    for design in PIM_DESIGNS.values():
        if design.name.startswith("tiny"):
            continue
        for merge in Merge:
            shares = [
                f"{100 * attention_timing(design, t, TABLE_HEADS, merge).exposed_share:.2f} %"
                for t in TABLE_TOKENS
            ]
            lines.append(f"| `{design.name}` | {merge.name.lower()} | " + " | ".join(shares) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

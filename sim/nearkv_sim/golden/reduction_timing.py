"""Cycles of attention on a whole device, and the share of them that the reduction adds.

The model follows units of equal load, beat by beat and level by level, with the latencies and buffers of the
RTL. It equals the RTL: tests compare a small device, and the instantiated part of every named design.

    python -m nearkv_sim.golden.reduction_timing        prints the table of docs/reduction.md
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

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
    """Cycles from the first command to the last output, and without what follows the units."""

    cycles: int
    unit_cycles: int

    @property
    def exposed_share(self) -> float:
        """Share of the cycles that the reduction adds."""
        return (self.cycles - self.unit_cycles) / self.cycles


class _Buffer:
    """The two-entry buffer behind a unit's reader or a reduction unit."""

    def __init__(self) -> None:
        self._taken = (-1, -1)  # cycles in which the last two beats left

    def accept(self, ready: int) -> int:
        """Cycle in which it takes a beat that is there from `ready` on: one after the last but one left."""
        return max(ready, self._taken[0] + 1)

    def leave(self, cycle: int) -> None:
        """A beat is taken from it."""
        self._taken = (self._taken[1], cycle)


class _Level:
    """A reduction unit: beats of its children in turn; a full buffer stops its pipeline."""

    def __init__(self, fan_in: int, factor_cycles: int) -> None:
        self.fan_in, self.factor_cycles = fan_in, factor_cycles
        self.buffer = _Buffer()
        self._free = 0
        self._pauses: list[tuple[int, int]] = []  # first cycle, and the one after the last

    def pass_on(self, arrival: int, *, scales: bool) -> tuple[int, int]:
        """Cycles in which the first child's beat is taken, and in which the merged one is offered.

        Args:
            arrival: cycle in which the children offer their beats.
            scales: whether it is the header of an exponential job, which waits for its factors.

        """
        first = self._after(max(self._free, arrival), 0)
        last = self._after(first, self.fan_in - 1)
        if scales:
            last = self._after(last + self.factor_cycles, self.fan_in)
        self._free = last + 1
        ready = self._after(last, _UNIT - 2) + 1
        accepted = self.buffer.accept(ready)
        self._pauses = [pause for pause in self._pauses if pause[1] > self._free]
        if accepted > ready:
            self._pauses.append((ready, accepted))
        return first, accepted + 1

    def _after(self, cycle: int, steps: int) -> int:
        """The cycle `steps` working cycles after the given one, which moves on if it is a pause itself."""
        for start, end in self._pauses:
            if cycle + steps < start:
                break
            if start > cycle:
                steps -= start - cycle
                cycle = end
            elif end > cycle:
                cycle = end
        return cycle + steps


class _Tree:
    """The levels over a unit and the division, for the beats of its first child."""

    def __init__(self, design: PimDesign, fan_ins: tuple[int, ...], merge: Merge) -> None:
        self._merge = merge
        self._steps = design.partial_lanes // design.dividers
        self._reader = _Buffer()
        self._levels = [_Level(fan_in, 2 * design.degree + 1) for fan_in in fan_ins]
        self._division_free = 0

    def read(self, ready: int) -> int:
        """Cycle in which a beat that is ready leaves the reader for its buffer."""
        return self._reader.accept(ready)

    def send(self, accepted: int, *, lone: bool = False, header: bool = False) -> int:
        """Pass the beat on to the division; returns the cycle in which that is done with it."""
        buffer, offered = self._reader, accepted + 1
        for level in self._levels:
            scales = header and not lone and self._merge is Merge.EXPONENTIAL
            taken, offered = level.pass_on(offered, scales=scales)
            buffer.leave(taken)
            buffer = level.buffer
        taken = max(self._division_free, offered) + (0 if header else self._steps - 1)
        buffer.leave(taken)
        self._division_free = taken + (2 if lone else 1)  # a lone maximum leaves by a register
        return taken


def score_latency(design: PimDesign) -> int:
    """Cycles from a key row's last beat to its stored logit."""
    return _PRODUCT + _SCORE_FIXED + design.lanes.bit_length() - 1


def accumulate_cycles(design: PimDesign) -> int:
    """Cycles from the acceptance of ACCUMULATE to its first lane beat."""
    return 1 + _WEIGHTS_FIXED + 2 * design.degree


def reduction_latency(design: PimDesign) -> int:
    """Cycles of the pipelines of all levels and of the division, without the turns of the children."""
    return _UNIT * len(design.levels) + _DIVISION


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
    per_unit = -(-tokens // prod(levels))
    waits = barrier and merge is Merge.EXACT
    ideal = _walk(design, per_unit, heads, merge, (), waits=False)
    return AttentionTiming(_walk(design, per_unit, heads, merge, levels, waits=waits), ideal)


def _walk(
    design: PimDesign, per_unit: int, heads: int, merge: Merge, fan_ins: tuple[int, ...], *, waits: bool
) -> int:
    """Cycle after the last output, or after the last sum if there is no tree."""
    tree = _Tree(design, fan_ins, merge) if fan_ins else None
    beats = per_unit * design.beats
    rows_per_beat = design.partial_lanes // design.lanes
    now = reader_free = sums_free = finished = 0
    scored, maximum = [0] * heads, [0] * heads

    def keys(head: int) -> None:
        nonlocal now, reader_free
        now += _COMMAND + design.beats  # query
        now += _COMMAND + beats
        scored[head] = now - 1 + score_latency(design)
        begin = max(now + 1, reader_free)
        header = max(begin, scored[head]) + _READER
        if tree:
            accepted = tree.read(header - 1)
            header = accepted + 1
            maximum[head] = tree.send(accepted, lone=True, header=True) + 1 + len(fan_ins)
        reader_free = header
        now = begin + 1

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
        if not tree:
            finished = max(finished, header - _READER)
            reader_free = sums_free = header
            continue
        accepted = tree.read(header - 1)
        tree.send(accepted, header=True)
        accepted += 1  # the memory's latency
        for _ in range(design.partial_beats):
            accepted = tree.read(accepted + rows_per_beat)
            finished = tree.send(accepted) + _DIVISION
        reader_free = sums_free = accepted + 1
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

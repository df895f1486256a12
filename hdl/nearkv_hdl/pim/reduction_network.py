"""The tree of reduction units, and the network that ends it with the final division."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.pim.final_division import FinalDivision, output_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.reduction_unit import ReductionUnit
from nearkv_hdl.spec.attention import DEFAULT_DEGREE, MAXIMUM, Merge


class ReductionTree(wiring.Component):
    """Levels of reduction units over consecutive groups of inputs.

    Formula: level by level, groups of fan_ins[k] partials are merged (see ReductionUnit). Lone maxima pass
    the same tree.
    Timing: every level starts on a merged beat at once, so from the first input's header to the merged one
    pass Σ fan_in + `latency` cycles (less one per level), and a job takes as long as its slowest level
    (`interval`). Jobs follow each other without a gap.
    Stalls: as ReductionUnit; a pause of the output travels back level by level.
    Numerics, reset: as ReductionUnit.

    Args:
        fan_ins: fan-in of every level, from the inputs upwards.
        partial_lanes: sums per beat.
        degree: of the polynomial.

    Members:
        i_0 …: partials, prod(fan_ins) of them.
        o: merged partials.
        o_mismatch, o_overflow: since reset, any unit's flag.

    """

    def __init__(self, fan_ins: Sequence[int], partial_lanes: int, degree: int = DEFAULT_DEGREE) -> None:
        if not fan_ins:
            raise ValueError(f"fan_ins is {tuple(fan_ins)}; allowed: at least one level")
        self.fan_ins = tuple(fan_ins)
        self.inputs = prod(self.fan_ins)
        self._levels = [
            [
                ReductionUnit(fan_in, partial_lanes, degree)
                for _ in range(self.inputs // prod(self.fan_ins[: level + 1]))
            ]
            for level, fan_in in enumerate(self.fan_ins)
        ]
        partials = stream.Signature(partial_layout(partial_lanes))
        super().__init__(
            {f"i_{unit}": In(partials) for unit in range(self.inputs)}
            | {"o": Out(partials), "o_mismatch": Out(1), "o_overflow": Out(1)}
        )

    @property
    def latency(self) -> int:
        """Cycles of the pipelines on the way, without the turns of the children."""
        return sum(level[0].latency for level in self._levels)

    def interval(self, partial_beats: int, merge: Merge = Merge.EXACT) -> int:
        """Cycles between two jobs whose partials have that many beats after the header."""
        return max(level[0].interval(partial_beats, merge) for level in self._levels)

    def elaborate(self, platform):
        m = Module()
        sources = [wiring.flipped(getattr(self, f"i_{unit}")) for unit in range(self.inputs)]
        mismatches, overflows = [], []
        for level, units in enumerate(self._levels):
            for index, unit in enumerate(units):
                m.submodules[f"level{level}_{index}"] = unit
                for child in range(unit.fan_in):
                    wiring.connect(m, sources[index * unit.fan_in + child], getattr(unit, f"i_{child}"))
                mismatches.append(unit.o_mismatch)
                overflows.append(unit.o_overflow)
            sources = [unit.o for unit in units]
        wiring.connect(m, sources[0], wiring.flipped(self.o))
        m.d.comb += [
            self.o_mismatch.eq(Cat(*mismatches).any()),
            self.o_overflow.eq(Cat(*overflows).any()),
        ]
        return m


class ReductionNetwork(wiring.Component):
    """A reduction tree and one final division.

    Formula: the tree's result is divided once (see FinalDivision); lone maxima leave on `o_maximum`.
    Timing, stalls, numerics, reset: as ReductionTree and FinalDivision.

    Args:
        fan_ins: fan-in of every level, from the inputs upwards.
        partial_lanes: sums per beat.
        dividers: divisions side by side.
        degree: of the polynomial.

    Members:
        i_0 …: partials of the units, prod(fan_ins) of them.
        o_output: FP16 attention outputs.
        o_maximum: integer maxima of phase 1.
        o_mismatch, o_overflow: since reset, any unit's flag.

    """

    def __init__(
        self, fan_ins: Sequence[int], partial_lanes: int, dividers: int, degree: int = DEFAULT_DEGREE
    ) -> None:
        self._tree = ReductionTree(fan_ins, partial_lanes, degree)
        self._division = FinalDivision(partial_lanes, dividers)
        self.inputs = self._tree.inputs
        super().__init__(
            {f"i_{unit}": In(stream.Signature(partial_layout(partial_lanes))) for unit in range(self.inputs)}
            | {
                "o_output": Out(stream.Signature(output_layout(dividers))),
                "o_maximum": Out(stream.Signature(shape_of(MAXIMUM))),
                "o_mismatch": Out(1),
                "o_overflow": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles of the pipelines on the way, without the turns of the children."""
        return self._tree.latency + self._division.latency

    def interval(self, partial_beats: int, merge: Merge = Merge.EXACT) -> int:
        """Cycles between two heads of that many beats after the header."""
        return max(self._tree.interval(partial_beats, merge), self._division.interval(partial_beats))

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = self._tree
        m.submodules.division = division = self._division
        for unit in range(self.inputs):
            wiring.connect(m, wiring.flipped(getattr(self, f"i_{unit}")), getattr(tree, f"i_{unit}"))
        wiring.connect(m, tree.o, division.i)
        wiring.connect(m, division.o_output, wiring.flipped(self.o_output))
        wiring.connect(m, division.o_maximum, wiring.flipped(self.o_maximum))
        m.d.comb += [self.o_mismatch.eq(tree.o_mismatch), self.o_overflow.eq(tree.o_overflow)]
        return m

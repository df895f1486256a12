"""The compute part of a PIM device: processing units under their reduction tree."""

from __future__ import annotations

from amaranth.hdl import Cat, Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.pim.commands import command_layout, row_layout
from nearkv_hdl.pim.final_division import FinalDivision, output_layout
from nearkv_hdl.pim.partial import partial_layout
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.pim.reduction_network import ReductionTree
from nearkv_hdl.pim.reduction_unit import ReductionUnit
from nearkv_hdl.spec.attention import MAXIMUM
from nearkv_hdl.spec.pim_design import PimDesign


class PimDevice(wiring.Component):
    """Processing units of the design's instantiated levels, every level above them, and the division.

    Formula: the units' partials are merged over `rtl_levels` levels; each level above has its full fan-in,
    with this device's result as child 0 and the other groups' partials entering through ports.
    Timing: as ProcessingUnit and ReductionUnit; a level above starts on a merged beat at once.
    Stalls, numerics, reset: as its children.

    Args:
        design: sizes and levels.

    Members:
        i_command_0 …, i_rows_0 …: commands and rows of every unit.
        i_level{k}_1 …: partials of the other groups at level k, from `rtl_levels` on.
        o_output: FP16 attention outputs.
        o_maximum: integer maxima of phase 1.
        o_error: since reset, any error flag of a unit (invalid, overflow, sequence, framing) or of a merge.
        o_saturated: since reset a logit was saturated.

    """

    def __init__(self, design: PimDesign) -> None:
        self.design = design
        self._units = [ProcessingUnit(design) for _ in range(design.rtl_units)]
        self._tree = ReductionTree(design.rtl_fan_ins, design.partial_lanes, design.degree)
        self._upper = [
            ReductionUnit(fan_in, design.partial_lanes, design.degree)
            for fan_in in design.fan_ins[design.rtl_levels :]
        ]
        self._division = FinalDivision(design.partial_lanes, design.dividers)
        partials = stream.Signature(partial_layout(design.partial_lanes))
        members = {}
        for unit in range(design.rtl_units):
            members[f"i_command_{unit}"] = In(stream.Signature(command_layout(design)))
            members[f"i_rows_{unit}"] = In(stream.Signature(row_layout(design)))
        for level, merger in enumerate(self._upper, start=design.rtl_levels):
            members |= {f"i_level{level}_{child}": In(partials) for child in range(1, merger.fan_in)}
        super().__init__(
            members
            | {
                "o_output": Out(stream.Signature(output_layout(design.dividers))),
                "o_maximum": Out(stream.Signature(shape_of(MAXIMUM))),
                "o_error": Out(1),
                "o_saturated": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles of the reduction's pipelines, without the turns of the children."""
        return self._tree.latency + sum(merger.latency for merger in self._upper) + self._division.latency

    @property
    def interval(self) -> int:
        """Cycles between two lane beats of a unit."""
        return self._units[0].interval

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = self._tree
        m.submodules.division = division = self._division
        errors, saturated = [tree.o_mismatch, tree.o_overflow], []
        for index, unit in enumerate(self._units):
            m.submodules[f"unit{index}"] = unit
            wiring.connect(m, wiring.flipped(getattr(self, f"i_command_{index}")), unit.i_command)
            wiring.connect(m, wiring.flipped(getattr(self, f"i_rows_{index}")), unit.i_rows)
            wiring.connect(m, unit.o, getattr(tree, f"i_{index}"))
            errors += [unit.o_invalid, unit.o_overflow, unit.o_sequence_error, unit.o_framing_error]
            saturated.append(unit.o_saturated)
        merged = tree.o
        for level, merger in enumerate(self._upper, start=self.design.rtl_levels):
            m.submodules[f"level{level}"] = merger
            wiring.connect(m, merged, merger.i_0)
            for child in range(1, merger.fan_in):
                other = wiring.flipped(getattr(self, f"i_level{level}_{child}"))
                wiring.connect(m, other, getattr(merger, f"i_{child}"))
            errors += [merger.o_mismatch, merger.o_overflow]
            merged = merger.o
        wiring.connect(m, merged, division.i)
        wiring.connect(m, division.o_output, wiring.flipped(self.o_output))
        wiring.connect(m, division.o_maximum, wiring.flipped(self.o_maximum))
        m.d.comb += [self.o_error.eq(Cat(*errors).any()), self.o_saturated.eq(Cat(*saturated).any())]
        return m

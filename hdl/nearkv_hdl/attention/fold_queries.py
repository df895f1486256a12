"""Double-buffered store of prepared queries for folding."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.attention.fold_config import QUERY_SETS, UNIT, fold_lanes, fold_steps
from nearkv_hdl.attention.query_buffer import listed
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import QUERY_MANTISSA


def query_set_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the query-set stream: one beat per job."""
    return data.StructLayout(
        {
            "head_dim_index": 2,  # position in design.head_dims
            "unit": data.ArrayLayout(shape_of(UNIT), design.query_group),
        }
    )


def mantissa_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the mantissa stream."""
    row = data.ArrayLayout(shape_of(QUERY_MANTISSA), fold_lanes(design))
    return data.StructLayout({"data": row, "last": 1})


class FoldQueries(wiring.Component):
    """Two sets of prepared queries: one folds the blocks of a job while the next job's is loaded.

    A set's command is taken as soon as a place is free, then its mantissas, head by head.

    Formula: `mantissa` is row `read_step` of head `read_head` of set `read_set`, `unit` that head's.
    Timing: a command takes one cycle, every beat one; a set is `ready` two cycles after its last beat; what
    is read follows the address by `latency` = 2 cycles. Neither stream waits for the other's valid, and no
    input reaches a memory but through a register.
    Numerics: none, mantissas pass through.

    Args:
        design: query group, head dimensions, channels of a beat.

    Members:
        i_set: head_dim_index and, per head, `unit` (see UNIT).
        i_mantissas: `fold_lanes` mantissas a beat; `last` marks a set's final one and is checked.
        ready: per set, it is complete.
        release: per set, a pulse that frees it: from the next cycle on it is not read.
        read_set, read_head, read_step: mantissas read_step·fold_lanes… of a head to read.
        unit, mantissa: of that head and these channels.
        framing_error: high in a cycle whose beat has `last` in the wrong place.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self.lanes = fold_lanes(design)
        self.steps = fold_steps(design, design.head_dims[-1])
        self._heads = 1 << (design.query_group - 1).bit_length()
        depth = QUERY_SETS * self._heads * self.steps
        self._memory = SyncMemory(self.lanes * QUERY_MANTISSA.width, depth, latency=2)
        super().__init__(
            {
                "i_set": In(stream.Signature(query_set_layout(design))),
                "i_mantissas": In(stream.Signature(mantissa_layout(design))),
                "ready": Out(QUERY_SETS),
                "release": In(QUERY_SETS),
                "read_set": In(1),
                "read_head": In(range(design.query_group)),
                "read_step": In(range(self.steps)),
                "unit": Out(shape_of(UNIT)),
                "mantissa": Out(shape_of(QUERY_MANTISSA)).array(self.lanes),
                "framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a read to its mantissas."""
        return self._memory.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats, and between two reads."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design = self.design
        m.submodules.mantissas = memory = self._memory
        number, loading = Signal(1), Signal()
        known = Signal(QUERY_SETS)
        head, step = Signal(range(design.query_group)), Signal(range(self.steps))
        last_step = Signal(range(self.steps), reset_less=True)
        units = [
            Signal(data.ArrayLayout(shape_of(UNIT), design.query_group), name=f"unit{s}", reset_less=True)
            for s in range(QUERY_SETS)
        ]

        m.d.comb += [
            self.i_set.ready.eq(~loading & ~known.bit_select(number, 1)),
            self.i_mantissas.ready.eq(loading),
        ]
        for s in range(QUERY_SETS):
            with m.If(self.release[s]):
                m.d.sync += [known[s].eq(0), self.ready[s].eq(0)]
        with m.If(self.i_set.valid & self.i_set.ready):
            last_steps = Array(fold_steps(design, d) - 1 for d in design.head_dims)
            index = listed(design, self.i_set.payload.head_dim_index)
            m.d.sync += [loading.eq(1), last_step.eq(last_steps[index])]
            with m.Switch(number):
                for s in range(QUERY_SETS):
                    with m.Case(s):
                        m.d.sync += [units[s].eq(self.i_set.payload.unit), known[s].eq(1)]

        take = self.i_mantissas.valid & self.i_mantissas.ready
        head_end = step == last_step
        final = head_end & (head == design.query_group - 1)
        with m.If(take):
            m.d.sync += step.eq(step + 1)
            with m.If(head_end):
                m.d.sync += [step.eq(0), head.eq(head + 1)]
            with m.If(final):
                m.d.sync += [head.eq(0), loading.eq(0), number.eq(~number)]
        loaded = Signal(QUERY_SETS)
        m.d.sync += loaded.eq((take & final) << number)
        for s in range(QUERY_SETS):
            with m.If(loaded[s]):
                m.d.sync += self.ready[s].eq(1)
        m.d.comb += self.framing_error.eq(take & (self.i_mantissas.payload.last != final))

        write_enable = Signal()
        m.d.sync += write_enable.eq(take)
        m.d.comb += [
            memory.write_row.eq(delayed(m, Cat(step, head, number), "row")),
            memory.write_data.eq(delayed(m, self.i_mantissas.payload.data.as_value(), "beat")),
            memory.write_enable.eq(write_enable),
            memory.read_row.eq(Cat(self.read_step, self.read_head, self.read_set)),
            memory.read_enable.eq(1),
        ]
        unit = Array(u[h] for u in units for h in range(design.query_group))[
            self.read_set * design.query_group + self.read_head
        ]
        for rank in range(self.latency):
            unit = delayed(m, unit, f"read_unit{rank}")
        m.d.comb += self.unit.eq(unit)
        for lane, mantissa in enumerate(self.mantissa):
            m.d.comb += mantissa.eq(memory.read_data.word_select(lane, QUERY_MANTISSA.width).as_signed())
        return m

"""Folding of prepared queries into key blocks, in hardware."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.attention.fold_codes import FoldCodes, folded_head_layout
from nearkv_hdl.attention.fold_config import HEAD_SLOTS, anchor, fold_lanes, fold_steps, half_units
from nearkv_hdl.attention.fold_first_pass import FoldFirstPass
from nearkv_hdl.attention.fold_headers import FoldHeaders, descriptor_layout, header_layout
from nearkv_hdl.attention.fold_output import FoldOutput
from nearkv_hdl.attention.fold_queries import FoldQueries, mantissa_layout, query_set_layout
from nearkv_hdl.attention.query_buffer import command_layout, query_layout
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE, SHIFT
from nearkv_hdl.stream.credit import BUFFER_LATENCY


class FoldUnit(wiring.Component):
    """Folds each key block's header into the job's prepared queries: the scorer's commands and codes.

    Formula: codes, shift and bias of `nearkv.codec.query.fold_query`, bit for bit, with `unit` = 24 +
    fraction bits of the query − L. A job is a query set and the blocks up to the one with `last`.

    Two passes over each query head of a block, `fold_lanes` channels a cycle: the first finds the smallest
    shift without saturation and q·anchor, and keeps the products in half units; the second rounds them to
    codes and adds up the mean-code dot product. The second pass of a head runs beside the first pass of the
    next, whichever block and job that belongs to. Headers have multipliers of their own, three per lane of
    the first and one of the second pass, so that key beats are never interrupted.

    Timing: one block per query_group · head_dim / fold_lanes cycles (`block_interval`), which with blocks of
    128 tokens is no longer than the scorer works on one. `latency` cycles from a block's last header beat to
    its command, on an idle unit.
    Stalls: passes never stop within a head. A first pass starts with a header, a query set and one of
    HEAD_SLOTS places; a second pass with a place for all of its codes. No ready depends on a valid.
    Numerics: exact integers with the roundings of the formula. `o_overflow` if a header is not finite or a
    code or bias does not fit, for which `unit` must have been chosen for other blocks.

    Args:
        design: formats, query group, head dimensions, bus and lanes.

    Members:
        i_set, i_mantissas: prepared queries, see FoldQueries.
        i_block, i_headers: descriptors and headers of the job's key blocks, see FoldHeaders.
        o_block, o_query: commands and codes, as Scorer takes them.
        o_overflow: something did not fit since reset.
        o_framing_error: a `last` stood in the wrong place since reset; counted lengths win.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self.lanes = fold_lanes(design)
        self.steps = fold_steps(design, design.head_dims[-1])
        self._queries = FoldQueries(design)
        self._headers = FoldHeaders(design)
        self._first = FoldFirstPass(design)
        self._codes = FoldCodes(design)
        self._output = FoldOutput(design)
        self._kept = data.StructLayout(
            {
                "half_units": data.ArrayLayout(shape_of(half_units(design)), self.lanes),
                "mean": data.ArrayLayout(shape_of(CODE), self.lanes),
            }
        )
        self._ring = SyncMemory(self._kept.size, HEAD_SLOTS * self.steps, latency=2)
        super().__init__(
            {
                "i_set": In(stream.Signature(query_set_layout(design))),
                "i_mantissas": In(stream.Signature(mantissa_layout(design))),
                "i_block": In(stream.Signature(descriptor_layout())),
                "i_headers": In(stream.Signature(header_layout(design))),
                "o_block": Out(stream.Signature(command_layout(design))),
                "o_query": Out(stream.Signature(query_layout(design))),
                "o_overflow": Out(1),
                "o_framing_error": Out(1),
            }
        )

    @property
    def place_latency(self) -> int:
        """Cycles for which a head keeps its place after its last step of the first pass.

        Intervals and latencies hold for heads of which HEAD_SLOTS − 1 take as long; shorter ones wait.
        """
        return self._headers.latency + self._first.latency + BUFFER_LATENCY

    def block_interval(self, head_dim: int) -> int:
        """Cycles between two blocks of that head_dim."""
        return self.design.query_group * fold_steps(self.design, head_dim)

    @property
    def interval(self) -> int:
        """Cycles between two blocks of the largest head_dim."""
        return self.block_interval(self.design.head_dims[-1])

    def block_latency(self, head_dim: int) -> int:
        """Cycles from the last header beat of such a block to its command, on an idle unit."""
        ready, start = 2, 1
        first_pass = self.block_interval(head_dim) - 1 + self.place_latency
        second_pass = fold_steps(self.design, head_dim) - 1 + self._ring.latency + self._codes.latency
        return ready + first_pass + start + second_pass + self._output.latency

    @property
    def latency(self) -> int:
        """`block_latency` of the largest head_dim."""
        return self.block_latency(self.design.head_dims[-1])

    def elaborate(self, platform):
        assert self._headers.latency == self._queries.latency
        m = Module()
        design = self.design
        m.submodules.queries = queries = self._queries
        m.submodules.headers = headers = self._headers
        m.submodules.first = first = self._first
        m.submodules.ring = ring = self._ring
        m.submodules.codes = codes = self._codes
        m.submodules.output = output = self._output
        for part, names in ((queries, ("i_set", "i_mantissas")), (headers, ("i_block", "i_headers"))):
            for name in names:
                wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(part, name))
        wiring.connect(m, output.o_block, wiring.flipped(self.o_block))
        wiring.connect(m, output.o_query, wiring.flipped(self.o_query))
        last_steps = Array(fold_steps(design, d) - 1 for d in design.head_dims)

        # First pass: step by step through the heads of the block in `bank`.
        bank, query_set, head = Signal(1), Signal(1), Signal(range(design.query_group))
        step, head_start = Signal(range(self.steps)), Signal(init=1)
        slots = Signal(range(HEAD_SLOTS + 1))
        descriptor = Signal(descriptor_layout())
        m.d.comb += descriptor.eq(Mux(bank, *(d.as_value() for d in reversed(list(headers.descriptor)))))
        head_end = step == last_steps[descriptor.head_dim_index]
        last_head = head == design.query_group - 1
        issue = ~head_start | (
            headers.ready.bit_select(bank, 1) & queries.ready.bit_select(query_set, 1) & (slots != HEAD_SLOTS)
        )
        block_end = issue & head_end & last_head
        with m.If(issue):
            m.d.sync += [step.eq(Mux(head_end, 0, step + 1)), head_start.eq(head_end)]
            with m.If(head_end):
                m.d.sync += head.eq(Mux(last_head, 0, head + 1))
        m.d.sync += [bank.eq(bank ^ block_end), query_set.eq(query_set ^ (block_end & descriptor.last))]
        m.d.comb += [
            headers.release.eq(block_end << bank),
            queries.release.eq((block_end & descriptor.last) << query_set),
            headers.read_bank.eq(bank),
            headers.read_step.eq(step),
            queries.read_set.eq(query_set),
            queries.read_head.eq(head),
            queries.read_step.eq(step),
        ]
        flags = [(issue, head_start, head_end)]
        for rank in range(headers.latency):
            valid, before = Signal(name=f"issued{rank}"), flags[-1]
            m.d.sync += valid.eq(before[0])
            flags.append((valid, *(delayed(m, f, f"end{rank}_{j}") for j, f in enumerate(before[1:]))))
        m.d.comb += [
            *(p.eq(f) for p, f in zip((first.i_valid, first.i_first, first.i_last), flags[-1], strict=True)),
            first.unit.eq(queries.unit),
        ]
        kept, row, slot = Signal(self._kept), Signal(range(self.steps)), Signal(range(HEAD_SLOTS))
        for lane in range(self.lanes):
            mean = headers.mean[lane]
            m.d.comb += [
                first.mantissa[lane].eq(queries.mantissa[lane]),
                first.centre[lane].eq(headers.centre[lane]),
                first.scale[lane].eq(headers.scale[lane]),
                first.mean[lane].eq(mean),
                kept.half_units[lane].eq(first.half_units[lane]),
            ]
            for rank in range(first.half_latency):
                mean = delayed(m, mean, f"mean{lane}_{rank}")
            m.d.comb += kept.mean[lane].eq(mean)
        with m.If(first.o_valid):
            m.d.sync += [row.eq(Mux(first.o_last, 0, row + 1)), slot.eq(slot + first.o_last)]
        m.d.comb += [
            ring.write_row.eq(Cat(row, slot)),
            ring.write_data.eq(kept),
            ring.write_enable.eq(first.o_valid),
        ]

        # Between the passes: what is known when a head starts, and what its first pass found.
        known_layout = data.StructLayout({"block_end": 1, "descriptor": descriptor_layout()})
        found_layout = data.StructLayout({"shift": SHIFT.width, "anchor": shape_of(anchor(design))})
        m.submodules.known = known = fifo.SyncFIFOBuffered(width=known_layout.size, depth=HEAD_SLOTS)
        m.submodules.found = found = fifo.SyncFIFOBuffered(width=found_layout.size, depth=HEAD_SLOTS)
        next_known = data.View(known_layout, known.r_data)
        next_found = data.View(found_layout, found.r_data)
        m.d.comb += [
            known.w_en.eq(issue & head_start),
            known.w_data.eq(Cat(last_head, descriptor)),
            found.w_en.eq(first.o_done),
            found.w_data.eq(Cat(first.o_shift, first.o_anchor)),
        ]

        # Second pass: a head starts in the last step of the one before. Its place is free from then on, since
        # a first pass that starts now writes each row after this pass has read it.
        current = Signal(folded_head_layout(design), reset_less=True)
        busy, read_step, read_slot = Signal(), Signal(range(self.steps)), Signal(range(HEAD_SLOTS))
        read_end = read_step == last_steps[current.descriptor.head_dim_index]
        start = found.r_rdy & output.room & (~busy | read_end)
        m.d.comb += [known.r_en.eq(start), found.r_en.eq(start), output.start.eq(start)]
        m.d.sync += slots.eq(slots + (issue & head_start) - start)
        with m.If(busy):
            m.d.sync += [read_step.eq(Mux(read_end, 0, read_step + 1)), read_slot.eq(read_slot + read_end)]
        with m.If(start):
            m.d.sync += [
                current.shift.eq(next_found.shift),
                current.anchor.eq(next_found.anchor),
                current.block_end.eq(next_known.block_end),
                current.descriptor.eq(next_known.descriptor),
            ]
        m.d.sync += busy.eq(start | (busy & ~read_end))
        m.d.comb += [ring.read_row.eq(Cat(read_step, read_slot)), ring.read_enable.eq(1)]
        valid, is_first, is_last, folding = busy, read_step == 0, read_end, current
        for rank in range(ring.latency):
            was_valid, before = Signal(name=f"reading{rank}"), folding
            folding = Signal(folded_head_layout(design), name=f"folding{rank}", reset_less=True)
            m.d.sync += [was_valid.eq(valid), folding.eq(before)]
            valid = was_valid
            is_first, is_last = delayed(m, is_first, f"first{rank}"), delayed(m, is_last, f"last{rank}")
        read = data.View(self._kept, ring.read_data)
        m.d.comb += [
            codes.i_valid.eq(valid),
            codes.i_first.eq(is_first),
            codes.i_last.eq(is_last),
            codes.i_head.eq(folding),
            output.i_valid.eq(codes.o_valid),
            output.i_head_end.eq(codes.o_head_end),
            output.i_block_end.eq(codes.o_block_end),
            output.i_done.eq(codes.o_done),
            output.i_head.eq(codes.o_head),
            output.i_bias.eq(codes.o_bias),
        ]
        for lane in range(self.lanes):
            m.d.comb += [
                codes.half_units[lane].eq(read.half_units[lane]),
                codes.mean[lane].eq(read.mean[lane]),
                output.codes[lane].eq(codes.codes[lane]),
            ]

        with m.If(first.o_overflow | codes.o_overflow):
            m.d.sync += self.o_overflow.eq(1)
        with m.If(queries.framing_error | headers.framing_error):
            m.d.sync += self.o_framing_error.eq(1)
        return m

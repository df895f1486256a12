"""Small moves that continue each other become one job."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import MoveCode


class MoveBatcher(wiring.Component):
    """Merges consecutive plans that continue each other on both sides, while nobody waits for a job.

    Formula: a plan joins the open job if its flags are the same, both its addresses are those behind the job,
    and the tiles fit the count. Otherwise, or once `i_hungry`, the job is closed and offered. Plans without a
    job leave it open. Every plan gives an entry of the ledger, in order.
    Timing: latency 2 to the ledger, 3 to the job if a path is free; interval 2 for plans that join.
    Stalls: a stalled `o_entry` stops `i`; a stalled `o_job` does once a plan does not join. No ready depends
    on a valid, so a plan is taken into a register first.
    Numerics: unsigned.
    Cuts: valid and payload of all outputs come from registers.
    Reset: the open job is forgotten.

    Args:
        shapes: of the streams.

    Members:
        i: plans.
        i_hungry: a path is free: do not wait for more.
        o_job: jobs.
        o_entry: ledger entries.

    """

    def __init__(self, shapes: MoveShapes) -> None:
        self.shapes = shapes
        super().__init__(
            {
                "i": In(stream.Signature(shapes.plan)),
                "i_hungry": In(1),
                "o_job": Out(stream.Signature(shapes.job)),
                "o_entry": Out(stream.Signature(shapes.entry)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a plan to its job, if a path is free."""
        return 3

    @property
    def interval(self) -> int:
        """Cycles between two plans that join."""
        return 2

    def elaborate(self, platform):
        m = Module()
        shapes = self.shapes
        plan, plan_valid = Signal(shapes.plan, reset_less=True), Signal()
        entry, entry_valid = Signal(shapes.entry, reset_less=True), Signal()
        job, job_open, job_closed = Signal(shapes.job, reset_less=True), Signal(), Signal()
        source_end = Signal(shapes.address_bits, reset_less=True)
        destination_end = Signal(shapes.address_bits, reset_less=True)
        total_tiles = Signal(shapes.tiles_bits + 1)
        has_job, joins, opens, settles = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            total_tiles.eq(job.tiles + plan.job.tiles),
            has_job.eq(plan.code == MoveCode.DONE),
            joins.eq(
                job_open
                & ~self.i_hungry
                & (plan.job.flags == job.flags)
                & (plan.job.source == source_end)
                & (plan.job.destination == destination_end)
                & ~total_tiles[-1]
            ),
            opens.eq(has_job & ~job_open & ~job_closed),
            settles.eq(plan_valid & (~entry_valid | self.o_entry.ready) & (~has_job | joins | opens)),
            self.i.ready.eq(~plan_valid),
            self.o_job.valid.eq(job_closed),
            Value.cast(self.o_job.payload).eq(job),
            self.o_entry.valid.eq(entry_valid),
            Value.cast(self.o_entry.payload).eq(entry),
        ]
        with m.If(~plan_valid):
            m.d.sync += [Value.cast(plan).eq(self.i.payload), plan_valid.eq(self.i.valid)]
        with m.Elif(settles):
            m.d.sync += plan_valid.eq(0)

        with m.If(self.o_entry.ready):
            m.d.sync += entry_valid.eq(0)
        with m.If(settles):
            m.d.sync += [
                entry_valid.eq(1),
                entry.tag.eq(plan.tag),
                entry.code.eq(plan.code),
                Value.cast(entry.block).eq(Value.cast(plan.block)),
                entry.bytes.eq(plan.bytes),
                entry.moves.eq(has_job),
                entry.opens.eq(opens),
            ]

        # Open, grow, close, hand over.
        with m.If(settles & has_job):
            m.d.sync += [source_end.eq(plan.source_end), destination_end.eq(plan.destination_end)]
            with m.If(opens):
                m.d.sync += [Value.cast(job).eq(Value.cast(plan.job)), job_open.eq(1)]
            with m.Else():
                m.d.sync += job.tiles.eq(total_tiles)
        with m.Elif(job_open & (self.i_hungry | (plan_valid & has_job & ~joins))):
            m.d.sync += [job_open.eq(0), job_closed.eq(1)]
        with m.If(job_closed & self.o_job.ready):
            m.d.sync += job_closed.eq(0)
        return m

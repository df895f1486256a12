"""Maximum and sum of powers of the scores of a job, per query head, beside the score stream."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.attention.score_statistics_head import (
    OFFSETS,
    HeadAccumulator,
    group_mask,
    window_offset,
)
from nearkv_hdl.attention.score_statistics_report import StatisticsReport, statistics_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.score_statistics import (
    MAX_SCORE_FRACTION_BITS,
    SCORE_FRACTION_BITS,
    STATISTICS_DEGREE,
    STATISTICS_TOKENS,
)


def statistics_job_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the job stream: L of every head, and which heads take part."""
    return data.StructLayout(
        {
            "fraction_bits": data.ArrayLayout(shape_of(SCORE_FRACTION_BITS), design.query_group),
            "active": design.query_group,
        }
    )


class ScoreStatistics(wiring.Component):
    """Passes scores on unchanged and sums up what a softmax needs to know of them.

    Formula: with x = s·2^-L = 32·g + p + f (g, p integers, 0 <= p < 32, 0 <= f < 1) and T the largest g of
    the job's tokens, per head
        maximum = max s,   upper = Σ_{g = T} w(f)·2^p,   lower = Σ_{g = T−1} w(f)·2^p,
    w(f) = floor(m(f)·2^-3) as UQ1.12, m the exp polynomial of f cut to 16 bits. The sum that a softmax
    divides by is (upper + lower·2^-32)·2^(32·T). A head that is not active reports maximum = −2^31 and
    zeros, which merging leaves alone.
    The result does not depend on the order of the tokens, and statistics of tiles merge to exactly those of
    the whole (`nearkv.codec.score_merge.merge_statistics`).

    Timing: `o` follows `i` in the same cycle, one token per cycle (`interval`); the first statistics leave
    `latency` cycles after the job's last token, then a head per cycle.
    Stalls: a stall of `o` reaches `i` at once. A job's first token waits until its L have come, `job_latency`
    cycles before, and until the statistics of the job before have been taken, `job_gap` cycles after its last
    token if the sink does not pause; no other token waits. No ready depends on a valid or payload, o.valid
    not on o.ready.
    Cuts: none between `i` and `o`: put a SkidBuffer where their paths are too long.

    Numerics: s signed 32 bits, all values allowed; L −24 to 24. Sums are exact integers, UQ52.12; up to 2^20
    tokens cannot overflow, more raise `overflow` in their statistics, whose sums are then undefined.
    Relative error of the softmax's sum: polynomial (degree 2 .207 %, 3 .010 %); w and f rounded down, at
    most 2^-12 + 2^-16 low; tokens of groups below T − 1 left out, at most N·2^-32 low.
    Reset: control and valid bits; sums start with a job.

    Args:
        design: query group.
        degree: of the polynomial, 2 to 6: as many multipliers per head. Default 2, as its error moves a
            head's normalised base-2 logits by .003 at most, all of them alike.

    Members:
        i_job: L and active heads, one beat a job, taken as soon as the job before has started.
        i: scores; `last` ends the job.
        o: the same scores.
        o_statistics: maximum, upper, lower, head number and overflow; a beat per head, in order.
        o_invalid: an L above 24 came since reset; that job's statistics are undefined.

    Raises ValueError for another degree.

    """

    def __init__(self, design: DesignConfig, degree: int = STATISTICS_DEGREE) -> None:
        self.design = design
        self.degree = degree
        self._heads = [HeadAccumulator(degree) for _ in range(design.query_group)]
        self._report = StatisticsReport(design)
        super().__init__(
            {
                "i_job": In(stream.Signature(statistics_job_layout(design))),
                "i": In(stream.Signature(score_layout(design))),
                "o": Out(stream.Signature(score_layout(design))),
                "o_statistics": Out(stream.Signature(statistics_layout(design))),
                "o_invalid": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a job's last token to the statistics of its first head: sums, report."""
        return self._heads[0].latency + self._report.latency

    @property
    def interval(self) -> int:
        """Cycles between two tokens of a job."""
        return 1

    @property
    def job_latency(self) -> int:
        """Cycles from a job's beat to its first token, if no job is under way."""
        return self.design.query_group + 2

    @property
    def job_gap(self) -> int:
        """Cycles without a token after a job's last, if the next job and the sink are there."""
        return self.latency + self.design.query_group

    def elaborate(self, platform):
        m = Module()
        design, heads = self.design, self._heads
        m.submodules.report = report = self._report
        for number, head in enumerate(heads):
            m.submodules[f"head{number}"] = head

        # The fork: a token passes when both sides take it.
        running, takes, ends = Signal(), Signal(), Signal()
        m.d.comb += [
            self.o.valid.eq(self.i.valid & running),
            self.i.ready.eq(self.o.ready & running),
            Value.cast(self.o.payload).eq(Value.cast(self.i.payload)),
            takes.eq(self.i.valid & self.i.ready),
            ends.eq(takes & self.i.payload.last),
        ]

        # Jobs: one is held, then its heads' constants move in through the last head, one a cycle.
        job = Signal(statistics_job_layout(design), reset_less=True)
        held = Signal()
        step = Signal(range(design.query_group))
        moves, clears = Signal(), Signal()
        m.d.comb += self.i_job.ready.eq(~held)
        with m.If(self.i_job.valid & self.i_job.ready):
            m.d.sync += [held.eq(1), Value.cast(job).eq(Value.cast(self.i_job.payload))]
            for bits in self.i_job.payload.fraction_bits:
                with m.If(bits > MAX_SCORE_FRACTION_BITS):
                    m.d.sync += self.o_invalid.eq(1)
        # A token's maxima and sums are complete this long after it; the constants then serve the next job.
        ended = Signal(heads[0].latency)
        m.d.sync += ended.eq(Cat(ends, ended[:-1]))
        maxima_complete, sums_complete = ended[heads[0].maximum_latency - 1], ended[-1]
        reporting = Signal()
        with m.If(ends):
            m.d.sync += reporting.eq(1)
        with m.If(report.done):
            m.d.sync += reporting.eq(0)
        with m.FSM():
            with m.State("prepare"):
                m.d.comb += moves.eq(held)
                with m.If(moves):
                    m.d.sync += step.eq(step + 1)
                    with m.If(step == design.query_group - 1):
                        m.d.sync += [step.eq(0), held.eq(0)]
                        m.next = "wait"
            with m.State("wait"), m.If(~reporting):
                m.d.comb += clears.eq(1)
                m.next = "run"
            with m.State("run"):
                m.d.comb += running.eq(1)
                with m.If(ends):
                    m.next = "settle"
            with m.State("settle"), m.If(maxima_complete):
                m.next = "prepare"
        with m.If(moves):
            bits = SCORE_FRACTION_BITS.width
            m.d.sync += [
                Value.cast(job.fraction_bits).eq(Value.cast(job.fraction_bits) >> bits),
                job.active.eq(job.active >> 1),
            ]
        offset = window_offset(job.fraction_bits[0])
        constants = (offset, group_mask(offset), job.active[0])
        for number, head in reversed(list(enumerate(heads))):
            ports = (head.offset, head.mask, head.active)
            registers = [
                Signal(len(port), name=f"{name}{number}", reset_less=True)
                for name, port in zip(("offset", "mask", "active"), ports, strict=True)
            ]
            with m.If(moves):
                m.d.sync += [r.eq(value) for r, value in zip(registers, constants, strict=True)]
            m.d.comb += [port.eq(r) for port, r in zip(ports, registers, strict=True)]
            constants = registers

        # Tokens of the job; one too many is remembered.
        tokens = Signal(range(STATISTICS_TOKENS + 1))
        overflow = Signal(reset_less=True)
        with m.If(takes):
            m.d.sync += tokens.eq(tokens + (tokens != STATISTICS_TOKENS))
        with m.If(ends):
            m.d.sync += [tokens.eq(0), overflow.eq(tokens == STATISTICS_TOKENS)]

        # The heads run side by side; their offsets are kept for the report while the next job's move in.
        for number, head in enumerate(heads):
            m.d.comb += [
                head.clear.eq(clears),
                head.valid.eq(takes),
                head.score.eq(self.i.payload.scores[number]),
            ]
            offset = Signal(range(OFFSETS), name=f"kept_offset{number}", reset_less=True)
            with m.If(maxima_complete):
                m.d.sync += offset.eq(head.offset)
            # In the order of held_layout().
            m.d.comb += Value.cast(report.held[number]).eq(
                Cat(*head.maximum, *head.sum, *head.nonempty, offset)
            )
        m.d.comb += [report.start.eq(sums_complete), report.overflow.eq(overflow)]
        wiring.connect(m, report.o, wiring.flipped(self.o_statistics))
        return m

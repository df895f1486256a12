"""Control of the top-k unit: narrows the undecided interval digit by digit, then has it emitted."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.attention.topk_lane import pass_layout
from nearkv_hdl.attention.topk_load import job_layout
from nearkv_hdl.attention.topk_scan import scan_result_layout
from nearkv_hdl.spec.topk_config import TopKConfig


def status_layout(config: TopKConfig) -> data.StructLayout:
    """Payload of the status stream: one beat a job, valid from the start of its frame."""
    return data.StructLayout(
        {
            "count": config.count_bits,  # items of the frame
            "threshold": shape_of(config.score),  # nothing selected lies below, nothing else above
            "memory_passes": 2,  # passes over the score memory before the one that emits
            "window_hit": 1,  # the k-th score was inside the window
            "clipped": 1,  # k was above the number of scores: all are selected
            "overrun": 1,  # more scores than capacity: refused, nothing is selected
            "unordered": 1,  # tokens in the wrong order: refused, nothing is selected
        }
    )


class TopKControl(wiring.Component):
    """Runs jobs one after the other: load, then scan and walk until the threshold is known, then emit.

    Formula: the undecided interval is [base, base + 2^undecided); `need` of the scores in it are wanted,
    and all above it. A scan finds the bucket that holds the last wanted score, and the interval becomes
    that bucket. When nothing is undecided, or all scores of the bucket are wanted, base is the threshold.
    Timing: cycles of each state in `elaborate`; `nearkv_hdl.attention.topk.TopK` states the sums. A job is
    taken when the frame and the status of the one before have left.
    Numerics: wrapping additions; the result is in range, since the k-th score lies in the interval.
    Reset: state and valid bits. After a reset one scan clears the histograms, whatever they hold.

    Args:
        config: widths, digits.
        settle: cycles from a beat or row to the start of the scan that may see its digit, from 6.

    Members:
        i_job, o_status: one beat a job.
        job: the present job.
        load_start, load_enable, load_ended, loaded, overrun, unordered: to and from TopKLoader.
        scan: starts the scans.
        i_window, i_coarse: results of the scan over all banks, and of the coarse histogram's, no later.
        search, walk_start, walk_ended, overflow: to and from TopKRows.
        emit_start, emitting, emit_count, emit_ties, emit_done: to and from TopKEmitter.

    """

    def __init__(self, config: TopKConfig, settle: int) -> None:
        self.config = config
        self.settle = settle
        result = In(stream.Signature(scan_result_layout(config), always_ready=True))
        number = config.count_bits
        super().__init__(
            {
                "i_job": In(stream.Signature(job_layout(config))),
                "o_status": Out(stream.Signature(status_layout(config))),
                "job": Out(job_layout(config)),
                "load_start": Out(1),
                "load_enable": Out(1),
                "load_ended": In(1),
                "loaded": In(number),
                "overrun": In(1),
                "unordered": In(1),
                "scan": Out(stream.Signature(number, always_ready=True)),
                "i_window": result,
                "i_coarse": result,
                "search": Out(pass_layout(config)),
                "walk_start": Out(1),
                "walk_ended": In(1),
                "overflow": In(1),
                "emit_start": Out(1),
                "emitting": Out(1),
                "emit_count": Out(number),
                "emit_ties": Out(number),
                "emit_done": In(1),
            }
        )

    @property
    def decide_latency(self) -> int:
        """Cycles from a scan's result to the state that acts on it: place, move, then walk or emit."""
        return 3

    def elaborate(self, platform):
        m = Module()
        config = self.config
        job = Signal(job_layout(config), reset_less=True)
        count = Signal(config.count_bits, reset_less=True)  # min(k, scores), 0 after an error
        first = Signal(reset_less=True)  # no digit is known yet
        undecided = Signal(range(config.residual_bits + 1), reset_less=True)
        step = Signal(config.score_bits, reset_less=True)  # from base to the interval's new lower end
        need = Signal(config.count_bits, reset_less=True)
        whole = Signal(reset_less=True)
        search = Signal(pass_layout(config), reset_less=True)
        status = Signal(status_layout(config), reset_less=True)
        wait = Signal(range(self.settle), reset_less=True)
        hit = Signal(reset_less=True)
        window, coarse = self.i_window.payload, self.i_coarse.payload
        m.d.comb += [
            self.job.eq(job),
            self.scan.payload.eq(need),
            self.search.eq(search),
            self.emit_count.eq(status.count),
            self.emit_ties.eq(need),
            self.o_status.payload.eq(status),
        ]
        with m.If(self.o_status.ready):
            m.d.sync += self.o_status.valid.eq(0)

        with m.FSM():
            # After a reset: read, and so clear, every counter. scan_rows and the scan's latency.
            with m.State("CLEAR"):
                m.d.comb += self.scan.valid.eq(1)
                m.next = "CLEARING"

            with m.State("CLEARING"), m.If(self.i_window.valid):
                m.next = "IDLE"

            with m.State("IDLE"):
                m.d.comb += [self.load_start.eq(1), self.i_job.ready.eq(~self.o_status.valid)]
                m.d.sync += [job.eq(self.i_job.payload), first.eq(1), search.digits.eq(0)]
                with m.If(self.i_job.valid & self.i_job.ready):
                    m.next = "LOAD"

            # One cycle per beat of the frame.
            with m.State("LOAD"):
                m.d.comb += self.load_enable.eq(1)
                m.d.sync += [status.memory_passes.eq(0), wait.eq(self.settle - 1)]
                with m.If(self.load_ended):
                    m.next = "SETTLE"

            # settle - 1 cycles, until the last digit is counted.
            with m.State("SETTLE"):
                m.d.sync += wait.eq(wait - 1)
                with m.If(first):
                    m.d.sync += [
                        status.clipped.eq(job.k > self.loaded),
                        status.overrun.eq(self.overrun),
                        status.unordered.eq(self.unordered),
                        count.eq(Mux(status.clipped, self.loaded, job.k)),
                        need.eq(count),
                    ]
                with m.If(wait == 1):
                    m.next = "SCAN"

            with m.State("SCAN"):
                m.d.comb += self.scan.valid.eq(1)
                m.d.sync += status.count.eq(Mux(status.overrun | status.unordered, 0, count))
                m.next = "SCANNING"

            # The results stay. The window's outer buckets also hold what lies outside it.
            with m.State("SCANNING"), m.If(self.i_window.valid):
                inner = (window.bucket != 0) & (window.bucket != config.buckets - 1)
                m.d.sync += hit.eq(inner & (job.window_shift <= config.residual_bits))
                m.next = "PLACE"

            with m.State("PLACE"):
                m.d.sync += [need.eq(window.need), whole.eq(window.whole)]
                with m.If(first):
                    m.d.sync += status.window_hit.eq(hit & (status.count != 0))
                with m.If(first & hit):
                    m.d.sync += [
                        search.base.eq(job.window_base),
                        step.eq(window.bucket << job.window_shift),
                        undecided.eq(job.window_shift),
                    ]
                with m.Elif(first):
                    m.d.sync += [
                        search.base.eq(config.score.min),
                        step.eq(coarse.bucket << config.residual_bits),
                        undecided.eq(config.residual_bits),
                        need.eq(coarse.need),
                        whole.eq(coarse.whole),
                    ]
                with m.Elif(search.high):
                    m.d.sync += [
                        search.digits[config.digit_bits :].eq(window.bucket),
                        step.eq(Mux(window.whole, window.bucket << config.digit_bits, 0)),
                        undecided.eq(config.digit_bits),
                    ]
                with m.Else():
                    m.d.sync += [step.eq(search.digits | window.bucket), undecided.eq(0)]
                m.next = "MOVE"

            with m.State("MOVE"):
                m.d.sync += [
                    search.base.eq(search.base + step),
                    search.known.eq(-1 << undecided),
                    search.count.eq(1),
                    search.high.eq(undecided > config.digit_bits),
                    search.capture.eq(first),
                    search.replay.eq(~first & ~self.overflow),
                    first.eq(0),
                ]
                with m.If((status.count == 0) | whole | (undecided == 0)):
                    m.next = "EMIT"
                with m.Else():
                    m.next = "WALK"

            with m.State("WALK"):
                m.d.comb += self.walk_start.eq(1)
                m.d.sync += status.memory_passes.eq(status.memory_passes + ~search.replay)
                m.next = "WALKING"

            # One cycle per row.
            with m.State("WALKING"):
                m.d.sync += wait.eq(self.settle - 1)
                with m.If(self.walk_ended):
                    m.next = "SETTLE"

            with m.State("EMIT"):
                m.d.comb += [self.emit_start.eq(1), self.walk_start.eq(status.count != 0)]
                m.d.sync += [
                    search.count.eq(0),
                    search.replay.eq(0),
                    status.threshold.eq(search.base),
                    self.o_status.valid.eq(1),
                ]
                m.next = "EMITTING"

            with m.State("EMITTING"):
                m.d.comb += self.emitting.eq(1)
                with m.If(self.emit_done):
                    m.next = "IDLE"
        return m

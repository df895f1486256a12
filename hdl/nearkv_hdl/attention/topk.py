"""Exact streaming selection of the k highest scores, in token order."""

from __future__ import annotations

from amaranth.hdl import Module, Mux
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.topk_control import TopKControl, status_layout
from nearkv_hdl.attention.topk_emit import TopKEmitter
from nearkv_hdl.attention.topk_histogram import HistogramBank
from nearkv_hdl.attention.topk_load import TopKLoader, item_layout, job_layout
from nearkv_hdl.attention.topk_rows import TopKRows
from nearkv_hdl.attention.topk_scan import HistogramScan
from nearkv_hdl.spec.topk_config import TopKConfig


class TopK(wiring.Component):
    """Selects the k highest of N scores exactly, ties to the lower token, and sends them in token order.

    Formula: sort the items of a frame by (score descending, token ascending); the first min(k, N) leave, in
    ascending order of their tokens. Special cases: k = 0 or N = 0: one beat with keep = 0. k > N: all N,
    `clipped`. N above the capacity, or tokens in the wrong order: refused whole, one beat with keep = 0,
    `overrun` or `unordered`.

    Method: radix selection on histograms in block RAM; nothing is sorted. While scores arrive, each counts
    in a histogram of the window that the job supplies (digit clip((score - window_base) >> window_shift))
    and in one of its top `digit_bits` bits. Afterwards a scan from the highest bucket finds the k-th
    score's bucket in both; the window's counts unless it is an outer one, which also holds what lies
    outside. A pass over the score memory, `lanes` scores per cycle with a histogram each, resolves the next
    digit of the scores in that bucket and keeps them aside; the last digit is taken from those, or from
    the score memory again if a lane could not keep its share. A bucket that is wanted whole ends the
    search. The last pass emits. window_base and window_shift never change the result, only its time; a
    window_shift above residual_bits is a window that holds nothing.

    Timing: one beat per cycle while a job loads (`interval`), `latency` cycles from its last beat to the
    first item if the first digit decides and row 0 has an item. With R = ceil(N / lanes) and a sink that is
    always ready, the last item leaves this many cycles after the last beat came:
        latency + E + (rows read + pass_overhead) for each pass,
    E = Σ max(1, items of the row) over the rows up to the last with an item, less 1, rows read = R, or the
    kept scores of the fullest lane. There are at most two passes, so it takes at most
        worst_case_cycles(N, k) = 3·R + k + latency + 2·pass_overhead.
    A frame without items ends `empty_latency` cycles after its last beat.
    Stalls: any stream may pause for any time. A stalled `o` stops the last pass, nothing else ever waits;
    no ready depends on a valid, no valid on a ready. The next job is taken when the frame has entered the
    output register and the status has been taken; scores of a job wait until the job has come. After a
    reset the first job is taken `clear_latency` cycles later, while the histograms are cleared.

    Numerics: exact integers; scores signed, `score_bits` wide, all values allowed.
    Reset: valid bits, state, counters of the flow control; memories and data registers have none.

    Args:
        config: capacity, lanes, digits, token runs.

    Members:
        i_job: k, window_base, window_shift; one beat a job.
        i: items of the job's frame, in ascending order of tokens (see token_run of TopKConfig). Beats with
            keep = 0 are skipped, so that frames without items and frames of this unit's output can be sent.
        o: items of the selection, one frame a job.
        o_status: count, threshold, how the search went and errors; one beat a job, valid before its frame.

    """

    def __init__(self, config: TopKConfig) -> None:
        self.config = config
        self._loader = TopKLoader(config)
        self._rows = TopKRows(config)
        self._banks = [HistogramBank(config) for _ in range(config.lanes)]
        self._coarse_bank = HistogramBank(config)
        self._scan = HistogramScan(config, config.lanes, self._coarse_bank.latency)
        self._coarse_scan = HistogramScan(config, 1, self._coarse_bank.latency)
        self._emitter = TopKEmitter(config)
        # A scan asks for its first row one cycle after its start.
        digit_latency = max(self._loader.latency, self._rows.digit_latency)
        self._settle = digit_latency + self._coarse_bank.count_latency - 1
        self._control = TopKControl(config, self._settle)
        super().__init__(
            {
                "i_job": In(stream.Signature(job_layout(config))),
                "i": In(stream.Signature(item_layout(config))),
                "o": Out(stream.Signature(item_layout(config))),
                "o_status": Out(stream.Signature(status_layout(config))),
            }
        )

    @property
    def _digit_overhead(self) -> int:
        """Cycles from the last beat or row of a digit to the state that acts on it."""
        return self._settle + self._scan.latency + self._control.decide_latency

    @property
    def latency(self) -> int:
        """Cycles from the last beat to the first item, without a pass and with an item in row 0."""
        start = 1  # the first row is read one cycle after the walk's start
        return self._digit_overhead + start + self._rows.latency + self._emitter.latency

    @property
    def empty_latency(self) -> int:
        """Cycles from the last beat to the only beat of a frame without items."""
        return self._digit_overhead + self._emitter.latency

    @property
    def pass_overhead(self) -> int:
        """Cycles of a pass beside one per row."""
        return self._digit_overhead

    @property
    def clear_latency(self) -> int:
        """Cycles from a reset to the first job."""
        return self._scan.latency + 1

    @property
    def interval(self) -> int:
        """Cycles between two beats of a frame, and between two items of a row."""
        return 1

    def worst_case_cycles(self, scores: int, k: int) -> int:
        """Upper bound of the cycles from the last beat to the last item, for a ready sink."""
        rows = -(-scores // self.config.lanes)
        return 3 * rows + min(k, scores) + self.latency + 2 * self.pass_overhead

    def elaborate(self, platform):
        m = Module()
        m.submodules.loader = loader = self._loader
        m.submodules.rows = rows = self._rows
        m.submodules.coarse_bank = coarse_bank = self._coarse_bank
        m.submodules.scan = scan = self._scan
        m.submodules.coarse_scan = coarse_scan = self._coarse_scan
        m.submodules.control = control = self._control
        m.submodules.emitter = emitter = self._emitter

        # Jobs and their scores come in.
        wiring.connect(m, wiring.flipped(self.i_job), control.i_job)
        wiring.connect(m, wiring.flipped(self.i), loader.i)
        m.d.comb += [
            loader.start.eq(control.load_start),
            loader.enable.eq(control.load_enable),
            loader.job.eq(control.job),
            control.load_ended.eq(loader.ended),
            control.loaded.eq(loader.count),
            control.overrun.eq(loader.overrun),
            control.unordered.eq(loader.unordered),
        ]

        # Scores into the memory, tokens into the emitter's.
        m.d.comb += [
            rows.i_entry.valid.eq(loader.o_entry.valid),
            rows.i_entry.payload.eq(loader.o_entry.payload),
            emitter.i_entry.valid.eq(loader.o_entry.valid),
            emitter.i_entry.payload.eq(loader.o_entry.payload),
        ]

        # Digits into the histograms: first digits in bank 0 while scores arrive, later ones per lane.
        wiring.connect(m, loader.o_coarse, coarse_bank.i)
        for index, bank in enumerate(self._banks):
            m.submodules[f"bank{index}"] = bank
            digit = rows.o_digits[index]
            m.d.comb += [bank.i.valid.eq(digit.valid), bank.i.payload.eq(digit.payload)]
            if index == 0:
                first = loader.o_window
                m.d.comb += [
                    bank.i.valid.eq(digit.valid | first.valid),
                    bank.i.payload.eq(Mux(first.valid, first.payload, digit.payload)),
                ]

        # Histograms into the scans, whose results narrow the search.
        for each, banks in ((scan, self._banks), (coarse_scan, [coarse_bank])):
            m.d.comb += [
                each.i.valid.eq(control.scan.valid),
                each.i.payload.eq(control.scan.payload),
                each.i_rows.valid.eq(banks[0].o_row.valid),
            ]
            for index, bank in enumerate(banks):
                m.d.comb += [
                    bank.i_row.valid.eq(each.o_row.valid),
                    bank.i_row.payload.eq(each.o_row.payload),
                    each.i_rows.payload[index].eq(bank.o_row.payload),
                ]
        wiring.connect(m, scan.o, control.i_window)
        wiring.connect(m, coarse_scan.o, control.i_coarse)

        # Walks through the memory, which the emitter's stalls stop.
        m.d.comb += [
            rows.clear.eq(control.load_start),
            rows.start.eq(control.walk_start),
            rows.count.eq(loader.count),
            rows.search.eq(control.search),
            rows.enable.eq(emitter.enable),
            control.walk_ended.eq(rows.ended),
            control.overflow.eq(rows.overflow),
        ]

        # Selected items go out.
        m.d.comb += [
            emitter.start.eq(control.emit_start),
            emitter.count.eq(control.emit_count),
            emitter.ties.eq(control.emit_ties),
            emitter.threshold.eq(control.search.base),
            emitter.i.valid.eq(rows.o.valid & control.emitting),
            emitter.i.payload.eq(rows.o.payload),
            control.emit_done.eq(emitter.done),
        ]
        wiring.connect(m, emitter.o, wiring.flipped(self.o))
        wiring.connect(m, control.o_status, wiring.flipped(self.o_status))
        return m

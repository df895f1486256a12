"""The parts of TopK one by one, in Amaranth's simulator: the formulas and latencies of their docstrings."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from nearkv_hdl.attention.topk_emit import TopKEmitter
from nearkv_hdl.attention.topk_histogram import HistogramBank
from nearkv_hdl.attention.topk_lane import TopKLane
from nearkv_hdl.attention.topk_load import TopKLoader
from nearkv_hdl.attention.topk_scan import HistogramScan
from nearkv_hdl.spec.topk_config import TopKConfig

CONFIG = TopKConfig(
    capacity=16, lanes=2, score_bits=4, digit_bits=2, scan_columns=2, candidate_rows=3, token_bits=8
)
TIMEOUT_CYCLES = 60_000


def simulate(component, process):
    """Run a testbench to its end; a hanging one fails."""

    async def watchdog(ctx):
        for _ in range(TIMEOUT_CYCLES):
            await ctx.tick()
        raise TimeoutError(f"testbench still waits after {TIMEOUT_CYCLES} cycles")

    simulator = Simulator(component)
    simulator.add_clock(1e-6)
    simulator.add_testbench(process)
    simulator.add_testbench(watchdog, background=True)
    simulator.run()


def test_bank_counts_every_sequence():
    """All sequences of six cycles with a digit or none: repeats at every distance that forwarding covers."""
    bank = HistogramBank(CONFIG)

    async def scan(ctx):
        counts = []
        for row in range(CONFIG.scan_rows):
            ctx.set(bank.i_row.payload, row)
            ctx.set(bank.i_row.valid, 1)
            await ctx.tick()
            ctx.set(bank.i_row.valid, 0)
            await ctx.tick().repeat(bank.latency - 1)
            assert ctx.get(bank.o_row.valid)
            counts += [ctx.get(bank.o_row.payload[c]) for c in range(CONFIG.scan_columns)]
        return counts

    async def process(ctx):
        for sequence in product((None, 0, 3), repeat=6):
            for digit in sequence:
                ctx.set(bank.i.valid, digit is not None)
                ctx.set(bank.i.payload, digit or 0)
                await ctx.tick()
            ctx.set(bank.i.valid, 0)
            await ctx.tick().repeat(bank.count_latency - 1)
            assert await scan(ctx) == [sequence.count(bucket) for bucket in range(CONFIG.buckets)]
            await ctx.tick()
        assert await scan(ctx) == [0] * CONFIG.buckets  # a scan clears

    simulate(bank, process)


class ScannedBanks(wiring.Component):
    """A scan over two banks that count the same way as in TopK."""

    def __init__(self, config, banks):
        self.banks = [HistogramBank(config) for _ in range(banks)]
        self.scan = HistogramScan(config, banks, self.banks[0].latency)
        super().__init__({"need": In(config.count_bits), "start": In(1), "found": Out(1)})

    def elaborate(self, _platform):
        m = Module()
        m.submodules.scan = scan = self.scan
        m.d.comb += [
            scan.i.valid.eq(self.start),
            scan.i.payload.eq(self.need),
            scan.i_rows.valid.eq(self.banks[0].o_row.valid),
            self.found.eq(scan.o.valid),
        ]
        for index, bank in enumerate(self.banks):
            m.submodules[f"bank{index}"] = bank
            m.d.comb += [
                bank.i_row.valid.eq(scan.o_row.valid),
                bank.i_row.payload.eq(scan.o_row.payload),
                scan.i_rows.payload[index].eq(bank.o_row.payload),
            ]
        return m


@pytest.mark.parametrize(("banks", "columns"), [(1, 1), (2, 2), (4, 4)])
def test_scan_finds_the_bucket(banks, columns):
    """Every `need` over random histograms, empty buckets among them; the latency is the stated one."""
    config = TopKConfig(
        capacity=24, lanes=4, score_bits=6, digit_bits=3, scan_columns=columns, candidate_rows=2
    )
    unit = ScannedBanks(config, banks)
    rng = np.random.default_rng(3)

    async def process(ctx):
        for _ in range(12):
            digits = rng.choice(rng.integers(0, config.buckets, 3), (int(rng.integers(1, 7)), banks))
            counts = np.bincount(digits.ravel(), minlength=config.buckets)
            for need in range(1, digits.size + 1):
                for row in digits:
                    for bank, digit in zip(unit.banks, row, strict=True):
                        ctx.set(bank.i.payload, int(digit))
                        ctx.set(bank.i.valid, 1)
                    await ctx.tick()
                for bank in unit.banks:
                    ctx.set(bank.i.valid, 0)
                # The first row is asked for one cycle after the start.
                await ctx.tick().repeat(unit.banks[0].count_latency - 2)
                ctx.set(unit.need, need)
                ctx.set(unit.start, 1)
                await ctx.tick()
                ctx.set(unit.start, 0)
                waited = 1
                while not ctx.get(unit.found):
                    await ctx.tick()
                    waited += 1
                assert waited == unit.scan.latency
                bucket = np.sort(digits.ravel())[-need]
                wanted = need - counts[bucket + 1 :].sum()
                result = unit.scan.o.payload
                found = ctx.get(result.bucket), ctx.get(result.need), ctx.get(result.whole)
                assert found == (bucket, wanted, wanted == counts[bucket])

    simulate(unit, process)


def test_loader_digits():
    """Window and coarse digit of every score, base and shift, at the stated latency."""
    loader = TopKLoader(CONFIG)
    cases = [
        (base, shift, score)
        for base in range(-8, 8)
        for shift in range(1 << CONFIG.shift_bits)
        for score in range(-8, 8)
    ]
    top = CONFIG.buckets - 1

    async def process(ctx):
        ctx.set(loader.enable, 1)
        for start in range(0, len(cases), 16):  # one base and shift, as in a job
            base, shift, _ = cases[start]
            ctx.set(loader.start, 1)
            await ctx.tick()
            ctx.set(loader.start, 0)
            ctx.set(loader.job, {"k": 0, "window_base": base, "window_shift": shift})
            scores = [score for _, _, score in cases[start : start + 16]]
            windows, coarse = [], []
            for cycle in range(16 + loader.latency):
                ctx.set(loader.i.valid, cycle < 16)
                if cycle < 16:
                    beat = {"token": cycle, "score": scores[cycle], "keep": 1, "last": cycle == 15}
                    ctx.set(loader.i.payload, beat)
                await ctx.tick()
                if ctx.get(loader.o_coarse.valid):
                    coarse.append(ctx.get(loader.o_coarse.payload))
                assert ctx.get(loader.o_window.valid) == (cycle >= loader.latency - 1 and len(windows) < 16)
                if ctx.get(loader.o_window.valid):
                    windows.append(ctx.get(loader.o_window.payload))
            assert coarse == [(score + 8) >> CONFIG.residual_bits for score in scores]
            assert windows == [min(max((score - base) >> shift, 0), top) for score in scores]
            assert ctx.get(loader.count) == 16

    simulate(loader, process)


def test_lane_offsets_and_matches():
    """Every score against every base and every width of the undecided interval."""
    lane = TopKLane(CONFIG)
    scores = range(-8, 8)

    async def process(ctx):
        ctx.set(lane.enable, 1)
        ctx.set(lane.i.valid, 1)
        for base, undecided, score in product(scores, range(3), scores):
            known = (1 << (CONFIG.score_bits + 1)) - (1 << undecided)
            ctx.set(lane.search.base, base)
            ctx.set(lane.search.known, known)
            ctx.set(lane.search.count, 1)
            ctx.set(lane.i.payload, score)
            await ctx.tick()
            assert ctx.get(lane.o.payload.above) == (score > base)
            assert ctx.get(lane.o.payload.equal) == (score == base)
            if score >= base:
                assert ctx.get(lane.o.payload.offset) == score - base
            await ctx.tick().repeat(lane.latency - 1)
            assert ctx.get(lane.o_digit.valid) == (base <= score < base + (1 << undecided))
            if score >= base:
                assert ctx.get(lane.o_digit.payload) == (score - base) % CONFIG.buckets

    simulate(lane, process)


def test_emitter_takes_ties_in_order():
    """By hand: two lanes, threshold 3, two of three equal scores wanted."""
    emitter = TopKEmitter(CONFIG)
    rows = [(0b10, 0b01), (0b00, 0b00), (0b00, 0b11)]  # above, equal: lane 0 is the low bit
    got, cycles = [], []

    async def process(ctx):
        ctx.set(emitter.o.ready, 1)
        for position in range(6):
            entry = {"position": position, "token": 40 + position, "score": 0}
            ctx.set(emitter.i_entry.payload, entry)
            ctx.set(emitter.i_entry.valid, 1)
            await ctx.tick()
        ctx.set(emitter.i_entry.valid, 0)
        ctx.set(emitter.threshold, 3)
        ctx.set(emitter.count, 3)
        ctx.set(emitter.ties, 2)
        ctx.set(emitter.start, 1)
        await ctx.tick()
        ctx.set(emitter.start, 0)
        queue = list(enumerate(rows))
        for cycle in range(20):
            ctx.set(emitter.i.valid, bool(queue))
            if queue:
                index, (above, equal) = queue[0]
                row = {"row": index, "offset": [0, 2], "above": above, "equal": equal}
                ctx.set(emitter.i.payload, row)
            if queue and ctx.get(emitter.enable):
                queue.pop(0)
            if ctx.get(emitter.o.valid):
                item = emitter.o.payload
                fields = (item.token, item.score, item.keep, item.last)
                got.append(tuple(ctx.get(field) for field in fields))
                cycles.append(cycle)
            await ctx.tick()

    simulate(emitter, process)
    assert got == [(40, 3, 1, 0), (41, 5, 1, 0), (44, 3, 1, 1)]
    # Row 0 is taken in cycle 0; it holds two items, row 1 none.
    assert cycles == [emitter.latency, emitter.latency + 1, emitter.latency + 3]

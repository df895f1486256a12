"""Scan of a top-k histogram from the highest bucket down, to the bucket that holds the k-th score."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import AdderTree
from nearkv_hdl.attention.topk_histogram import histogram_row_layout
from nearkv_hdl.spec.formats import Format
from nearkv_hdl.spec.topk_config import TopKConfig


def scan_result_layout(config: TopKConfig) -> data.StructLayout:
    """Payload of a scan's result."""
    return data.StructLayout(
        {
            "bucket": config.digit_bits,
            "need": config.count_bits,  # scores still wanted, from this bucket
            "whole": 1,  # they are all the bucket holds
        }
    )


class HistogramScan(wiring.Component):
    """Finds the bucket of the k-th highest score in a histogram that is spread over several banks.

    Formula: with count[b] summed over the banks and above[b] = Σ count[c] for c > b, the result is the b
    with above[b] < i.need <= above[b] + count[b], need = i.need - above[b], whole = need == count[b].
    i.need is 1 to the sum of all counts; otherwise the result means nothing.
    Timing: every row is requested once, from the highest, one per cycle from the cycle after `i`, so that
    the banks are clear afterwards; the result comes `latency` cycles after `i`, whatever the counts, and
    stays until the next one. No stalls. `interval` cycles between two starts.
    Numerics: exact; the sum of all counts is at most the capacity.
    Reset: valid bits and the running state.

    Args:
        config: histogram shape.
        banks: how many banks, a power of two.
        bank_latency: cycles from a row request to the banks' answer.

    Members:
        i: need; starts the scan.
        o_row: rows to read, to all banks.
        i_rows: the banks' counters.
        o: the result.

    """

    def __init__(self, config: TopKConfig, banks: int, bank_latency: int) -> None:
        self.config = config
        self.banks = banks
        self._bank_latency = bank_latency
        counter = Format(config.count_bits, signed=False)
        self._sums = [AdderTree(counter, banks) for _ in range(config.scan_columns)]
        row = histogram_row_layout(config)
        super().__init__(
            {
                "i": In(stream.Signature(config.count_bits, always_ready=True)),
                "o_row": Out(stream.Signature(range(config.scan_rows), always_ready=True)),
                "i_rows": In(stream.Signature(data.ArrayLayout(row, banks), always_ready=True)),
                "o": Out(stream.Signature(scan_result_layout(config), always_ready=True)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `i` to `o`: requests, bank, sum, running sum, search, column, result."""
        return self.config.scan_rows + self._bank_latency + self._sums[0].latency + self._running_ranks + 3

    @property
    def _running_ranks(self) -> int:
        return (self.config.scan_columns - 1).bit_length()

    @property
    def interval(self) -> int:
        """Cycles between two starts."""
        return self.latency + 1

    def elaborate(self, platform):
        m = Module()
        config = self.config
        columns = config.scan_columns
        top_row = config.scan_rows - 1

        # Request the rows from the top.
        with m.If(self.i.valid):
            m.d.sync += [self.o_row.valid.eq(1), self.o_row.payload.eq(top_row)]
        with m.Elif(self.o_row.payload == 0):
            m.d.sync += self.o_row.valid.eq(0)
        with m.Else():
            m.d.sync += self.o_row.payload.eq(self.o_row.payload - 1)

        # Sum each column over the banks.
        for c, tree in enumerate(self._sums):
            m.submodules[f"sum{c}"] = tree
            m.d.comb += [tree.i[b].eq(self.i_rows.payload[b][c]) for b in range(self.banks)]
        valid = _delayed_valid(m, self.i_rows.valid, self._sums[0].latency, "summed")

        # Running sums within the row, from its highest column: from_top[c] = Σ sums[c'] for c' >= c.
        # Each rank doubles their reach.
        from_top = [tree.o[: config.count_bits] for tree in self._sums]
        for rank in range(self._running_ranks):
            reach = 1 << rank
            longer = [
                Signal(config.count_bits, name=f"from_top{rank}_{c}", reset_less=True) for c in range(columns)
            ]
            for c in range(columns):
                beyond = from_top[c + reach] if c + reach < columns else 0
                m.d.sync += longer[c].eq(from_top[c] + beyond)
            from_top = longer
        valid = _delayed_valid(m, valid, self._running_ranks, "ranked")

        # Go down the rows until one holds the last wanted score; keep what is needed of it. With one score
        # less in the count, the sign of a difference tells.
        others = Signal(config.count_bits, reset_less=True)  # wanted scores of this row and below, but one
        row = Signal(range(config.scan_rows), reset_less=True)
        searching = Signal()
        held = [Signal(config.count_bits, name=f"held{c}", reset_less=True) for c in range(columns)]
        below = Signal(signed(config.count_bits + 1))
        m.d.comb += below.eq(others - from_top[0])
        with m.If(valid & searching):
            m.d.sync += Cat(held).eq(Cat(from_top))
            with m.If(below < 0):
                m.d.sync += searching.eq(0)
            with m.Else():
                m.d.sync += [others.eq(below), row.eq(row - 1)]
        with m.If(self.i.valid):
            m.d.sync += [others.eq(self.i.payload - 1), row.eq(top_row), searching.eq(1)]
        last_row = Signal(range(config.scan_rows), reset_less=True)
        with m.If(self.i.valid):
            m.d.sync += last_row.eq(top_row)
        with m.Elif(valid):
            m.d.sync += last_row.eq(last_row - 1)
        ended = _delayed_valid(m, valid & (last_row == 0), 1, "searched")

        # The column: the highest whose running sum includes that score.
        column = Signal(range(columns), reset_less=True)
        above = Signal(config.count_bits, reset_less=True)  # scores of the row's higher columns
        up_to = Signal(config.count_bits, reset_less=True)  # the same and the column's own
        need = Signal(config.count_bits, reset_less=True)
        m.d.sync += need.eq(others + 1)
        for c in range(columns):
            with m.If(others < held[c]):
                m.d.sync += [
                    column.eq(c),
                    above.eq(held[c + 1] if c + 1 < columns else 0),
                    up_to.eq(held[c]),
                ]
        ended = _delayed_valid(m, ended, 1, "column_found")

        # The result.
        result = Signal(scan_result_layout(config), reset_less=True)
        with m.If(ended):
            m.d.sync += [
                result.bucket.eq(Cat(column, row) if columns > 1 else row),
                result.need.eq(need - above),
                result.whole.eq(need == up_to),
            ]
        m.d.comb += self.o.payload.eq(result)
        m.d.sync += self.o.valid.eq(ended)
        return m


def _delayed_valid(m: Module, valid, cycles: int, name: str):
    """A valid bit some cycles later."""
    for rank in range(cycles):
        later = Signal(name=f"{name}{rank}")
        m.d.sync += later.eq(valid)
        valid = later
    return valid

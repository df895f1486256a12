"""One bank of a top-k histogram: counts one digit per cycle, and is read and cleared by a scan."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.topk_config import TopKConfig
from nearkv_hdl.memory import SyncMemory


def histogram_row_layout(config: TopKConfig) -> data.ArrayLayout:
    """Counters of `scan_columns` neighbouring buckets; column c of row r is bucket r·scan_columns + c."""
    return data.ArrayLayout(config.count_bits, config.scan_columns)


class HistogramBank(wiring.Component):
    """Counters of all values of a digit, in one block RAM.

    Formula: count[i.payload] += 1 for every digit; a scanned row is returned, then set to 0.
    Timing: one digit per cycle, counted `count_latency` cycles later; one row per cycle, returned
    `latency` cycles later. No stalls. Counting and scanning exclude each other: the last digit comes
    `count_latency` cycles before the first row request, the first digit two cycles after the last one.
    Numerics: counters hold 0 to capacity; the user counts no more than that between two scans.
    Reset: valid bits only. The memory keeps its counts: the user scans once after a reset.

    The memory is read two cycles before it is written, so a digit that repeats within two cycles takes its
    count from the adder's last two results and not from the memory.

    Args:
        config: digit and counter widths, columns.

    Members:
        i: digits.
        i_row: rows to scan.
        o_row: their counters.

    """

    def __init__(self, config: TopKConfig) -> None:
        self.config = config
        self._memory = SyncMemory(
            config.count_bits * config.scan_columns, config.scan_rows, parts=config.scan_columns
        )
        super().__init__(
            {
                "i": In(stream.Signature(config.digit_bits, always_ready=True)),
                "i_row": In(stream.Signature(range(config.scan_rows), always_ready=True)),
                "o_row": Out(stream.Signature(histogram_row_layout(config), always_ready=True)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `i_row` to `o_row`."""
        return self._memory.latency

    @property
    def interval(self) -> int:
        """Cycles between two digits, and between two rows."""
        return 1

    @property
    def count_latency(self) -> int:
        """Cycles from a digit to the first row request that sees it counted: memory, column, adder."""
        return self._memory.latency + 2

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.memory = memory = self._memory
        column_bits = (config.scan_columns - 1).bit_length()

        # Request: a row for the scan, or the row of a digit.
        m.d.comb += [
            memory.read_row.eq(Mux(self.i_row.valid, self.i_row.payload, self.i.payload[column_bits:])),
            memory.read_enable.eq(1),
        ]

        # Row read: one column of it is wanted, unless the digit was seen one or two cycles before.
        row = data.View(histogram_row_layout(config), memory.read_data)
        ranks = 3
        valid = [Signal(name=f"valid{rank}") for rank in range(ranks)]
        digit = [Signal(config.digit_bits, name=f"digit{rank}", reset_less=True) for rank in range(ranks)]
        m.d.sync += [
            Cat(valid).eq(Cat(self.i.valid, valid)),
            Cat(digit).eq(Cat(self.i.payload, digit)),
        ]
        stored = Signal(config.count_bits, reset_less=True)
        repeats_last, repeats_second = Signal(reset_less=True), Signal(reset_less=True)
        m.d.sync += [
            stored.eq(row[digit[0][:column_bits]] if column_bits else row[0]),
            repeats_last.eq(valid[1] & (digit[0] == digit[1])),
            repeats_second.eq(valid[2] & (digit[0] == digit[2])),
        ]

        # Add one, write back, and keep the last two results.
        last = Signal(config.count_bits, reset_less=True)
        second = Signal(config.count_bits, reset_less=True)
        count = Signal(config.count_bits)
        m.d.comb += count.eq(Mux(repeats_last, last, Mux(repeats_second, second, stored)) + 1)
        m.d.sync += [last.eq(count), second.eq(last)]

        # A scanned row is returned and cleared one cycle after its request.
        scanned = Signal(range(config.scan_rows), reset_less=True)
        m.d.sync += [self.o_row.valid.eq(self.i_row.valid), scanned.eq(self.i_row.payload)]
        m.d.comb += self.o_row.payload.eq(row)
        with m.If(self.o_row.valid):
            m.d.comb += [memory.write_row.eq(scanned), memory.write_enable.eq(-1)]
        with m.Elif(valid[1]):
            m.d.comb += [
                memory.write_row.eq(digit[1][column_bits:]),
                memory.write_data.eq(Cat(count for _ in range(config.scan_columns))),
                memory.write_enable.eq(1 << digit[1][:column_bits] if column_bits else 1),
            ]
        return m

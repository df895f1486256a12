"""One bank of a top-k histogram: counts one digit per cycle, and is read and cleared by a scan."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.topk_config import TopKConfig

ROW_LATENCY = 2  # a register at the memory's output: its access time is too long for logic behind it
FORWARDED = ROW_LATENCY + 1  # results a repeated digit may need before they are in the memory


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

    The memory is read `count_latency` cycles before the result can be read, so a digit that repeats earlier
    takes its count from the adder's last results and not from the memory.

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
            config.count_bits * config.scan_columns,
            config.scan_rows,
            parts=config.scan_columns,
            latency=ROW_LATENCY,
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
        row = data.View(histogram_row_layout(config), memory.read_data)

        # A digit waits for its row, then for its count, then stays as long as forwarding looks at it.
        row_rank = memory.latency - 1
        ranks = row_rank + 1 + FORWARDED
        valid = [Signal(name=f"valid{rank}") for rank in range(ranks)]
        digit = [Signal(config.digit_bits, name=f"digit{rank}", reset_less=True) for rank in range(ranks)]
        m.d.sync += [
            Cat(valid).eq(Cat(self.i.valid, valid)),
            Cat(digit).eq(Cat(self.i.payload, digit)),
        ]

        # Row read: one column of it is wanted, unless the digit was just seen.
        stored = Signal(config.count_bits, reset_less=True)
        repeats = [Signal(name=f"repeats{distance + 1}", reset_less=True) for distance in range(FORWARDED)]
        column = digit[row_rank][:column_bits]
        m.d.sync += stored.eq(row[column] if column_bits else row[0])
        for distance, same in enumerate(repeats):
            earlier = row_rank + 1 + distance
            m.d.sync += same.eq(valid[earlier] & (digit[row_rank] == digit[earlier]))

        # Add one, write back, and keep the last results. The latest one that fits counts.
        results = [
            Signal(config.count_bits, name=f"result{distance + 1}", reset_less=True)
            for distance in range(FORWARDED)
        ]
        count = Signal(config.count_bits)
        known = stored
        for same, result in reversed(list(zip(repeats, results, strict=True))):
            known = Mux(same, result, known)
        m.d.comb += count.eq(known + 1)
        m.d.sync += Cat(results).eq(Cat(count, results))

        # A scanned row is cleared one cycle after its request.
        clearing = Signal()
        cleared_row = Signal(range(config.scan_rows), reset_less=True)
        m.d.sync += [clearing.eq(self.i_row.valid), cleared_row.eq(self.i_row.payload)]
        counted = row_rank + 1
        with m.If(clearing):
            m.d.comb += [memory.write_row.eq(cleared_row), memory.write_enable.eq(-1)]
        with m.Elif(valid[counted]):
            m.d.comb += [
                memory.write_row.eq(digit[counted][column_bits:]),
                memory.write_data.eq(Cat(count for _ in range(config.scan_columns))),
                memory.write_enable.eq(1 << digit[counted][:column_bits] if column_bits else 1),
            ]
        asked = clearing
        for rank in range(memory.latency - 1):
            later = Signal(name=f"asked{rank}")
            m.d.sync += later.eq(asked)
            asked = later
        m.d.comb += [self.o_row.valid.eq(asked), self.o_row.payload.eq(row)]
        return m

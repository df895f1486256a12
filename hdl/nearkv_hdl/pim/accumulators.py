"""The sums l and o of a processing unit."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.attention import PRODUCT, SUM
from nearkv_hdl.spec.formats import Format

RISE = Format(6, signed=False)  # of the running maximum; from 48 on nothing is left of a sum
MAX_RISE = SUM.width


class Accumulators(wiring.Component):
    """Rows of `lanes` 48-bit sums, added to one row per cycle and rescaled on the way.

    Formula: sums[row] = rhu(fresh ? 0 : sums[row], rise) + terms. `rise` other than 0 moves the sums to a
    higher running maximum as the block's first token passes, so rescaling takes no cycle of its own.
    Timing: a row is asked for with `read_row` one cycle before its terms come; `latency` = 3 cycles after
    the terms `read_row` may ask for it again, so two additions to one row lie at least 4 cycles apart.
    Interval 1, free-running.
    Numerics: exact while rise = 0; a rescaling rounds half up once (½ of the last place). 48 bits hold 2^20
    tokens, so overflow cannot occur within a job's limit.
    Reset: the write enables; sums are started by `fresh`.

    Args:
        lanes: sums of a row.
        rows: rows.

    Members:
        read_row, read: row whose sums are wanted in the next cycle; without `read` the last row stays.
        sums: that row, one cycle later.
        terms: aligned products to add, as wide as the lanes deliver them.
        write, row, fresh, rise: terms are there, for that row; start from 0; rescale before.

    """

    def __init__(self, lanes: int, rows: int) -> None:
        self.lanes, self.rows = lanes, rows
        super().__init__(
            {
                "read_row": In(range(rows)),
                "read": In(1),
                "sums": Out(shape_of(SUM)).array(lanes),
                "terms": In(shape_of(PRODUCT)).array(lanes),
                "write": In(1),
                "row": In(range(rows)),
                "fresh": In(1),
                "rise": In(RISE.width),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from terms to the next read of their row: rescaling, addition, memory."""
        return 3

    @property
    def interval(self) -> int:
        """Cycles between two rows."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = sums = memory.Memory(shape=self.lanes * SUM.width, depth=self.rows, init=[])
        read, write = sums.read_port(), sums.write_port()
        m.d.comb += [read.addr.eq(self.read_row), read.en.eq(self.read), Cat(*self.sums).eq(read.data)]

        row = Signal.like(self.row, reset_less=True)
        writing = Signal()
        m.d.sync += [row.eq(self.row), writing.eq(self.write)]
        results = []
        for lane in range(self.lanes):
            old = Signal(shape_of(SUM), name=f"old{lane}", reset_less=True)
            term = Signal(shape_of(SUM), name=f"term{lane}", reset_less=True)
            m.d.sync += [
                old.eq(Mux(self.fresh, 0, rescaled(self.sums[lane], self.rise))),
                term.eq(self.terms[lane]),
            ]
            total = Signal(shape_of(SUM), name=f"total{lane}", reset_less=True)
            m.d.sync += total.eq(old + term)
            results.append(total)
        write_row = Signal.like(self.row, reset_less=True)
        write_enable = Signal()
        m.d.sync += [write_row.eq(row), write_enable.eq(writing)]
        m.d.comb += [
            write.addr.eq(write_row),
            write.data.eq(Cat(*results)),
            write.en.eq(write_enable),
        ]
        return m


def rescaled(value: Value, rise: Value) -> Value:
    """rhu(value, rise): one more bit is kept, so that rounding is an addition after the shift."""
    return ((Cat(Const(0, 1), value).as_signed() >> rise) + 1) >> 1

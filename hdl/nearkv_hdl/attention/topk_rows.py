"""The score memory of the top-k unit and the lanes that walk through it."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.topk_lane import TopKLane, pass_layout
from nearkv_hdl.attention.topk_load import entry_layout
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.topk_config import TopKConfig


def row_layout(config: TopKConfig) -> data.StructLayout:
    """A row of the score memory, compared with the base."""
    lanes = config.lanes
    return data.StructLayout(
        {
            "row": range(config.rows),
            "offset": data.ArrayLayout(config.score_bits, lanes),  # score - base where above or equal
            "above": lanes,
            "equal": lanes,
        }
    )


class TopKRows(wiring.Component):
    """Stores a job's scores, `lanes` to a row, and walks through them, one row per cycle.

    Formula: position p lies in lane p % lanes of row p // lanes. A walk reads ceil(count / lanes) rows or,
    with `search.replay`, as many as the fullest lane has kept offsets. Each lane works as TopKLane says.
    Timing: the first row is read the cycle after `start`, then one per cycle with `enable`; `o` follows by
    `latency`, a matching digit by `digit_latency` such cycles. `ended` is high while the last row is read.
    Numerics: see TopKLane.
    Reset: valid bits, walk state, number of kept offsets.

    Args:
        config: sizes.

    Members:
        i_entry: scores to store.
        clear: a pulse before a job, `latency` cycles before its first walk: drops the kept offsets, and
            the rest of a walk that emitted all it should before it came to the end.
        start: a pulse that starts a walk.
        count: scores of the job.
        search: what the walk looks for, stable until its last digit has left.
        enable: clock enable of the walk.
        o: rows.
        o_digits: each lane's matching digits.
        ended: the last row is read in this cycle.
        overflow: a lane had more matches than it could keep.

    """

    def __init__(self, config: TopKConfig) -> None:
        self.config = config
        self._memory = SyncMemory(
            config.lanes * config.score_bits,
            config.rows,
            parts=config.lanes,
            latency=2,
            style=config.memory_style,
        )
        self._lanes = [TopKLane(config) for _ in range(config.lanes)]
        super().__init__(
            {
                "i_entry": In(stream.Signature(entry_layout(config), always_ready=True)),
                "clear": In(1),
                "start": In(1),
                "count": In(config.count_bits),
                "search": In(pass_layout(config)),
                "enable": In(1),
                "o": Out(stream.Signature(row_layout(config), always_ready=True)),
                "o_digits": Out(stream.Signature(config.digit_bits, always_ready=True)).array(config.lanes),
                "ended": Out(1),
                "overflow": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a row's address to `o`: score memory, difference."""
        return self._memory.latency + 1

    @property
    def digit_latency(self) -> int:
        """Cycles from a row's address to its digits."""
        return self._memory.latency + self._lanes[0].latency

    @property
    def interval(self) -> int:
        """Cycles between two rows."""
        return 1

    def elaborate(self, platform):
        m = Module()
        config = self.config
        m.submodules.memory = memory = self._memory
        lane_bits = (config.lanes - 1).bit_length()

        # Store.
        entry = self.i_entry.payload
        m.d.comb += [
            memory.write_row.eq(entry.position[lane_bits:]),
            memory.write_data.eq(Cat(entry.score for _ in range(config.lanes))),
            memory.write_enable.eq(
                Mux(self.i_entry.valid, 1 << entry.position[:lane_bits] if lane_bits else 1, 0)
            ),
        ]

        # Walk: the lanes that have a score in this row.
        row = Signal(range(config.rows), reset_less=True)
        walking = Signal()
        last_position = Signal(config.count_bits, reset_less=True)
        last_candidate = Signal(range(config.candidate_rows), reset_less=True)
        last_row = Mux(self.search.replay, last_candidate, last_position[lane_bits:])
        m.d.sync += last_position.eq(self.count - 1)
        m.d.comb += self.ended.eq(walking & self.enable & (row == last_row))
        with m.If(self.start):
            m.d.sync += [walking.eq(1), row.eq(0)]
        with m.Elif(walking & self.enable):
            m.d.sync += [walking.eq(~self.ended), row.eq(row + 1)]
        with m.If(self.clear):
            m.d.sync += walking.eq(0)
        m.d.comb += [memory.read_row.eq(row), memory.read_enable.eq(self.enable)]

        # The row number and the lanes' valid bits wait for the memory.
        rows, valid = row, Signal(config.lanes)
        fullest = 0
        for index, lane in enumerate(self._lanes):
            stored = (row != last_row) | (last_position[:lane_bits] >= index)
            m.d.comb += valid[index].eq(walking & Mux(self.search.replay, row < lane.candidates, stored))
            fullest = Mux(lane.candidates > fullest, lane.candidates, fullest)
        m.d.sync += last_candidate.eq(fullest - 1)
        for rank in range(self.latency):
            row_later = Signal(range(config.rows), name=f"row{rank}", reset_less=True)
            valid_later = Signal(config.lanes, name=f"valid{rank}")
            with m.If(self.enable):
                m.d.sync += [row_later.eq(rows), valid_later.eq(valid)]
            if rank < memory.latency:
                valid = valid_later
            rows = row_later

        # Compare.
        m.d.comb += [self.o.valid.eq(self._lanes[0].o.valid), self.o.payload.row.eq(rows)]
        for index, lane in enumerate(self._lanes):
            m.submodules[f"lane{index}"] = lane
            m.d.comb += [
                lane.start.eq(self.clear),
                lane.enable.eq(self.enable),
                lane.search.eq(self.search),
                lane.read_row.eq(row),
                lane.i.valid.eq(valid[index]),
                lane.i.payload.eq(memory.read_data.word_select(index, config.score_bits)),
                self.o.payload.offset[index].eq(lane.o.payload.offset),
                self.o.payload.above[index].eq(lane.o.valid & lane.o.payload.above),
                self.o.payload.equal[index].eq(lane.o.valid & lane.o.payload.equal),
            ]
            wiring.connect(m, lane.o_digit, wiring.flipped(self.o_digits[index]))
        m.d.comb += self.overflow.eq(Cat(lane.overflow for lane in self._lanes).any())
        return m

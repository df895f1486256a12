"""Exit of the top-k unit: picks the selected scores of each row and sends them in token order."""

from __future__ import annotations

from itertools import pairwise

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.attention.topk_load import entry_layout, item_layout
from nearkv_hdl.attention.topk_rows import row_layout
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_hdl.stream.pipeline import PipelineControl
from nearkv_hdl.stream.skid import SkidBuffer


class TopKEmitter(wiring.Component):
    """Selects from rows in ascending order and sends the items of one frame.

    Formula: an item is selected if its score is above the threshold, or equals it and fewer than `ties`
    equal ones came before. Of a row with m selected items one leaves per cycle, lowest position first; a
    row without any takes one cycle. `count` items make a frame; a frame of 0 is one beat with keep = 0.
    Timing: a row on `i` is taken when `enable` is high; its first item is on `o` `latency` cycles later.
    A stall of `o` stops `enable` once latency + 1 items wait.
    Numerics: exact; threshold + offset is the score that was stored.
    Cuts: `o` comes from registers and `o.ready` ends in one, see SkidBuffer.
    Reset: valid bits, pending items.

    Args:
        config: widths, lanes, token runs.

    Members:
        start: a pulse before a frame: takes count and ties.
        count, ties: items of the frame; how many of them equal the threshold, at most (more is as good as
            all).
        threshold: stable until `done`.
        i_entry: tokens to remember, while a job loads.
        i: rows.
        enable: clock enable of everything before `i`; high while nothing is pending.
        o: items.
        done: the frame's last item leaves for the output register in this cycle.

    """

    def __init__(self, config: TopKConfig) -> None:
        self.config = config
        self._tokens = SyncMemory(config.token_bits, config.token_rows, latency=2)
        self._control = PipelineControl(latency=self._tokens.latency + 1)
        self._skid = SkidBuffer(item_layout(config))
        super().__init__(
            {
                "start": In(1),
                "count": In(config.count_bits),
                "ties": In(config.count_bits),
                "threshold": In(shape_of(config.score)),
                "i_entry": In(stream.Signature(entry_layout(config), always_ready=True)),
                "i": In(stream.Signature(row_layout(config), always_ready=True)),
                "enable": Out(1),
                "o": Out(stream.Signature(item_layout(config))),
                "done": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a row to its first item on `o`: pick, token memory, sum, output register."""
        return 1 + self._control.latency + self._skid.latency

    @property
    def interval(self) -> int:
        """Cycles between two items."""
        return 1

    def elaborate(self, platform):
        m = Module()
        config = self.config
        lanes = config.lanes
        m.submodules.control = control = self._control
        m.submodules.tokens = tokens = self._tokens
        m.submodules.skid = skid = self._skid

        # Which of the row's items are selected; equal ones as long as `ties` lasts.
        ties = Signal(config.count_bits, reset_less=True)
        left = Signal(config.count_bits, reset_less=True)  # items to pick
        selected = Signal(lanes)
        rank = Const(0, 1)
        for lane in range(lanes):
            m.d.comb += selected[lane].eq(
                self.i.payload.above[lane] | (self.i.payload.equal[lane] & (rank < ties))
            )
            rank = rank + self.i.payload.equal[lane]

        # Take the row when no more than the item that leaves now is pending.
        pending = Signal(lanes)
        row = Signal(row_layout(config), reset_less=True)
        empty = Signal()  # a frame of 0 items is wanted
        after = pending & (pending - 1)  # without its lowest bit
        picks = pending.any() & control.i_ready
        m.d.comb += self.enable.eq(~pending.any() | (picks & ~after.any()))
        with m.If(picks):
            m.d.sync += [pending.eq(after), left.eq(left - 1)]
        with m.If(self.i.valid & self.enable):
            m.d.sync += [
                row.eq(self.i.payload),
                pending.eq(selected),
                ties.eq(Mux(rank < ties, ties - rank, 0)),
            ]

        # The lowest pending item; its token is looked up, its score restored.
        lane = Signal(range(lanes))
        for index in reversed(range(lanes)):
            with m.If(pending[index]):
                m.d.comb += lane.eq(index)
        position = Cat(lane, row.row) if lanes > 1 else row.row
        run_bits = (config.token_run - 1).bit_length()
        step_layout = data.StructLayout(
            {"run_offset": run_bits, "score_offset": config.score_bits, "keep": 1, "last": 1}
        )
        steps = [Signal(step_layout, name=f"step{r}", reset_less=True) for r in range(tokens.latency)]
        m.d.comb += [
            control.i_valid.eq(pending.any() | empty),
            tokens.read_row.eq(position[run_bits:]),
            tokens.read_enable.eq(control.enable),
        ]
        with m.If(control.enable):
            m.d.sync += [
                steps[0].run_offset.eq(position[:run_bits]),
                steps[0].score_offset.eq(row.offset[lane]),
                steps[0].keep.eq(~empty),
                steps[0].last.eq(empty | (left == 1)),
            ]
            m.d.sync += [later.eq(step) for step, later in pairwise(steps)]
        item = Signal(item_layout(config), reset_less=True)
        with m.If(control.enable):
            m.d.sync += [
                item.token.eq(tokens.read_data + steps[-1].run_offset),
                item.score.eq(self.threshold + steps[-1].score_offset),
                item.keep.eq(steps[-1].keep),
                item.last.eq(steps[-1].last),
            ]
        m.d.comb += [
            skid.i.payload.eq(item),
            skid.i.valid.eq(control.o_valid),
            control.o_ready.eq(skid.i.ready),
            self.done.eq(skid.i.valid & skid.i.ready & item.last),
        ]
        wiring.connect(m, skid.o, wiring.flipped(self.o))

        # A frame begins.
        with m.If(empty & control.i_ready):
            m.d.sync += empty.eq(0)
        with m.If(self.start):
            m.d.sync += [left.eq(self.count), ties.eq(self.ties), empty.eq(self.count == 0)]

        # Remember the token of each run's first position.
        entry = self.i_entry.payload
        m.d.comb += [
            tokens.write_row.eq(entry.position[run_bits:]),
            tokens.write_data.eq(entry.token),
            tokens.write_enable.eq(self.i_entry.valid & (entry.position[:run_bits] == 0)),
        ]
        return m

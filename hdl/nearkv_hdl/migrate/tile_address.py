"""Address generation unit of the re-layout buffer: where the columns of a beat lie, in either order."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.spec.formats import is_power_of_two
from nearkv_hdl.spec.migration import Order, PimLayout


def check_lanes(layout: PimLayout, beat_bytes: int) -> int:
    """Columns of a beat; ValueError unless a beat is a power of two of them, within a row and a stripe.

    Nor may it be as many as both have: then the first read would meet the memories' last write.
    """
    lanes, rest = divmod(beat_bytes, layout.column_bytes)
    tokens, columns = layout.tile_tokens, layout.row_columns
    most = min(tokens, columns) // (2 if tokens == columns else 1)
    if rest or not is_power_of_two(lanes) or lanes > most:
        raise ValueError(
            f"beat_bytes is {beat_bytes} for {layout.name}; allowed: a power of two from"
            f" {layout.column_bytes} to {most * layout.column_bytes}"
        )
    if not is_power_of_two(columns):
        raise ValueError(f"row_columns is {columns} of {layout.name}; allowed: a power of two")
    return lanes


class TileAddress(wiring.Component):
    """Rows of `lanes` memories, and the rotation between them and the columns of a beat.

    Formula: column c of token t lies in memory (t + c) mod lanes at row (t, c // lanes). So neither `lanes`
    columns of a token nor a column of `lanes` tokens meet in a memory. Beat n of a half tile is
    n = (t, c // lanes) in order ROWS, n = (c, t // lanes) in order PIM, digits from the highest. Column j of
    a beat is in memory (j + rotation) mod lanes; rotation is t mod lanes, or c mod lanes.
    Timing: combinational.
    Numerics: none.

    Args:
        layout: tile.
        beat_bytes: bytes of a beat.

    Members:
        index: beat of the half tile.
        order: in which it comes or goes.
        rotation: of the beat.
        rows: of every memory.

    Raises ValueError unless a beat holds a power of two of columns, within a row and a stripe and less than
    one of them.

    """

    def __init__(self, layout: PimLayout, beat_bytes: int) -> None:
        self.lanes = check_lanes(layout, beat_bytes)
        self.layout = layout
        self.beats = layout.half_tile_bytes // beat_bytes
        self.lane_bits = (self.lanes - 1).bit_length()
        members = {f"row_{lane}": Out(range(self.beats)) for lane in range(self.lanes)}
        super().__init__(
            {"index": In(range(self.beats)), "order": In(1), "rotation": Out(self.lane_bits), **members}
        )

    @property
    def latency(self) -> int:
        """Cycles from `index` to the rows."""
        return 0

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    @property
    def rows(self) -> list[Value]:
        """Row of every memory."""
        return [getattr(self, f"row_{lane}") for lane in range(self.lanes)]

    def elaborate(self, platform):
        m = Module()
        layout, lane_bits = self.layout, self.lane_bits
        column_bits = (layout.row_columns - 1).bit_length()
        token_bits = (layout.tile_tokens - 1).bit_length()
        group_bits = column_bits - lane_bits  # of c // lanes
        high_bits = token_bits - lane_bits  # of t // lanes
        pim = self.order == Order.PIM

        # ROWS: c // lanes, then t. PIM: t // lanes, then c.
        index = self.index
        row_token, pim_column = index[group_bits:], index[high_bits:]
        group = Signal(group_bits)
        high = Signal(high_bits)
        m.d.comb += [
            group.eq(Mux(pim, pim_column[lane_bits:], index[:group_bits])),
            high.eq(Mux(pim, index[:high_bits], row_token[lane_bits:])),
            self.rotation.eq(Mux(pim, pim_column[:lane_bits], row_token[:lane_bits])),
        ]
        for lane, row in enumerate(self.rows):
            # The token of order PIM that meets this memory: (t + c) mod lanes = lane.
            low = Signal(lane_bits, name=f"low{lane}")
            m.d.comb += [
                low.eq(Mux(pim, Const(lane, lane_bits) - self.rotation, self.rotation)),
                row.eq(Cat(group, low, high)),
            ]
        return m

"""The transfers of a job on one of its sides."""

from __future__ import annotations

from enum import IntEnum

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.transfer import command_layout
from nearkv_hdl.migrate.moves import BYTES_BITS, MoveShapes
from nearkv_hdl.spec.migration import PARTS


class Place(IntEnum):
    """How tiles lie, and in which order they pass."""

    BYTES = 0  # contiguous, in the order of their bytes
    RECORDS = 1  # contiguous, quantised
    PIM = 2  # keys and values apart; a tile's keys, then its values
    ROWS = 3  # contiguous, token by token; a tile's keys, then its values


def tile_run_layout(shapes: MoveShapes) -> data.StructLayout:
    """Tiles at consecutive places, and how they lie."""
    return data.StructLayout({"address": shapes.address_bits, "tiles": shapes.tiles_bits, "place": Place})


def command_count(shapes: MoveShapes, run: data.View) -> Value:
    """How many commands a run makes."""
    halves = run.tiles * PARTS
    return Mux(
        run.place == Place.ROWS, halves * shapes.layout.tile_tokens, Mux(run.place == Place.PIM, halves, 1)
    )


class TileCommands(wiring.Component):
    """Commands an AXI manager needs for a run of tiles.

    Formula: BYTES and RECORDS: one command for all tiles. PIM: per tile one command for its keys, one for its
    values. ROWS: per tile a command for the key of each token, then one for the value of each.
    Timing: latency 1, interval 1 command. One run at a time, a cycle between two.
    Stalls: a stalled `o` stops `i`.
    Numerics: unsigned.
    Cuts: every path.
    Reset: the run under way is forgotten.

    Args:
        shapes: tile and addresses.

    Members:
        i: runs, of at least one tile.
        o: commands.

    """

    def __init__(self, shapes: MoveShapes) -> None:
        self.shapes = shapes
        super().__init__(
            {
                "i": In(stream.Signature(tile_run_layout(shapes))),
                "o": Out(stream.Signature(command_layout(shapes.address_bits, BYTES_BITS))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a run to its first command."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two commands."""
        return 1

    def elaborate(self, platform):
        m = Module()
        layout = self.shapes.layout
        run = Signal(tile_run_layout(self.shapes), reset_less=True)
        busy, values = Signal(), Signal()
        token = Signal(range(layout.tile_tokens))
        row_offset = Signal(range(layout.tile_bytes))
        rows, pim = run.place == Place.ROWS, run.place == Place.PIM
        size = Mux(run.place == Place.RECORDS, layout.record_bytes, layout.tile_bytes)
        half_ends, tile_ends, run_ends = Signal(), Signal(), Signal()
        m.d.comb += [
            half_ends.eq(~rows | (token == layout.tile_tokens - 1)),
            tile_ends.eq(values & half_ends),
            run_ends.eq(~(rows | pim) | (tile_ends & (run.tiles == 1))),
            row_offset.eq(token * (PARTS * layout.row_bytes) + Mux(values, layout.row_bytes, 0)),
            self.i.ready.eq(~busy),
            self.o.valid.eq(busy),
            self.o.payload.address.eq(
                run.address + Mux(rows, row_offset, Mux(values, layout.value_offset_bytes, 0))
            ),
            self.o.payload.bytes.eq(
                Mux(rows, layout.row_bytes, Mux(pim, layout.half_tile_bytes, run.tiles * size))
            ),
        ]
        with m.If(~busy):
            m.d.sync += [busy.eq(self.i.valid), run.eq(self.i.payload), values.eq(0), token.eq(0)]
        with m.Elif(self.o.ready):
            m.d.sync += [
                busy.eq(~run_ends),
                values.eq((rows | pim) & (values ^ half_ends)),
                token.eq(Mux(half_ends, 0, token + 1)),
            ]
            with m.If(tile_ends):
                m.d.sync += [
                    run.address.eq(run.address + Mux(rows, layout.tile_bytes, layout.half_tile_bytes)),
                    run.tiles.eq(run.tiles - 1),
                ]
        return m

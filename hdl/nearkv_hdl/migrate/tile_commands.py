"""The transfers of a job on one of its sides."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.transfer import command_layout
from nearkv_hdl.migrate.moves import BYTES_BITS, MoveShapes


def tile_run_layout(shapes: MoveShapes) -> data.StructLayout:
    """Tiles at consecutive places: in PIM layout, as rows, or as records."""
    return data.StructLayout(
        {"address": shapes.address_bits, "tiles": shapes.tiles_bits, "pim": 1, "records": 1}
    )


class TileCommands(wiring.Component):
    """Commands an AXI manager needs for a run of tiles.

    Formula: rows and records are contiguous: one command for all tiles. In PIM layout keys and values of a
    block lie apart: per tile one command for its keys, one for its values.
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
        whole = Mux(run.records, run.tiles * layout.record_bytes, run.tiles * layout.tile_bytes)
        ends = ~run.pim | (values & (run.tiles == 1))
        m.d.comb += [
            self.i.ready.eq(~busy),
            self.o.valid.eq(busy),
            self.o.payload.address.eq(run.address + Mux(values, layout.value_offset_bytes, 0)),
            self.o.payload.bytes.eq(Mux(run.pim, layout.half_tile_bytes, whole)),
        ]
        with m.If(~busy):
            m.d.sync += [busy.eq(self.i.valid), run.eq(self.i.payload), values.eq(0)]
        with m.Elif(self.o.ready):
            m.d.sync += [busy.eq(~ends), values.eq(run.pim & ~values)]
            with m.If(values):
                m.d.sync += [
                    run.address.eq(run.address + layout.half_tile_bytes),
                    run.tiles.eq(run.tiles - 1),
                ]
        return m

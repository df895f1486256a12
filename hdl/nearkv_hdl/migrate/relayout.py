"""The re-layout buffer: half tiles in one order in, in another order out, both sides at full rate."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.migrate.tile_address import TileAddress
from nearkv_hdl.spec.migration import PARTS, Order, PimLayout
from nearkv_hdl.stream.pipeline import PipelineControl
from nearkv_hdl.stream.width import Narrow, Widen

_BANKS = 2  # one is filled while the other is emptied
_READ_RANKS = 2  # memory, rotation


def relayout_job_layout(tiles_bits: int) -> data.StructLayout:
    """Payload of the job stream: `tiles` tiles, the Order they come in and the one they leave in."""
    return data.StructLayout({"tiles": tiles_bits, "source": Order, "destination": Order})


class Relayout(wiring.Component):
    """Takes tiles of keys and values in one order and gives them in another.

    Formula: `nearkv_sim.golden.migrate_layout.reorder_tiles`. Beats on both sides are consecutive bytes of
    the stream, lowest first; in both orders a tile's keys come before its values.
    Timing: half a tile, its keys or its values, leaves when it is complete: its first beat `latency` cycles
    after its last one came. Interval 1 beat of the narrower side, jobs following one another included: two
    halves are buffered. A job waits while another is under way, and then follows without a gap.
    Stalls: a stalled `o` stops `i` when two halves are full; a pause of `i` shows at `o` when both are empty.
    Numerics: none.
    Cuts: every path but ready to ready within the width conversions.
    Reset: counters and valid bits; a tile under way is lost.

    Args:
        layout: tile and columns.
        source_bytes, destination_bytes: widths of the streams, powers of two.
        tiles_bits: width of a job's count.

    Members:
        i_job: jobs. One of 0 tiles does nothing.
        i: beats in.
        o: beats out.

    Raises ValueError for a width of 0 or not a power of two, or for which TileAddress has no place.

    """

    def __init__(
        self, layout: PimLayout, source_bytes: int, destination_bytes: int, tiles_bits: int = 16
    ) -> None:
        self.layout = layout
        self.beat_bytes = max(source_bytes, destination_bytes, layout.column_bytes)
        self.tiles_bits = tiles_bits
        self._write_address = TileAddress(layout, self.beat_bytes)
        self._read_address = TileAddress(layout, self.beat_bytes)
        self._widen = Widen(source_bytes, self.beat_bytes)
        self._narrow = Narrow(self.beat_bytes, destination_bytes)
        self._reading = PipelineControl(_READ_RANKS)
        super().__init__(
            {
                "i_job": In(stream.Signature(relayout_job_layout(tiles_bits))),
                "i": In(stream.Signature(8 * source_bytes)),
                "o": Out(stream.Signature(8 * destination_bytes)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from half a tile's last beat to its first one in the other order."""
        return self._widen.latency + 1 + self._reading.latency + self._narrow.latency

    @property
    def interval(self) -> int:
        """Cycles between two beats of the narrower side."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.widen = widen = self._widen
        m.submodules.narrow = narrow = self._narrow
        m.submodules.write_address = writing = self._write_address
        m.submodules.read_address = emptying = self._read_address
        m.submodules.reading = reading = self._reading
        lanes, beats = writing.lanes, writing.beats
        width = 8 * self.layout.column_bytes
        memories = [SyncMemory(width, _BANKS * beats, style="block", keeps_old=False) for _ in range(lanes)]
        for lane, columns in enumerate(memories):
            m.submodules[f"columns{lane}"] = columns

        # The job that fills the buffer, and the one that waits behind it.
        halves = Signal(self.tiles_bits + 1)  # that are still to come
        source, destination = Signal(Order, reset_less=True), Signal(Order, reset_less=True)
        waiting, waiting_job = Signal(), Signal(relayout_job_layout(self.tiles_bits), reset_less=True)
        last_in = Signal()
        m.d.comb += self.i_job.ready.eq(~waiting)
        with m.If(~waiting):
            m.d.sync += [waiting.eq(self.i_job.valid), waiting_job.eq(self.i_job.payload)]
        with m.If((halves == 0) | ((halves == 1) & last_in)):
            m.d.sync += [
                halves.eq(Mux(waiting, waiting_job.tiles * PARTS, 0)),
                source.eq(waiting_job.source),
                destination.eq(waiting_job.destination),
            ]
            with m.If(waiting):
                m.d.sync += waiting.eq(0)
        with m.Elif(last_in):
            m.d.sync += halves.eq(halves - 1)

        # Fill: rotate, then write. `claimed` until a bank is empty again, `complete` once it can be read: the
        # last write is then a cycle away, but of other rows than the first read (see `check_lanes`).
        wiring.connect(m, wiring.flipped(self.i), widen.i)
        claimed, complete = Signal(_BANKS), Signal(_BANKS)
        bank_order = [Signal(Order, name=f"order{bank}", reset_less=True) for bank in range(_BANKS)]
        fill_bank, fill_index = Signal(), Signal(range(beats))
        takes = Signal()
        m.d.comb += [
            widen.o.ready.eq((halves != 0) & ~claimed.bit_select(fill_bank, 1)),
            takes.eq(widen.o.valid & widen.o.ready),
            last_in.eq(takes & (fill_index == beats - 1)),
            writing.index.eq(fill_index),
            writing.order.eq(source),
        ]
        with m.If(takes):
            m.d.sync += fill_index.eq(fill_index + 1)
        with m.If(last_in):
            m.d.sync += [
                fill_bank.eq(~fill_bank),
                claimed.bit_select(fill_bank, 1).eq(1),
                complete.bit_select(fill_bank, 1).eq(1),
            ]
            for bank, order in enumerate(bank_order):
                with m.If(fill_bank == bank):
                    m.d.sync += order.eq(destination)
        rotated = Signal(8 * self.beat_bytes, reset_less=True)
        write, write_bank = Signal(), Signal(reset_less=True)
        m.d.sync += [
            rotated.eq(_rotate_up(widen.o.payload, writing.rotation, width)),
            write.eq(takes),
            write_bank.eq(fill_bank),
        ]
        for lane, (columns, row) in enumerate(zip(memories, writing.rows, strict=True)):
            write_row = Signal(range(beats), name=f"write_row{lane}", reset_less=True)
            m.d.sync += write_row.eq(row)
            m.d.comb += [
                columns.write_row.eq(Cat(write_row, write_bank)),
                columns.write_data.eq(rotated.word_select(lane, width)),
                columns.write_enable.eq(write),
            ]

        # Empty: read, then rotate back.
        read_bank, read_index = Signal(), Signal(range(beats))
        issues = Signal()
        m.d.comb += [
            reading.i_valid.eq(complete.bit_select(read_bank, 1)),
            issues.eq(reading.i_valid & reading.i_ready),
            emptying.index.eq(read_index),
            emptying.order.eq(Mux(read_bank, bank_order[1], bank_order[0])),
        ]
        with m.If(issues):
            m.d.sync += read_index.eq(read_index + 1)
            with m.If(read_index == beats - 1):
                m.d.sync += [
                    read_bank.eq(~read_bank),
                    claimed.bit_select(read_bank, 1).eq(0),
                    complete.bit_select(read_bank, 1).eq(0),
                ]
        rotation = Signal.like(emptying.rotation, reset_less=True)
        result = Signal(8 * self.beat_bytes, reset_less=True)
        words = Cat(columns.read_data for columns in memories)
        with m.If(reading.enable):
            m.d.sync += [rotation.eq(emptying.rotation), result.eq(_rotate_down(words, rotation, width))]
        for columns, row in zip(memories, emptying.rows, strict=True):
            m.d.comb += [columns.read_row.eq(Cat(row, read_bank)), columns.read_enable.eq(reading.enable)]
        m.d.comb += [
            narrow.i.valid.eq(reading.o_valid),
            narrow.i.payload.eq(result),
            reading.o_ready.eq(narrow.i.ready),
        ]
        wiring.connect(m, narrow.o, wiring.flipped(self.o))
        return m


def _rotate_up(value: Value, places: Value, width: int) -> Value:
    """Word j of the value at word (j + places) modulo their number."""
    for bit in range(len(places)):
        value = Mux(places[bit], value.rotate_left(width << bit), value)
    return value


def _rotate_down(value: Value, places: Value, width: int) -> Value:
    """Inverse of `_rotate_up`."""
    for bit in range(len(places)):
        value = Mux(places[bit], value.rotate_right(width << bit), value)
    return value

"""On-chip store of nibble planes: two high planes and a queue of half a low plane."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.attention.query_buffer import BANKS
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.pdpw16kd import BLOCK_ROWS, Pdpw16kd
from nearkv_hdl.spec.design import DesignConfig, Family
from nearkv_hdl.spec.formats import CODE, CODE_HIGH_NIBBLE
from nearkv_hdl.spec.layout import KeyFormat


def key_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the key stream: one plane beat."""
    return data.StructLayout({"data": 8 * design.bus_bytes, "last": 1})


def _row_memory(design: DesignConfig, width: int, rows: int, primitives: bool) -> SyncMemory | Pdpw16kd:
    """Registered twice. No row is read for the lanes in the cycle of its write: it completes first."""
    if design.device.family is Family.ECP5 and rows <= BLOCK_ROWS:
        return Pdpw16kd(width, rows, primitive=primitives)
    return SyncMemory(width, rows, latency=2, keeps_old=False)


class KeyPlanes(wiring.Component):
    """Takes plane beats from the bus and gives whole codes to the lanes.

    A block's high plane waits in the buffer of its bank for the low plane (INT8), whose beats pass through
    a queue; in INT4 the high plane alone makes codes of 16 · nibble. While the lanes work off the queued
    half of a low plane, the next block's high plane streams in, so that bus and lanes never wait for each
    other in the steady state.

    Formula: code = 16·high + low nibble (INT8), 16·high nibble (INT4).
    Timing: one beat per cycle; a row can be read two cycles after its last beat was accepted, one after
    `row_complete`; `codes` follows the read by `latency` = 3 cycles. `i_keys.ready` depends on registers
    alone, and no input reaches a memory but through a register.
    Numerics: exact; high nibbles are signed, low ones are not.

    Args:
        design: sizes.
        primitives: instantiate vendor blocks instead of their behavioural twins.

    Members:
        i_keys: plane beats; `last` marks the final beat of a block and is checked.
        known, head_dim_index, key_format: per bank, whether its command is held, and two fields of it.
        release: per bank, a pulse that frees it.
        row_complete: from the next cycle on one more row can be read, of the high plane in INT4, of both in
            INT8; rows complete in the order in which they are to be read.
        low_rows: rows in the low queue, or on their way to it.
        read_bank, read_row, read_sub, read_int4: lane beat to read: row of the bank's high plane, and which
            `lanes` nibbles of the row; the low nibbles come from the queue's head.
        low_drop: drop the queue's head after this read.
        codes: signed codes of the lanes.
        framing_error: high in a cycle whose key beat has `last` in the wrong place.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        self.design = design
        self.rows = design.plane_rows
        self.queue_rows = design.low_queue_rows
        self.subs = design.lane_beats_per_plane_beat
        row_bits = 8 * design.bus_bytes
        self._high = _row_memory(design, row_bits, BANKS * self.rows, primitives)
        self._low = _row_memory(design, row_bits, self.queue_rows, primitives)
        super().__init__(
            {
                "i_keys": In(stream.Signature(key_layout(design))),
                "known": In(BANKS),
                "head_dim_index": In(data.ArrayLayout(2, BANKS)),
                "key_format": In(BANKS),
                "release": In(BANKS),
                "row_complete": Out(1),
                "low_rows": Out(range(self.queue_rows + 1)),
                "read_bank": In(1),
                "read_row": In(range(self.rows)),
                "read_sub": In(range(self.subs)),
                "read_int4": In(1),
                "low_drop": In(1),
                "codes": Out(shape_of(CODE)).array(design.lanes),
                "framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a read to its codes: memory, its output register, nibble multiplexer."""
        return self._high.latency + 1

    @property
    def interval(self) -> int:
        """Cycles between two beats, and between two reads."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design = self.design
        m.submodules.high = high = self._high
        m.submodules.low = low = self._low

        # Bus side: fill the high plane of a bank, then (INT8) the queue.
        bank = Signal(1)
        in_low = Signal()
        row = Signal(range(self.rows))
        complete = Signal(BANKS)
        tail, head = Signal(range(self.queue_rows)), Signal(range(self.queue_rows))
        last_rows = Array(design.plane_beats(d) - 1 for d in design.head_dims)
        m.d.comb += self.i_keys.ready.eq(
            self.known.bit_select(bank, 1)
            & ~complete.bit_select(bank, 1)
            & ~(in_low & (self.low_rows == self.queue_rows))
        )
        take = self.i_keys.valid & self.i_keys.ready
        int4 = self.key_format.bit_select(bank, 1) == KeyFormat.INT4
        last_row = row == last_rows[self.head_dim_index[bank]]
        final = last_row & (in_low | int4)
        write_data = delayed(m, self.i_keys.payload.data, "write_data")
        m.d.sync += [
            high.write_enable.eq(take & ~in_low),
            low.write_enable.eq(take & in_low),
            self.row_complete.eq(take & (in_low | int4)),
        ]
        m.d.comb += [
            high.write_row.eq(delayed(m, bank * self.rows + row, "write_row")),
            high.write_data.eq(write_data),
            low.write_row.eq(delayed(m, tail, "write_tail")),
            low.write_data.eq(write_data),
            self.framing_error.eq(take & (self.i_keys.payload.last != final)),
        ]
        for b in range(BANKS):
            with m.If(self.release[b]):
                m.d.sync += complete[b].eq(0)
            with m.If(take & final & (bank == b)):
                m.d.sync += complete[b].eq(1)
        with m.If(take):
            m.d.sync += row.eq(Mux(last_row, 0, row + 1))
            with m.If(last_row):
                m.d.sync += in_low.eq(~final)
            with m.If(final):
                m.d.sync += bank.eq(~bank)
        with m.If(take & in_low):
            m.d.sync += tail.eq(Mux(tail == self.queue_rows - 1, 0, tail + 1))
        drop = Signal()
        m.d.sync += drop.eq(self.low_drop)
        with m.If(self.low_drop):
            m.d.sync += head.eq(Mux(head == self.queue_rows - 1, 0, head + 1))
        m.d.sync += self.low_rows.eq(self.low_rows + (take & in_low) - drop)

        # Lane side: read both rows, then pick the lane beat's nibbles.
        m.d.comb += [
            high.read_row.eq(self.read_bank * self.rows + self.read_row),
            high.read_enable.eq(1),
            low.read_row.eq(head),
            low.read_enable.eq(1),
        ]
        sub, is_int4 = self.read_sub, self.read_int4
        for rank in range(high.latency):
            sub, is_int4 = delayed(m, sub, f"sub{rank}"), delayed(m, is_int4, f"is_int4_{rank}")
        nibble_bits = CODE_HIGH_NIBBLE.width
        for lane, code in enumerate(self.codes):
            places = [sub_beat * design.lanes + lane for sub_beat in range(self.subs)]
            high_nibble = Array(high.read_data.word_select(place, nibble_bits) for place in places)[sub]
            low_nibble = Array(low.read_data.word_select(place, nibble_bits) for place in places)[sub]
            whole = Cat(Mux(is_int4, 0, low_nibble), high_nibble).as_signed()
            m.d.comb += code.eq(delayed(m, whole, f"code{lane}"))
        return m

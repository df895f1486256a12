"""Double-buffered store of key-block headers for folding."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.attention.fold_config import HEADER_BANKS, fold_lanes, fold_steps, header_beats
from nearkv_hdl.attention.query_buffer import listed
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.attention import FP16_BITS
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE, TOKEN_INDEX


def descriptor_layout() -> data.StructLayout:
    """Payload of the descriptor stream: one beat per key block."""
    return data.StructLayout(
        {
            "first_token": TOKEN_INDEX.width,
            "head_dim_index": 2,  # position in design.head_dims, that of the query set
            "key_format": 1,  # KeyFormat
            "last": 1,  # of the job
        }
    )


def header_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the header stream: one bus beat of a block's channel tables."""
    return data.StructLayout({"data": 8 * design.bus_bytes, "last": 1})


class FoldHeaders(wiring.Component):
    """Two banks of block descriptor and channel tables: one is read while the other is loaded.

    A block's descriptor is taken as soon as a bank is free, then its header beats: centre, scale, mean code
    (`KeyBlockLayout.channel_table_bytes`). Each table has a memory of bus beats, of which a read picks
    `fold_lanes` channels.

    Formula: `centre`, `scale` and `mean` are entries read_step·fold_lanes… of the tables in bank `read_bank`.
    Timing: a descriptor takes one cycle, every header beat one; a bank is `ready` two cycles after its last
    beat; what is read follows `read_bank`/`read_step` by `latency` = 2 cycles (memory, multiplexer).
    Neither stream waits for the other's valid, and no input reaches a memory but through a register.
    Numerics: none, bit patterns pass through.

    Args:
        design: bus, head dimensions, channels of a read.

    Members:
        i_block: descriptors; a head_dim_index beyond the design's list counts as the last.
        i_headers: header beats; `last` marks a block's final one and is checked.
        descriptor: the descriptor held by each bank.
        ready: per bank, its header is complete.
        release: per bank, a pulse that frees it: from the next cycle on it is not read.
        read_bank, read_step: channels read_step·fold_lanes… to read.
        centre, scale, mean: of these channels.
        framing_error: high in a cycle whose header beat has `last` in the wrong place.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self.lanes = fold_lanes(design)
        self.steps = fold_steps(design, design.head_dims[-1])
        largest = design.head_dims[-1]
        bus_bits = 8 * design.bus_bytes
        # Bits of a table's entry, in stored order, and rows of a bank.
        self._entry_bits = {"centre": FP16_BITS, "scale": FP16_BITS, "mean": CODE.width}
        self._rows = {name: -(-largest * bits // bus_bits) for name, bits in self._entry_bits.items()}
        self._tables = {
            name: SyncMemory(bus_bits, HEADER_BANKS * rows, style="distributed")
            for name, rows in self._rows.items()
        }
        super().__init__(
            {
                "i_block": In(stream.Signature(descriptor_layout())),
                "i_headers": In(stream.Signature(header_layout(design))),
                "descriptor": Out(descriptor_layout()).array(HEADER_BANKS),
                "ready": Out(HEADER_BANKS),
                "release": In(HEADER_BANKS),
                "read_bank": In(1),
                "read_step": In(range(self.steps)),
                "centre": Out(FP16_BITS).array(self.lanes),
                "scale": Out(FP16_BITS).array(self.lanes),
                "mean": Out(shape_of(CODE)).array(self.lanes),
                "framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a read to its channels."""
        return self._tables["mean"].latency + 1

    @property
    def interval(self) -> int:
        """Cycles between two header beats, and between two reads."""
        return 1

    def _table_rows(self, name: str, head_dim: int) -> int:
        return -(-head_dim * self._entry_bits[name] // (8 * self.design.bus_bytes))

    def elaborate(self, platform):
        m = Module()
        design = self.design
        bank, loading = Signal(1), Signal()
        table, row = Signal(range(len(self._tables))), Signal(range(max(self._rows.values())))
        known, head_dim_index = Signal(HEADER_BANKS), Signal(2, reset_less=True)
        held = [
            Signal(descriptor_layout(), name=f"descriptor{b}", reset_less=True) for b in range(HEADER_BANKS)
        ]
        m.d.comb += [mine.eq(theirs) for mine, theirs in zip(self.descriptor, held, strict=True)]
        for head_dim in design.head_dims:
            assert header_beats(design, head_dim) == sum(self._table_rows(n, head_dim) for n in self._rows)

        m.d.comb += [
            self.i_block.ready.eq(~loading & ~known.bit_select(bank, 1)),
            self.i_headers.ready.eq(loading),
        ]
        for b in range(HEADER_BANKS):
            with m.If(self.release[b]):
                m.d.sync += [known[b].eq(0), self.ready[b].eq(0)]
        with m.If(self.i_block.valid & self.i_block.ready):
            index = listed(design, self.i_block.payload.head_dim_index)
            m.d.sync += [loading.eq(1), head_dim_index.eq(index)]
            with m.Switch(bank):
                for b in range(HEADER_BANKS):
                    with m.Case(b):
                        m.d.sync += [held[b].eq(self.i_block.payload), known[b].eq(1)]
                        m.d.sync += held[b].head_dim_index.eq(index)

        take = self.i_headers.valid & self.i_headers.ready
        last_rows = [
            Array(self._table_rows(name, d) - 1 for d in design.head_dims)[head_dim_index]
            for name in self._tables
        ]
        last_row = row == Array(last_rows)[table]
        final = last_row & (table == len(self._tables) - 1)
        with m.If(take):
            m.d.sync += [row.eq(Mux(last_row, 0, row + 1)), table.eq(Mux(final, 0, table + last_row))]
            with m.If(final):
                m.d.sync += [loading.eq(0), bank.eq(~bank)]
        loaded = Signal(HEADER_BANKS)
        m.d.sync += loaded.eq((take & final) << bank)
        for b in range(HEADER_BANKS):
            with m.If(loaded[b]):
                m.d.sync += self.ready[b].eq(1)
        m.d.comb += self.framing_error.eq(take & (self.i_headers.payload.last != final))

        beat = delayed(m, self.i_headers.payload.data, "beat")
        for index, (name, memory) in enumerate(self._tables.items()):
            m.submodules[name] = memory
            write_enable = Signal(name=f"write_{name}")
            m.d.sync += write_enable.eq(take & (table == index))
            # A step's channels lie within one row: rows and steps are powers of two.
            per_row = 8 * design.bus_bytes // (self._entry_bits[name] * self.lanes)
            place_bits = per_row.bit_length() - 1
            rows = self._rows[name]
            m.d.comb += [
                memory.write_row.eq(delayed(m, bank * rows + row, f"row_{name}")),
                memory.write_data.eq(beat),
                memory.write_enable.eq(write_enable),
                memory.read_row.eq(self.read_bank * rows + (self.read_step >> place_bits)),
                memory.read_enable.eq(1),
            ]
            place = delayed(m, self.read_step[:place_bits], f"place_{name}")
            width = self.lanes * self._entry_bits[name]
            picked = delayed(m, memory.read_data.word_select(place, width), f"picked_{name}")
            for lane, entry in enumerate(getattr(self, name)):
                m.d.comb += entry.eq(picked.word_select(lane, self._entry_bits[name]))
        return m

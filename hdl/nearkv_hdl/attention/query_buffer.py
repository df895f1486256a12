"""Double-buffered store of folded queries and per-block constants."""

from __future__ import annotations

from amaranth.hdl import Array, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import BIAS, SHIFT, TOKEN_INDEX

BANKS = 2


def command_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the block stream: one beat per key block."""
    return data.StructLayout(
        {
            "first_token": TOKEN_INDEX.width,
            "head_dim_index": 2,  # position in design.head_dims
            "key_format": 1,  # KeyFormat
            "shift": data.ArrayLayout(SHIFT.width, design.query_group),
            "bias": data.ArrayLayout(shape_of(BIAS), design.query_group),
            "last": 1,
        }
    )


def listed(design: DesignConfig, head_dim_index: Value) -> Value:
    """The position of a head_dim as it is used: one beyond the design's list stands for its last.

    Nothing behind may see another: Amaranth's simulator takes an array's last element for it, the netlist 0.
    """
    last = len(design.head_dims) - 1
    return Mux(head_dim_index > last, last, head_dim_index)


def query_row_layout(design: DesignConfig) -> data.ArrayLayout:
    """`lanes` folded codes of one query head."""
    return data.ArrayLayout(shape_of(design.query_code), design.lanes)


def query_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the query stream."""
    return data.StructLayout({"data": query_row_layout(design), "last": 1})


class QueryBuffer(wiring.Component):
    """Two banks of folded queries, biases and shifts: one is read while the other is loaded.

    A block's command is taken as soon as a bank is free, then its query beats, head by head and chunk by
    chunk. A bank is free again when the scorer pulses `release` for it.

    Formula: `query` is row `read_chunk` of bank `read_bank`, for every query head.
    Timing: the command takes one cycle, every query beat one; a bank is `ready` two cycles after its last
    beat; `query` follows `read_bank`/`read_chunk` by `latency` = 1 cycle. Neither stream ever waits for the
    other's valid, and no input reaches a memory but through a register.
    Numerics: none, codes pass through.

    Args:
        design: sizes.

    Members:
        i_block: block commands; a head_dim_index beyond the design's list counts as the last.
        i_query: `lanes` codes a beat; `last` marks a block's final beat and is checked.
        command: the command held by each bank.
        known: per bank, its command is held.
        ready: per bank, its queries are complete and not used up.
        used: per bank, a pulse when the last lane beat on its queries is issued.
        release: per bank, a later pulse that frees it, when its constants have been used, too.
        read_bank, read_chunk: row to read.
        query: that row of every query head.
        framing_error: high in a cycle whose query beat has `last` in the wrong place.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self.chunks = design.lane_beats_per_token(design.head_dims[-1])
        super().__init__(
            {
                "i_block": In(stream.Signature(command_layout(design))),
                "i_query": In(stream.Signature(query_layout(design))),
                "command": Out(command_layout(design)).array(BANKS),
                "known": Out(BANKS),
                "ready": Out(BANKS),
                "used": In(BANKS),
                "release": In(BANKS),
                "read_bank": In(1),
                "read_chunk": In(range(self.chunks)),
                "query": Out(query_row_layout(design)).array(design.query_group),
                "framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from read_bank/read_chunk to query."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two query beats, and between two reads."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design = self.design
        held = [Signal(command_layout(design), name=f"command{b}", reset_less=True) for b in range(BANKS)]
        m.d.comb += [self.command[b].eq(held[b]) for b in range(BANKS)]

        bank = Signal(1)
        loading = Signal()
        chunk = Signal(range(self.chunks))
        head = Signal(range(design.query_group))
        last_chunks = Array(design.lane_beats_per_token(d) - 1 for d in design.head_dims)
        last_chunk = Signal(range(self.chunks), reset_less=True)

        m.d.comb += [
            self.i_block.ready.eq(~loading & ~self.known.bit_select(bank, 1)),
            self.i_query.ready.eq(loading),
        ]
        for b in range(BANKS):
            with m.If(self.used[b]):
                m.d.sync += self.ready[b].eq(0)
            with m.If(self.release[b]):
                m.d.sync += self.known[b].eq(0)
        head_dim_index = listed(design, self.i_block.payload.head_dim_index)
        with m.If(self.i_block.valid & self.i_block.ready):
            with m.Switch(bank):
                for b in range(BANKS):
                    with m.Case(b):
                        m.d.sync += [held[b].eq(self.i_block.payload), self.known[b].eq(1)]
                        m.d.sync += held[b].head_dim_index.eq(head_dim_index)
            m.d.sync += [loading.eq(1), last_chunk.eq(last_chunks[head_dim_index])]

        take = self.i_query.valid & self.i_query.ready
        final = (chunk == last_chunk) & (head == design.query_group - 1)
        with m.If(take):
            m.d.sync += chunk.eq(chunk + 1)
            with m.If(chunk == last_chunk):
                m.d.sync += [chunk.eq(0), head.eq(head + 1)]
            with m.If(final):
                m.d.sync += [head.eq(0), loading.eq(0), bank.eq(~bank)]
        # The beat is written, and the bank complete, from registers: neither waits for this cycle's valid.
        loaded = Signal(BANKS)
        m.d.sync += loaded.eq((take & final) << bank)
        for b in range(BANKS):
            with m.If(loaded[b]):
                m.d.sync += self.ready[b].eq(1)
        m.d.comb += self.framing_error.eq(take & (self.i_query.payload.last != final))

        row = delayed(m, bank * self.chunks + chunk, "row")
        beat = delayed(m, Value.cast(self.i_query.payload.data), "beat")
        for h in range(design.query_group):
            write_enable = Signal(name=f"write{h}")
            m.d.sync += write_enable.eq(take & (head == h))
            rows = memory.Memory(shape=query_row_layout(design), depth=BANKS * self.chunks, init=[])
            m.submodules[f"head{h}"] = rows
            write, read = rows.write_port(), rows.read_port()
            m.d.comb += [
                write.addr.eq(row),
                Value.cast(write.data).eq(beat),
                write.en.eq(write_enable),
                read.addr.eq(self.read_bank * self.chunks + self.read_chunk),
                self.query[h].eq(read.data),
            ]
        return m

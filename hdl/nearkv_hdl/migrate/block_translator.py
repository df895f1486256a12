"""From logical blocks to physical addresses, through a block table in memory."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi_reader import read_beat_layout
from nearkv_hdl.bus.transfer import TransferCode, command_layout, status_layout
from nearkv_hdl.migrate.moves import GENERATION_BITS, MoveShapes
from nearkv_hdl.spec.migration import BLOCK_ENTRY_BYTES, MoveCode

_ENTRY_SHIFT = (BLOCK_ENTRY_BYTES - 1).bit_length()


class BlockTranslator(wiring.Component):
    """Looks blocks up, one read of the table each, and remembers the last ones.

    Formula: the entry of (slot, block) lies at table_base + 16 · (slot · 2^block_bits + block). ABSENT if its
    lowest bit is 0, STALE if `check` is set and its generation is not the request's, TABLE_ERROR if the read
    failed, OUTSIDE if its address has bits beyond `address_bits`, else DONE. A remembered entry answers only
    requests for its own generation, so an old one is never taken for a new one; requests without `check`
    always read. `i_forget` forgets all entries, and does not remember the one that is being read: the host
    raises it after it has taken a block out of the table.
    Timing: latency 2 from a remembered entry, otherwise 2 to the command and 2 from its status. One request
    at a time.
    Stalls: a stalled `o` stops `i`.
    Numerics: none.
    Cuts: `o`, `o_command` come from registers.
    Reset: all entries are forgotten. Only together with the bus.

    Args:
        shapes: slots, blocks, addresses.
        entries: entries remembered, from 1; the oldest makes room.

    Members:
        i: requests.
        o: translations.
        table_base: address of the table.
        o_command, i_data, i_status: to an AxiReader with a bus of 16 bytes.
        i_forget: forget all entries.
        o_hit: a remembered entry answers in this cycle.

    Raises ValueError if `entries` is below 1.

    """

    def __init__(self, shapes: MoveShapes, entries: int = 4) -> None:
        if entries < 1:
            raise ValueError(f"entries is {entries}; allowed: from 1")
        self.shapes = shapes
        self.entries = entries
        super().__init__(
            {
                "i": In(stream.Signature(shapes.request)),
                "o": Out(stream.Signature(shapes.translation)),
                "table_base": In(shapes.address_bits),
                "o_command": Out(stream.Signature(command_layout(shapes.address_bits, 32))),
                "i_data": In(stream.Signature(read_beat_layout(BLOCK_ENTRY_BYTES))),
                "i_status": In(stream.Signature(status_layout(shapes.address_bits))),
                "i_forget": In(1),
                "o_hit": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a request to its answer from a remembered entry."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two requests answered from remembered entries."""
        return 3

    def elaborate(self, platform):
        m = Module()
        shapes = self.shapes
        line_layout = data.StructLayout(
            {"block": shapes.block, "address": shapes.address_bits, "generation": GENERATION_BITS}
        )
        lines = [Signal(line_layout, name=f"line{n}", reset_less=True) for n in range(self.entries)]
        known = Signal(self.entries)
        oldest = Signal(range(self.entries))
        request = Signal(shapes.request, reset_less=True)
        block = Value.cast(request.block)
        answer = Signal(shapes.translation, reset_less=True)
        m.d.comb += Value.cast(self.o.payload).eq(answer)
        m.d.comb += [
            self.o_command.payload.address.eq(self.table_base + Cat(Const(0, _ENTRY_SHIFT), block)),
            self.o_command.payload.bytes.eq(BLOCK_ENTRY_BYTES),
        ]

        same_block = Cat(known[n] & (Value.cast(line.block) == block) for n, line in enumerate(lines))
        hits = Signal(self.entries)
        m.d.comb += hits.eq(
            same_block
            & Cat(line.generation == request.generation for line in lines)
            & request.check.replicate(self.entries)
        )
        outdated = Signal()  # what is being read was asked for before `i_forget`
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += outdated.eq(0)
                m.d.sync += Value.cast(request).eq(self.i.payload)
                with m.If(self.i.valid):
                    m.next = "LOOK"
            with m.State("LOOK"):
                for n, line in enumerate(lines):
                    with m.If(hits[n]):
                        m.d.sync += answer.address.eq(line.address)
                m.d.sync += [answer.generation.eq(request.generation), answer.code.eq(MoveCode.DONE)]
                m.d.comb += self.o_hit.eq(hits.any())
                with m.If(hits.any()):
                    m.next = "ANSWER"
                with m.Else():
                    m.next = "READ"
            with m.State("READ"):
                m.d.comb += self.o_command.valid.eq(1)
                with m.If(self.o_command.ready):
                    m.next = "STATUS"
            with m.State("STATUS"):
                # A refused read has no beat; a failed one has, but it is worth nothing.
                m.d.comb += self.i_status.ready.eq(1)
                refused = self.i_status.payload.code == TransferCode.WINDOW
                with m.If(self.i_status.valid):
                    m.d.sync += answer.code.eq(
                        Mux(
                            self.i_status.payload.code == TransferCode.OKAY,
                            MoveCode.DONE,
                            MoveCode.TABLE_ERROR,
                        )
                    )
                    with m.If(refused):
                        m.next = "ANSWER"
                    with m.Else():
                        m.next = "ENTRY"
            with m.State("ENTRY"):
                m.d.comb += self.i_data.ready.eq(1)
                entry = self.i_data.payload.data
                generation = entry[64 : 64 + GENERATION_BITS]
                address = Cat(Const(0, 1), entry[1 : shapes.address_bits])
                stale = request.check & (generation != request.generation)
                m.d.sync += [answer.address.eq(address), answer.generation.eq(generation)]
                with m.If(self.i_data.valid):
                    m.next = "ANSWER"
                    with m.If((answer.code == MoveCode.DONE) & ~entry[0]):
                        m.d.sync += answer.code.eq(MoveCode.ABSENT)
                    with m.Elif((answer.code == MoveCode.DONE) & stale):
                        m.d.sync += answer.code.eq(MoveCode.STALE)
                    with m.Elif((answer.code == MoveCode.DONE) & entry[shapes.address_bits : 64].any()):
                        m.d.sync += answer.code.eq(MoveCode.OUTSIDE)
                    with m.Elif((answer.code == MoveCode.DONE) & ~outdated):
                        # In the place of an older entry of the block, or else of the oldest.
                        for n, line in enumerate(lines):
                            with m.If(Mux(same_block.any(), same_block[n], oldest == n)):
                                m.d.sync += [
                                    Value.cast(line.block).eq(block),
                                    line.address.eq(address),
                                    line.generation.eq(generation),
                                    known[n].eq(1),
                                ]
                        with m.If(~same_block.any()):
                            m.d.sync += oldest.eq(Mux(oldest == self.entries - 1, 0, oldest + 1))
            with m.State("ANSWER"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"
        with m.If(self.i_forget):
            m.d.sync += [known.eq(0), outdated.eq(1)]
        return m

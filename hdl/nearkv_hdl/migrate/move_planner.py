"""From descriptors to jobs: checks, translation, addresses."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.spec.migration import Move, MoveCode


def has(flags: Value, flag: Move) -> Value:
    """Whether a flag is set."""
    return flags[flag.bit_length() - 1]


class MovePlanner(wiring.Component):
    """Translates both blocks of a move and works out where its tiles lie.

    Formula: a move is REFUSED unless it has whole tiles within a block, quantises only down and expands only
    up. Source, then destination are translated; the first failure ends it, as does an address that is not
    aligned to a block or a block outside its side's window (OUTSIDE). A difference-only move whose
    destination has the source's generation is SKIPPED. The tile of a block lies at tile · half_tile_bytes in
    PIM layout (keys), at tile · tile_bytes in rows, at tile · record_bytes in records.
    Timing: 5 cycles a move, and the latency of two translations. One at a time.
    Stalls: a stalled `o` stops `i`.
    Numerics: unsigned; addresses modulo the address space, which no window reaches across.
    Cuts: every stream's valid and payload come from registers.
    Reset: the move under way is forgotten.

    Args:
        shapes: of the streams.

    Members:
        i: descriptors.
        o: plans.
        o_request, i_translation: to a BlockTranslator.
        device_base, device_bytes, far_base, far_bytes: windows of both sides.
        o_busy: a move is being worked on.

    """

    def __init__(self, shapes: MoveShapes) -> None:
        self.shapes = shapes
        address = In(shapes.address_bits)
        super().__init__(
            {
                "i": In(stream.Signature(shapes.descriptor)),
                "o": Out(stream.Signature(shapes.plan)),
                "o_request": Out(stream.Signature(shapes.request)),
                "i_translation": In(stream.Signature(shapes.translation)),
                "device_base": address,
                "device_bytes": address,
                "far_base": address,
                "far_bytes": address,
                "o_busy": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a descriptor to the plan that refuses it."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two descriptors that are refused."""
        return 3

    def elaborate(self, platform):
        m = Module()
        shapes, layout = self.shapes, self.shapes.layout
        move = Signal(shapes.descriptor, reset_less=True)
        plan = Signal(shapes.plan, reset_less=True)
        m.d.comb += Value.cast(self.o.payload).eq(plan)
        flags = move.flags
        up, relayout = has(flags, Move.UP), has(flags, Move.RELAYOUT)
        quantise, expand, difference = (
            has(flags, flag) for flag in (Move.QUANTISE, Move.EXPAND, Move.DIFFERENCE)
        )
        tile_shift = (layout.tile_tokens - 1).bit_length()
        first_tile, tiles = move.first_token[tile_shift:], move.tokens[tile_shift:]
        refused = Signal()
        m.d.comb += refused.eq(
            (move.tokens == 0)
            | Cat(move.tokens[:tile_shift], move.first_token[:tile_shift]).any()
            | (move.first_token + move.tokens > layout.block_tokens)
            | (quantise & up)
            | (expand & ~up)
        )

        # Where on each side, and how far.
        def span(count: Value) -> tuple[Value, Value]:
            """Bytes of so many tiles on the device's and the far side."""
            whole, record = count * layout.tile_bytes, count * layout.record_bytes
            return Mux(relayout, count * layout.half_tile_bytes, whole), Mux(quantise | expand, record, whole)

        device_offset, far_offset = span(first_tile)
        device_span, far_span = span(tiles)

        is_source = Signal()  # the block under translation
        on_device = is_source ^ up
        translation = self.i_translation.payload
        base = Mux(on_device, self.device_base, self.far_base)
        window_end = Signal(shapes.address_bits + 1)
        block_end = Signal(shapes.address_bits + 1)
        inside = Signal()
        aligned = ~translation.address[: (layout.block_bytes - 1).bit_length()].any()
        m.d.comb += [
            window_end.eq(base + Mux(on_device, self.device_bytes, self.far_bytes)),
            block_end.eq(translation.address + layout.block_bytes),
            inside.eq(aligned & (translation.address >= base) & (block_end <= window_end)),
            self.o_request.payload.block.eq(Mux(is_source, move.source, move.destination)),
            self.o_request.payload.generation.eq(
                Mux(is_source, move.generation, move.destination_generation)
            ),
            self.o_request.payload.check.eq(is_source | ~difference),
            self.o_busy.eq(1),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [self.i.ready.eq(1), self.o_busy.eq(0)]
                m.d.sync += [Value.cast(move).eq(self.i.payload), is_source.eq(1)]
                with m.If(self.i.valid):
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.d.sync += [
                    plan.tag.eq(move.tag),
                    plan.code.eq(Mux(refused, MoveCode.REFUSED, MoveCode.DONE)),
                    Value.cast(plan.block).eq(Value.cast(move.source)),
                    plan.job.flags.eq(flags),
                    plan.job.tiles.eq(tiles),
                    plan.bytes.eq(Mux(up, tiles * layout.tile_bytes, far_span)),
                ]
                with m.If(refused):
                    m.next = "PLAN"
                with m.Else():
                    m.next = "REQUEST"
            with m.State("REQUEST"):
                m.d.comb += self.o_request.valid.eq(1)
                with m.If(self.o_request.ready):
                    m.next = "TRANSLATION"
            with m.State("TRANSLATION"):
                m.d.comb += self.i_translation.ready.eq(1)
                start = translation.address + Mux(on_device, device_offset, far_offset)
                span_bytes = Mux(on_device, device_span, far_span)
                same = ~is_source & difference & (translation.generation == move.generation)
                fails = (translation.code != MoveCode.DONE) | ~inside
                with m.If(self.i_translation.valid):
                    with m.If(is_source):
                        m.d.sync += [plan.job.source.eq(start), plan.source_end.eq(start + span_bytes)]
                    with m.Else():
                        m.d.sync += [
                            plan.job.destination.eq(start),
                            plan.destination_end.eq(start + span_bytes),
                        ]
                    with m.If(translation.code != MoveCode.DONE):
                        m.d.sync += plan.code.eq(translation.code)
                    with m.Elif(~inside):
                        m.d.sync += plan.code.eq(MoveCode.OUTSIDE)
                    with m.Elif(same):
                        m.d.sync += plan.code.eq(MoveCode.SKIPPED)
                    with m.If(is_source & ~fails):
                        m.d.sync += [
                            is_source.eq(0),
                            Value.cast(plan.block).eq(Value.cast(move.destination)),
                        ]
                        m.next = "REQUEST"
                    with m.Else():
                        m.next = "PLAN"
            with m.State("PLAN"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.next = "IDLE"
        return m

"""Flow control for a pipeline that must never stop: credits at its entry, a buffer at its exit."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

# Cycles from a write into an empty amaranth.lib.fifo.SyncFIFOBuffered to its output: memory, then register.
BUFFER_LATENCY = 2


class CreditBuffer(wiring.Component):
    """Admits a token only if the exit buffer has room for its result, so that the pipeline runs free.

    For data paths without clock enables: no stall signal fans out to their registers, at the price of
    `depth` buffered results.

    Formula: `i_ready` = credits left; a token costs a credit when it enters and returns it when its result
    leaves `o`. `o` carries the results in order of entry.
    Timing: latency `latency` + 2, interval 1. A stalled sink stops the entry once `depth` results are under
    way or buffered.
    Cuts: every path. `i_ready`, `o.valid` and `o.payload` come from registers (`i_ready` through a
    comparison with 0).
    Numerics: none.
    Reset: credits, the valid bits beside the pipeline, the buffer's pointers.

    Args:
        shape: shape of a result.
        latency: cycles from entry to `result` in the free-running pipeline, from 1.
        depth: results the buffer holds, from latency + 3, the cycles from a token's entry to its
            credit's return (fewer would lower the rate); that by default.

    Members:
        i_valid: a token is offered to the pipeline.
        i_ready: it may enter; it enters in the cycle in which both are high.
        result: output of the pipeline, `latency` cycles after entry.
        o: buffered results.

    Raises ValueError for a latency or depth below its minimum.

    """

    def __init__(self, shape, latency: int, depth: int | None = None) -> None:
        if latency < 1:
            raise ValueError(f"latency is {latency}; allowed: from 1")
        shortest = latency + BUFFER_LATENCY + 1
        if depth is None:
            depth = shortest
        if depth < shortest:
            raise ValueError(f"depth is {depth} with latency {latency}; allowed: from {shortest}")
        self._pipeline_latency = latency
        self.depth = depth
        super().__init__(
            {
                "i_valid": In(1),
                "i_ready": Out(1),
                "result": In(shape),
                "o": Out(stream.Signature(shape)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from entry to `o` without stalls."""
        return self._pipeline_latency + BUFFER_LATENCY

    @property
    def interval(self) -> int:
        """Cycles between two tokens."""
        return 1

    @property
    def capacity(self) -> int:
        """Tokens that can be under way or buffered."""
        return self.depth

    def elaborate(self, platform):
        m = Module()
        credits = Signal(range(self.depth + 1), init=self.depth)
        enters = Signal()
        leaves = Signal()
        m.d.comb += [
            self.i_ready.eq(credits != 0),
            enters.eq(self.i_valid & self.i_ready),
            leaves.eq(self.o.valid & self.o.ready),
        ]
        m.d.sync += credits.eq(credits - enters + leaves)

        under_way = Signal(self._pipeline_latency)
        m.d.sync += under_way.eq(Cat(enters, under_way[:-1]))

        m.submodules.buffer = buffer = fifo.SyncFIFOBuffered(
            width=len(Value.cast(self.result)), depth=self.depth
        )
        m.d.comb += [
            buffer.w_data.eq(Value.cast(self.result)),
            buffer.w_en.eq(under_way[-1]),
            Value.cast(self.o.payload).eq(buffer.r_data),
            self.o.valid.eq(buffer.r_rdy),
            buffer.r_en.eq(self.o.ready),
        ]
        return m

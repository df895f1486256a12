"""Streams that wait, or go one way or another by a choice that stays while anything is under way."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Value
from amaranth.lib import fifo


def steer(m: Module, source, sinks, choice) -> None:
    """One stream to the second sink where `choice`, else to the first."""
    for side, sink in enumerate(sinks):
        chosen = choice if side else ~choice
        m.d.comb += [sink.valid.eq(source.valid & chosen), sink.payload.eq(source.payload)]
    m.d.comb += source.ready.eq(Mux(choice, sinks[1].ready, sinks[0].ready))


def feed(m: Module, source, sink, chosen) -> None:
    """To a sink if chosen; nothing else drives the source's ready then."""
    m.d.comb += [sink.valid.eq(source.valid & chosen), sink.payload.eq(source.payload)]
    with m.If(chosen):
        m.d.comb += source.ready.eq(sink.ready)


def join(m: Module, sources, sink, choice, enable=1) -> None:
    """The chosen of several streams to a sink."""
    with m.If(enable), m.Switch(choice):
        for index, source in enumerate(sources):
            with m.Case(index):
                m.d.comb += [
                    sink.valid.eq(source.valid),
                    sink.payload.eq(source.payload),
                    source.ready.eq(sink.ready),
                ]


def through_queue(m: Module, name: str, source, sink, depth: int) -> None:
    """A stream through a FIFO, a submodule of that name."""
    m.submodules[name] = queue = fifo.SyncFIFOBuffered(width=len(Value.cast(source.payload)), depth=depth)
    m.d.comb += [
        queue.w_en.eq(source.valid),
        queue.w_data.eq(source.payload),
        source.ready.eq(queue.w_rdy),
        sink.valid.eq(queue.r_rdy),
        Value.cast(sink.payload).eq(queue.r_data),
        queue.r_en.eq(sink.ready),
    ]

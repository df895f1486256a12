"""Streams that go one way or another, by a choice that does not change while anything is under way."""

from __future__ import annotations

from amaranth.hdl import Module, Mux


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

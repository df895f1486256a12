"""A closed bench around a component: free sources that keep the contract, free sinks, room for checkers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import ClockDomain, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.sim import Simulator

from nearkv_sim.formal.engine import RESET, Proof


@dataclass(frozen=True)
class WatchedStream:
    """One stream of the component under proof.

    Args:
        name: its path in the signature, joined by `__`.
        port: the stream interface itself.
        is_input: whether the component consumes it.

    """

    name: str
    port: Any
    is_input: bool

    @property
    def transfers(self) -> Any:
        """A token passes in this cycle."""
        return self.port.valid & self.port.ready


class Bench:
    """Component with every input free.

    Every input stream is driven by a free source that keeps the stream contract, every output stream meets
    a free `ready`, every plain input is free. `module` is open for checkers and assumptions.

    Args:
        component: the component under proof; used up by it (elaborated once).
        constrain: called with (module, component, bench) to add Assumes on plain inputs or payloads.

    Attributes:
        module: the bench.
        streams: the component's streams by name.
        free: free inputs by name, the keys of a counterexample.
        observed: `<name>_valid` of every output stream and `<name>_ready` of every input stream, as ports.

    """

    def __init__(self, component: Any, constrain: Constrain | None = None) -> None:
        self.module = Module()
        self.module.submodules.component = component
        self.component = component
        self.streams: dict[str, WatchedStream] = {}
        self.free: dict[str, Any] = {}
        self.observed: dict[str, Any] = {}
        self._attach(component, component.signature, ())
        if not self.streams:
            raise ValueError(f"{type(component).__name__} has no streams; allowed: at least one")
        if constrain is not None:
            constrain(self.module, component, self)

    def free_signal(self, name: str, width: int = 1) -> Any:
        """A new free input of the bench."""
        signal = Signal(width, name=name)
        self.free[name] = signal
        return signal

    def output(self, name: str | None) -> WatchedStream:
        """The output stream of that name; None: the only one."""
        return self._pick(name, is_input=False)

    def input(self, name: str | None) -> WatchedStream:
        """The input stream of that name; None: the only one."""
        return self._pick(name, is_input=True)

    def add(self, name: str, checker: Any, **inputs: Any) -> Any:
        """Add a checker as submodule and drive its inputs."""
        self.module.submodules[name] = checker
        self.module.d.comb += [
            Value.cast(getattr(checker, port)).eq(Value.cast(value)) for port, value in inputs.items()
        ]
        return checker

    def replay(self, proof: Proof, vcd: str | None = None) -> str:
        """Simulate a counterexample; returns the message of the rule it breaks ("" if none).

        A component can be elaborated only once in a module tree, so use a bench built like the refuted one.
        """
        message = ""
        top = Module()
        top.domains.sync = sync = ClockDomain("sync")
        top.submodules.bench = self.module
        inputs = {**self.free, RESET: sync.rst}

        async def drive(ctx: Any) -> None:
            nonlocal message
            try:
                for cycle in proof.counterexample:
                    for name, value in cycle.items():
                        ctx.set(inputs[name], value)
                    await ctx.tick()
            except AssertionError as error:
                message = str(error)

        simulator = Simulator(top)
        simulator.add_clock(1e-6)
        simulator.add_testbench(drive)
        try:
            if vcd is None:
                simulator.run()
            else:
                with simulator.write_vcd(vcd):
                    simulator.run()
        except AssertionError as error:
            message = str(error)
        return message

    def _pick(self, name: str | None, *, is_input: bool) -> WatchedStream:
        kind = "input" if is_input else "output"
        names = [s.name for s in self.streams.values() if s.is_input == is_input]
        if name is None and len(names) == 1:
            name = names[0]
        if name not in names:
            raise ValueError(
                f"{kind} stream is {name!r}; allowed: {', '.join(names) or 'none, there is none'}"
            )
        return self.streams[name]

    def _attach(self, interface: Any, signature: Any, path: tuple[str, ...]) -> None:
        for name, member in signature.members.items():
            is_input = member.flow == wiring.In
            for suffix, element in _elements(getattr(interface, name), member.dimensions):
                full = (*path, name + suffix)
                if member.is_port:
                    if is_input:
                        self._drive("__".join(full), element)
                elif isinstance(member.signature, stream.Signature):
                    self._attach_stream("__".join(full), element, is_input)
                else:
                    self._attach(element, member.signature, full)  # of an input: flipped already

    def _drive(self, name: str, target: Any) -> None:
        value = Value.cast(target)
        self.module.d.comb += value.eq(self.free_signal(name, len(value)))

    def _drive_source(self, name: str, port: Any) -> None:
        """Drive a stream by all that the contract allows: a token that waits is held, all else is free.

        Held by registers instead of assumptions, so that payload bits which decide nothing drop out.
        """
        payload = Value.cast(port.payload)
        free = self.free_signal(f"{name}_payload", len(payload))
        waiting = Signal(name=f"{name}_waiting")
        offered = Signal(len(payload), name=f"{name}_offered", reset_less=True)
        self.module.d.comb += payload.eq(Mux(waiting, offered, free))
        self.module.d.sync += offered.eq(payload)
        if not port.signature.always_valid:
            valid = self.free_signal(f"{name}_valid")
            self.module.d.comb += port.valid.eq(waiting | valid)
        ready = Signal(name=f"{name}_ready")
        self.module.d.comb += ready.eq(port.ready)
        self.module.d.sync += waiting.eq(port.valid & ~ready)
        self.observed[f"{name}_ready"] = ready

    def _attach_stream(self, name: str, port: Any, is_input: bool) -> None:
        self.streams[name] = WatchedStream(name, port, is_input)
        if is_input:
            self._drive_source(name, port)
        else:
            if not port.signature.always_ready:
                self._drive(f"{name}_ready", port.ready)
            valid = Signal(name=f"{name}_valid")
            self.module.d.comb += valid.eq(port.valid)
            self.observed[f"{name}_valid"] = valid


Constrain = Callable[[Any, Any, Bench], None]
Inputs = Mapping[str, Any]


def _elements(value: Any, dimensions: tuple[int, ...]) -> list[tuple[str, Any]]:
    """Members of an array member with the suffixes of their names; the value itself without dimensions."""
    if not dimensions:
        return [("", value)]
    return [
        (f"__{index}{suffix}", element)
        for index in range(dimensions[0])
        for suffix, element in _elements(value[index], dimensions[1:])
    ]

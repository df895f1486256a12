"""What the compiled driver needs to know of a component's ports."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Value
from amaranth.lib import stream, wiring


@dataclass(frozen=True)
class StreamPort:
    """One stream of a component; `name` is the member's, `width` the payload's in bits."""

    name: str
    width: int
    is_input: bool

    @property
    def words(self) -> int:
        """32-bit words of one beat."""
        return (self.width + 31) // 32


@dataclass(frozen=True)
class SignalPort:
    """One plain output of `width` bits."""

    name: str
    width: int

    @property
    def words(self) -> int:
        """32-bit words of its value."""
        return (self.width + 31) // 32


@dataclass(frozen=True)
class Ports:
    """Ports of a component in the order of its signature."""

    streams: tuple[StreamPort, ...]
    signals: tuple[SignalPort, ...]


def describe_ports(component: wiring.Component) -> Ports:
    """Read the streams and plain outputs off a component's signature.

    Raises ValueError for anything the driver could not drive: a plain input, a nested interface, a stream
    that is always valid or always ready, a payload of 0 bits, a signature without streams.
    """
    streams: list[StreamPort] = []
    signals: list[SignalPort] = []
    for name, member in component.signature.members.items():
        attribute = getattr(component, name)
        if member.is_port and not member.dimensions:
            if member.flow == wiring.In:
                raise ValueError(f"port {name!r} is a plain input; allowed: streams and plain outputs")
            signals.append(SignalPort(name, len(Value.cast(attribute))))
            continue
        is_stream = member.is_signature and isinstance(member.signature, stream.Signature)
        if not is_stream or member.dimensions:
            raise ValueError(f"port {name!r} is no single stream; allowed: streams and plain outputs")
        if member.signature.always_valid or member.signature.always_ready:
            raise ValueError(
                f"stream {name!r} is always valid or always ready; allowed: streams with valid and ready"
            )
        width = len(Value.cast(attribute.payload))
        if width == 0:
            raise ValueError(f"stream {name!r} has a payload of 0 bits; allowed: at least 1")
        streams.append(StreamPort(name, width, is_input=member.flow == wiring.In))
    if not streams:
        raise ValueError("component has no streams; allowed: at least one")
    return Ports(tuple(streams), tuple(signals))

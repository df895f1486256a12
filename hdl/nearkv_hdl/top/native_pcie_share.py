"""One memory port for two managers that take turns."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.top.kernel_core import memory_port

_OUTSTANDING_BITS = 8  # more bursts than either manager has under way
_FIRST, _SECOND = 0, 1


class PortShare(wiring.Component):
    """Lets two AXI4 managers use one port, each direction by itself.

    Formula: a direction belongs to one manager at a time. It goes to the other when that one asks, its owner
    asks for nothing, and all of the owner's bursts have been answered. So identifiers stay as they are, and
    what one manager does after the other's end is behind it on the port. An owner that always asks keeps it:
    for managers that work by turns anyway, and that offer a burst's address no later than its data.
    Timing: latency 0; a change of owner takes a cycle.
    Numerics: up to 255 bursts outstanding in each direction.
    Cuts: none.
    Reset: all; only together with the bus.

    Args:
        bus_bytes: bytes of a beat.

    Members:
        first, second: managers.
        first_busy: `first` has something on the port or asks for something.
        m_axi: the port.

    """

    def __init__(self, bus_bytes: int) -> None:
        port = memory_port(bus_bytes)
        super().__init__({"first": In(port), "second": In(port), "first_busy": Out(1), "m_axi": Out(port)})

    def elaborate(self, platform):
        m = Module()
        bus = self.m_axi
        reads = self._share(m, ("ar",), ("ar", "r"), bus.rvalid & bus.rready & bus.rlast)
        writes = self._share(m, ("aw", "w"), ("aw", "w", "b"), bus.bvalid & bus.bready)
        m.d.comb += self.first_busy.eq(reads | writes)
        return m

    def _share(self, m: Module, asking: tuple[str, ...], channels: tuple[str, ...], ends: Value) -> Value:
        """Connect a direction, whose bursts begin on the first channel; returns whether `first` is busy."""
        bus, managers = self.m_axi, (self.first, self.second)
        owner = Signal(name=f"{asking[0]}_owner")
        outstanding = Signal(_OUTSTANDING_BITS, name=f"{asking[0]}_outstanding")
        for member, description in bus.signature.members.items():
            if not member.startswith(channels):
                continue
            port = getattr(bus, member)
            ours = [getattr(manager, member) for manager in managers]
            if description.flow is Out:
                m.d.comb += port.eq(Mux(owner, ours[_SECOND], ours[_FIRST]))
            elif member.endswith(("ready", "valid")):
                m.d.comb += [ours[_FIRST].eq(port & ~owner), ours[_SECOND].eq(port & owner)]
            else:
                m.d.comb += [one.eq(port) for one in ours]
        wants = [Cat(getattr(manager, f"{name}valid") for name in asking).any() for manager in managers]
        begins = getattr(bus, f"{asking[0]}valid") & getattr(bus, f"{asking[0]}ready")
        m.d.sync += outstanding.eq(outstanding + begins - ends)
        with m.If((outstanding == 0) & ~Mux(owner, wants[_SECOND], wants[_FIRST])):
            m.d.sync += owner.eq(Mux(owner, ~wants[_FIRST], wants[_SECOND]))
        return wants[_FIRST] | ((owner == _FIRST) & (outstanding != 0))

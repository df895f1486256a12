"""Two read managers on one AXI4 port."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_read
from nearkv_hdl.bus.axi_reader import AxiReader

KEYS, LISTS = 0, 1  # identifiers


class ReadPort(wiring.Component):
    """A reader for key planes, one for descriptors, headers and codes, told apart by their identifier.

    Formula: addresses of both, those of lists first; a beat goes to the reader whose identifier it has. The
    memory may interleave the two, or answer one before the other: neither waits for the other's consumer.
    Timing: those of AxiReader; nothing is added. An address, once offered, stays until it is taken.
    Numerics: none.
    Cuts: those of AxiReader but for multiplexers on `araddr`, `arlen` and `rready`.
    Reset: as AxiReader, only together with the bus.

    Args:
        bus_bytes: bytes of a beat.

    Members:
        keys_*, lists_*: of each reader what AxiReader calls i_command, window_base, window_bytes, o_data and
            o_status.
        m_axi: the port.

    """

    def __init__(self, bus_bytes: int) -> None:
        self._readers = {
            # Beats for 200 cycles of latency, a burst, and what a pause of the consumer leaves standing.
            "keys": AxiReader(bus_bytes),
            # A few blocks ahead: a block's list entries are a tenth of its planes at most.
            "lists": AxiReader(bus_bytes, outstanding=16, depth=128),
        }
        members = {"m_axi": Out(axi_read(64, bus_bytes))}
        for which, reader in self._readers.items():
            members |= {
                f"{which}_{name.removeprefix('i_').removeprefix('o_')}": member
                for name, member in reader.signature.members.items()
                if name != "m_axi"
            }
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        for which, reader in self._readers.items():
            m.submodules[which] = reader
            for name, member in reader.signature.members.items():
                if name == "m_axi":
                    continue
                mine, theirs = (
                    getattr(self, f"{which}_{name.removeprefix('i_').removeprefix('o_')}"),
                    getattr(reader, name),
                )
                if member.is_port:
                    m.d.comb += theirs.eq(mine)
                elif member.flow is In:
                    wiring.connect(m, wiring.flipped(mine), theirs)
                else:
                    wiring.connect(m, theirs, wiring.flipped(mine))
        keys, lists = (self._readers[which].m_axi for which in ("keys", "lists"))
        bus = self.m_axi

        chosen, kept, is_kept = Signal(), Signal(), Signal()
        m.d.comb += chosen.eq(Mux(is_kept, kept, Mux(lists.arvalid, LISTS, KEYS)))
        m.d.sync += [kept.eq(chosen), is_kept.eq(bus.arvalid & ~bus.arready)]
        for name, member in bus.signature.members.items():
            mine, of_keys, of_lists = (Value.cast(getattr(port, name)) for port in (bus, keys, lists))
            if member.flow is Out:
                select = bus.rid if name == "rready" else chosen
                m.d.comb += mine.eq(select if name == "arid" else Mux(select, of_lists, of_keys))
            else:
                m.d.comb += [of_keys.eq(mine), of_lists.eq(mine)]
        m.d.comb += [
            keys.arready.eq(bus.arready & (chosen == KEYS)),
            lists.arready.eq(bus.arready & (chosen == LISTS)),
            keys.rvalid.eq(bus.rvalid & (bus.rid == KEYS)),
            lists.rvalid.eq(bus.rvalid & (bus.rid == LISTS)),
        ]
        return m

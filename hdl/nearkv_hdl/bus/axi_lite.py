"""AXI4-Lite subordinate in front of the registers."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, Signature

from nearkv_hdl.bus.axi import LITE_DATA_BYTES, Response, axi_lite
from nearkv_hdl.spec.register_map import WINDOW_BYTES

ADDRESS_BITS = (WINDOW_BYTES - 1).bit_length()
_WORD_LSB = (LITE_DATA_BYTES - 1).bit_length()
WORD_BITS = ADDRESS_BITS - _WORD_LSB


def register_access() -> Signature:
    """One read and one write of a register word per cycle, seen from who asks.

    `read_data` answers `read_word` in the same cycle; `read` says that this value is taken. A write counts
    from the next cycle on.
    """
    return Signature(
        {
            "read": Out(1),
            "read_word": Out(WORD_BITS),
            "read_data": In(8 * LITE_DATA_BYTES),
            "write": Out(1),
            "write_word": Out(WORD_BITS),
            "write_data": Out(8 * LITE_DATA_BYTES),
            "write_strobes": Out(LITE_DATA_BYTES),
        }
    )


class AxiLiteSubordinate(wiring.Component):
    """Turns AXI4-Lite transfers into register accesses, one read and one write at a time.

    Formula: the write address may come before, with or after its data; the write is done when both are
    there, the response follows it. The two address bits below a word are ignored, and so is the absence of a
    register: such words read 0, and every response is OKAY.
    Timing: latency 2 from the address (or the later of write address and data) to the response, interval
    2 for reads and 2 for writes; reads and writes do not wait for each other. A response that is not taken
    stops its own direction alone, one further access deep.
    Order: a read and a write done in the same cycle do not see each other: the read gives the old value.
    Cuts: every path. `ready` and `valid` come from registers, AW, W and AR are registered, R and B too.
    Numerics: none.
    Reset: valid bits.

    Members:
        s_axi: the bus, 32-bit data, 12-bit addresses.
        access: the registers.

    """

    def __init__(self) -> None:
        super().__init__({"s_axi": In(axi_lite(ADDRESS_BITS)), "access": Out(register_access())})

    @property
    def latency(self) -> int:
        """Cycles from an address to its response."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two reads, and between two writes."""
        return 2

    def elaborate(self, platform):
        m = Module()
        bus, access = self.s_axi, self.access

        # Reads: the address waits in a register until the response has room.
        ar_held = Signal()
        m.d.comb += [
            bus.arready.eq(~ar_held),
            bus.rresp.eq(Response.OKAY),
            access.read.eq(ar_held & (~bus.rvalid | bus.rready)),
        ]
        with m.If(access.read):
            m.d.sync += [ar_held.eq(0), bus.rvalid.eq(1), bus.rdata.eq(access.read_data)]
        with m.Elif(bus.rready):
            m.d.sync += bus.rvalid.eq(0)
        with m.If(bus.arvalid & bus.arready):
            m.d.sync += [ar_held.eq(1), access.read_word.eq(bus.araddr[_WORD_LSB:])]

        # Writes: address and data wait for each other, then both for room.
        aw_held = Signal()
        w_held = Signal()
        m.d.comb += [
            bus.awready.eq(~aw_held),
            bus.wready.eq(~w_held),
            bus.bresp.eq(Response.OKAY),
            access.write.eq(aw_held & w_held & (~bus.bvalid | bus.bready)),
        ]
        with m.If(access.write):
            m.d.sync += [aw_held.eq(0), w_held.eq(0), bus.bvalid.eq(1)]
        with m.Elif(bus.bready):
            m.d.sync += bus.bvalid.eq(0)
        with m.If(bus.awvalid & bus.awready):
            m.d.sync += [aw_held.eq(1), access.write_word.eq(bus.awaddr[_WORD_LSB:])]
        with m.If(bus.wvalid & bus.wready):
            m.d.sync += [w_held.eq(1), access.write_data.eq(bus.wdata), access.write_strobes.eq(bus.wstrb)]
        return m

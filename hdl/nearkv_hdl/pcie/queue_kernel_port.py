"""The kernel's control port, shared by the host, who looks, and the queue engine, who works."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out, Signature

from nearkv_hdl.bus.axi import LITE_DATA_BYTES, axi_lite
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS

KERNEL_REQUEST = data.StructLayout({"offset": ADDRESS_BITS, "write": 1, "data": 8 * LITE_DATA_BYTES})


def kernel_access() -> Signature:
    """Accesses of whole words of the kernel's registers, one at a time, seen from who asks.

    The next request comes after the response, which is one cycle of `done`, with `read_data` for a read.
    """
    return Signature(
        {
            "request": Out(stream.Signature(KERNEL_REQUEST)),
            "done": In(1),
            "read_data": In(8 * LITE_DATA_BYTES),
        }
    )


class KernelPort(wiring.Component):
    """AXI4-Lite manager with two users.

    Formula: one access at a time; of two requests in one cycle the host's goes first. The host has one under
    way at most, and its way back is longer than an access, so that the engine gets its turns.
    Timing: latency 1 from a request to `arvalid`, or `awvalid` and `wvalid`; 0 from the response to `done`;
    then one cycle until the next request. Responses are always taken.
    Numerics: none.
    Reset: all; only together with the kernel.

    Members:
        host, engine: users.
        m_axil: the kernel's registers. They answer OKAY, see AxiLiteSubordinate, so that the response is not
            looked at.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "host": In(kernel_access()),
                "engine": In(kernel_access()),
                "m_axil": Out(axi_lite(ADDRESS_BITS)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        bus = self.m_axil
        request = Signal(KERNEL_REQUEST)
        engine_asked = Signal()
        m.d.comb += [
            bus.araddr.eq(request.offset),
            bus.awaddr.eq(request.offset),
            bus.wdata.eq(request.data),
            bus.wstrb.eq((1 << LITE_DATA_BYTES) - 1),
            bus.bready.eq(1),
            bus.rready.eq(1),
        ]
        for user in (self.host, self.engine):
            m.d.comb += user.read_data.eq(bus.rdata)
        for valid, ready in (
            (bus.arvalid, bus.arready),
            (bus.awvalid, bus.awready),
            (bus.wvalid, bus.wready),
        ):
            with m.If(ready):
                m.d.sync += valid.eq(0)
        with m.FSM():
            with m.State("IDLE"):
                chosen = Signal(KERNEL_REQUEST)
                from_engine = Signal()
                m.d.comb += [
                    from_engine.eq(~self.host.request.valid),
                    self.host.request.ready.eq(1),
                    self.engine.request.ready.eq(from_engine),
                    chosen.eq(self.host.request.payload),
                ]
                with m.If(from_engine):
                    m.d.comb += chosen.eq(self.engine.request.payload)
                with m.If(self.host.request.valid | self.engine.request.valid):
                    m.d.sync += [
                        request.eq(chosen),
                        engine_asked.eq(from_engine),
                        bus.arvalid.eq(~chosen.write),
                        bus.awvalid.eq(chosen.write),
                        bus.wvalid.eq(chosen.write),
                    ]
                    m.next = "RESPONSE"
            with m.State("RESPONSE"), m.If(bus.rvalid | bus.bvalid):
                m.d.comb += [self.host.done.eq(~engine_asked), self.engine.done.eq(engine_asked)]
                m.next = "IDLE"
        return m

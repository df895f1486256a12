"""The completer side of the integrated block: requests of the host on BAR0 become register accesses."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import LITE_DATA_BYTES, Response, axi_lite
from nearkv_hdl.pcie.formats import (
    BEAT_DWORDS,
    CC_DESCRIPTOR,
    CC_USER,
    COMPLETION_DWORDS,
    CQ_DESCRIPTOR,
    CQ_USER,
    REQUEST_DWORDS,
    CompletionStatus,
    RequestType,
    packet_stream,
)

# Values of `request_type` in PG213 that are refused or dropped, beside those that RequestType names.
_READ_LOCKED = 0b0111
_FIRST_MESSAGE = 0b1100  # messages, posted, up to the last value
_MAX_DWORDS = 2
_DWORD_BITS = 8 * LITE_DATA_BYTES


class Completer(wiring.Component):
    """Answers the requests of the CQ interface, one after the other.

    Formula: a memory read or write of 1 or 2 dwords of BAR0 becomes one access per dword that has a byte
    enabled, the lower first, strobes as the byte enables. A read is answered with all its dwords, those
    without an enabled byte 0; a read without any enabled byte touches nothing, but waits for its turn, which
    is what hosts use it for. Byte count and lower address: PCI Express Base Specification 3.1, 2.3.1.1.
    Errors: any other read, locked or not, I/O and atomic requests are answered with Unsupported Request; a
    read whose access fails, with Completer Abort. Any other write and messages are dropped, and so is a
    request whose data the block has marked as damaged (`discontinue`), which must not be answered. Poisoned
    requests do not get here: the block drops them itself (its local error CQ_EP_DROP).
    Timing: latency 3 from the last beat of a request to `arvalid` or `awvalid`, 2 to the completion of a
    refused one, 2 from the last response to a completion. While a request is served, the next waits. A write
    is over when its response is there, so that a read behind it sees it, and the accesses that follow from
    it are in order.
    Numerics: none.
    Reset: all; only together with the register bus.

    Args:
        address_bits: log2 of the bytes of BAR0.

    Members:
        s_axis_cq, m_axis_cc: of the block.
        m_axil: the registers. Addresses stay until the response.
        dropped: pulse: a request was dropped, or a write got an error response.
        refused: pulse: a request was answered with an error status.

    Raises ValueError for address_bits outside 4 to 32.

    """

    def __init__(self, address_bits: int) -> None:
        if not 4 <= address_bits <= 32:
            raise ValueError(f"address_bits is {address_bits}; allowed: 4 to 32")
        self.address_bits = address_bits
        super().__init__(
            {
                "s_axis_cq": In(packet_stream(CQ_USER)),
                "m_axis_cc": Out(packet_stream(CC_USER)),
                "m_axil": Out(axi_lite(address_bits)),
                "dropped": Out(1),
                "refused": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        cq, cc, bus = self.s_axis_cq, self.m_axis_cc, self.m_axil
        user = data.View(CQ_USER, cq.tuser)
        request = Signal(CQ_DESCRIPTOR)
        enables = Signal(data.ArrayLayout(LITE_DATA_BYTES, _MAX_DWORDS))  # of the first and the last dword
        payload = Signal(data.ArrayLayout(_DWORD_BITS, _MAX_DWORDS))
        damaged = Signal()
        status = Signal(CompletionStatus)
        index = Signal(range(_MAX_DWORDS))

        kind = request.request_type
        writes = kind == RequestType.MEMORY_WRITE
        posted = writes | (kind >= _FIRST_MESSAGE)
        word = request.dword_address[: self.address_bits - 2]
        crosses = (request.dwords > 1) & word.all()
        served = Signal()
        m.d.comb += served.eq(
            (writes | (kind == RequestType.MEMORY_READ))
            & (request.bar_id == 0)
            & ((request.dwords == 1) | (request.dwords == 2))
            & ~crosses
        )
        last = index + 1 == request.dwords
        m.d.comb += [
            bus.araddr.eq((word + index) << 2),
            bus.awaddr.eq(bus.araddr),
            bus.wdata.eq(payload[index]),
            bus.wstrb.eq(enables[index]),
        ]
        # Set on the way into a write, and taken one by one.
        with m.If(bus.awready):
            m.d.sync += bus.awvalid.eq(0)
        with m.If(bus.wready):
            m.d.sync += bus.wvalid.eq(0)

        with m.FSM():
            with m.State("REQUEST"):
                m.d.comb += cq.tready.eq(1)
                with m.If(cq.tvalid):
                    m.d.sync += [
                        request.eq(cq.tdata[: CQ_DESCRIPTOR.size]),
                        enables[0].eq(user.first_be[0]),
                        enables[1].eq(user.last_be[0]),
                        payload.eq(cq.tdata[_DWORD_BITS * REQUEST_DWORDS :]),
                        damaged.eq(user.discontinue),
                        index.eq(0),
                        status.eq(CompletionStatus.SUCCESSFUL),
                    ]
                    with m.If(cq.tlast):
                        m.next = "DECIDE"
                    with m.Else():
                        m.next = "SKIP"
            with m.State("SKIP"):  # the data of a request that is not served
                m.d.comb += cq.tready.eq(1)
                with m.If(cq.tvalid):
                    m.d.sync += damaged.eq(damaged | user.discontinue)
                    with m.If(cq.tlast):
                        m.next = "DECIDE"
            with m.State("DECIDE"):
                with m.If(damaged | (posted & ~served)):
                    m.d.comb += self.dropped.eq(1)
                    m.next = "REQUEST"
                with m.Elif(served):
                    with m.If(~writes):
                        m.d.sync += payload.eq(0)
                    m.next = "DWORD"
                with m.Else():
                    m.d.sync += status.eq(CompletionStatus.UNSUPPORTED_REQUEST)
                    m.next = "COMPLETE"
            with m.State("DWORD"):
                with m.If(~enables[index].any()):
                    m.next = "NEXT"
                with m.Elif(writes):
                    m.d.sync += [bus.awvalid.eq(1), bus.wvalid.eq(1)]
                    m.next = "WRITE"
                with m.Else():
                    m.d.sync += bus.arvalid.eq(1)
                    m.next = "READ"
            with m.State("WRITE"):
                m.d.comb += bus.bready.eq(1)
                with m.If(bus.bvalid):
                    m.d.comb += self.dropped.eq(bus.bresp != Response.OKAY)
                    m.next = "NEXT"
            with m.State("READ"):
                m.d.comb += bus.rready.eq(1)
                with m.If(bus.arready):
                    m.d.sync += bus.arvalid.eq(0)
                with m.If(bus.rvalid):
                    m.d.sync += payload[index].eq(bus.rdata)
                    with m.If(bus.rresp != Response.OKAY):
                        m.d.sync += status.eq(CompletionStatus.COMPLETER_ABORT)
                    m.next = "NEXT"
            with m.State("NEXT"):
                m.d.sync += index.eq(index + 1)
                with m.If(~last):
                    m.next = "DWORD"
                with m.Elif(writes):
                    m.next = "REQUEST"
                with m.Else():
                    m.next = "COMPLETE"
            with m.State("COMPLETE"):
                m.d.comb += cc.tvalid.eq(1)
                with m.If(cc.tready):
                    m.d.comb += self.refused.eq(status != CompletionStatus.SUCCESSFUL)
                    m.next = "REQUEST"
        self._drive_completion(m, request, enables, payload, status)
        return m

    def _drive_completion(
        self, m: Module, request: data.View, enables: data.View, payload: data.View, status: Value
    ) -> None:
        """The packet that answers `request`, in one beat."""
        cc = self.m_axis_cc
        header = Signal(CC_DESCRIPTOR)
        memory = (request.request_type == RequestType.MEMORY_READ) | (request.request_type == _READ_LOCKED)
        # Bytes from the first to the last that is enabled, of all dwords in between.
        first, tail = enables[0], Mux(request.dwords == 1, enables[0], enables[1])
        before, behind = Signal(2), Signal(2)
        for lane in range(1, LITE_DATA_BYTES):
            with m.If(~first[:lane].any()):
                m.d.comb += before.eq(lane)
            with m.If(~tail[LITE_DATA_BYTES - lane :].any()):
                m.d.comb += behind.eq(lane)
        nothing = (request.dwords == 1) & ~first.any()
        dwords = Mux(status == CompletionStatus.SUCCESSFUL, request.dwords[:2], 0)
        m.d.comb += [
            header.address_type.eq(request.address_type),
            header.locked.eq(request.request_type == _READ_LOCKED),
            header.dwords.eq(dwords),
            header.status.eq(status),
            header.requester_id.eq(request.requester_id),
            header.tag.eq(request.tag),
            header.completer_id.eq(request.target_function),
            header.traffic_class.eq(request.traffic_class),
            header.attributes.eq(request.attributes),
            # Of requests that are no memory reads: 4 bytes, address 0.
            header.byte_count.eq(LITE_DATA_BYTES),
        ]
        with m.If(memory & nothing):
            m.d.comb += [header.byte_count.eq(1), header.lower_address.eq(request.dword_address << 2)]
        with m.Elif(memory):
            m.d.comb += [
                header.byte_count.eq(request.dwords * LITE_DATA_BYTES - before - behind),
                header.lower_address.eq(Cat(before, request.dword_address)),
            ]
        user = data.View(CC_USER, cc.tuser)
        m.d.comb += [
            cc.tdata.eq(Cat(header, payload)),
            cc.tlast.eq(1),
            user.is_sop.eq(1),
            user.is_eop.eq(1),
            user.eop_lane[0].eq(dwords + (COMPLETION_DWORDS - 1)),
            cc.tkeep.eq(Cat(lane < COMPLETION_DWORDS + dwords for lane in range(BEAT_DWORDS))),
        ]

"""BAR0 behind the completer: controller registers, doorbells, MSI-X table, and the kernel's registers."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value, unsigned
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import Response, axi_lite
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS as PAGE_BITS
from nearkv_hdl.bus.csr import RegisterBlock, register_shape
from nearkv_hdl.pcie.queue_kernel_port import kernel_access
from nearkv_hdl.spec import queue_registers as qr
from nearkv_hdl.spec.register_map import Access

BAR_ADDRESS_BITS = (qr.BAR_BYTES - 1).bit_length()
_COUNTED = {qr.DROPPED_REQUESTS: "dropped", qr.REFUSED_REQUESTS: "refused"}
REQUESTER = (qr.COMPLETION_TIMEOUTS, qr.UNEXPECTED_COMPLETIONS, qr.LATE_COMPLETIONS)
# Registers that the queue engine drives, and those that it reads.
STATE = (qr.CSTS, qr.FATAL_CAUSE, qr.SQ_HEAD, qr.CQ_TAIL, qr.MSIX_PENDING)
SETTINGS = (qr.CC, qr.AQA, qr.ASQ, qr.ACQ, *qr.DOORBELLS, qr.MSIX_ADDRESS, qr.MSIX_DATA, qr.MSIX_CONTROL)


class QueueController(wiring.Component):
    """The registers of BAR0, one access at a time.

    Formula: the pages of `nearkv_hdl.spec.queue_registers`, as RegisterBlock gives them behaviour. Doorbells
    are held at 0 while CC.en or CSTS.rdy is 0, so that every life of the queues begins at index 0. The
    kernel's page is read through `kernel`; writes there are ignored, since the control port belongs to the
    queue engine. All responses are OKAY.
    Timing: latency 2 from address (and data) to the response, interval 3; of the kernel's page those of
    KernelPort on top. A read and a write at once: the write first.
    Numerics: counters of 32 bits, modulo 2^32.
    Reset: all; only together with the bus.

    Members:
        s_axil: the bus; address and data of a write may come one after the other.
        kernel: the kernel's page.
        dropped, refused: pulses that are counted.
        <name>: registers of the table by their names in lower case: driven by the device, or for it.

    """

    def __init__(self) -> None:
        self._blocks = {
            page: RegisterBlock(
                table, {register: value for register, value in qr.CONSTANTS.items() if register in table}
            )
            for page, table in qr.PAGES.items()
        }
        members = {
            "s_axil": In(axi_lite(BAR_ADDRESS_BITS)),
            "kernel": Out(kernel_access()),
            "dropped": In(1),
            "refused": In(1),
        }
        members |= {register.name.lower(): In(register_shape(register)) for register in (*STATE, *REQUESTER)}
        members |= {register.name.lower(): Out(register_shape(register)) for register in SETTINGS}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        blocks = self._blocks
        for page, block in blocks.items():
            m.submodules[f"page{page}"] = block
        self._connect_registers(m)

        bus = self.s_axil
        address, writes = Signal(BAR_ADDRESS_BITS), Signal()
        page = address[PAGE_BITS:]
        strobes, value = Signal.like(bus.wstrb), Signal.like(bus.wdata)
        read = Signal()  # a register of ours is read or written in this cycle
        write = Signal()
        for number, block in blocks.items():
            access, ours = block.access, page == number
            m.d.comb += [
                access.read_word.eq(address[2:PAGE_BITS]),
                access.write_word.eq(access.read_word),
                access.write_data.eq(value),
                access.write_strobes.eq(strobes),
                access.read.eq(read & ours),
                access.write.eq(write & ours),
            ]
        m.d.comb += [
            self.kernel.request.payload.offset.eq(address),
            bus.rresp.eq(Response.OKAY),
            bus.bresp.eq(Response.OKAY),
        ]
        with m.FSM():
            with m.State("IDLE"):
                with m.If(bus.awvalid & bus.wvalid):
                    m.d.comb += [bus.awready.eq(1), bus.wready.eq(1)]
                    m.d.sync += [address.eq(bus.awaddr), value.eq(bus.wdata), strobes.eq(bus.wstrb)]
                    m.d.sync += writes.eq(1)
                    m.next = "ACCESS"
                with m.Elif(bus.arvalid):
                    m.d.comb += bus.arready.eq(1)
                    m.d.sync += [address.eq(bus.araddr), writes.eq(0)]
                    m.next = "ACCESS"
            with m.State("ACCESS"):
                with m.If(writes):
                    m.d.comb += write.eq(1)
                    m.d.sync += bus.bvalid.eq(1)
                    m.next = "RESPONSE"
                with m.Elif(page == qr.KERNEL_PAGE):
                    m.d.comb += self.kernel.request.valid.eq(1)
                    with m.If(self.kernel.request.ready):
                        m.next = "KERNEL"
                with m.Else():
                    m.d.comb += read.eq(1)
                    m.d.sync += bus.rvalid.eq(1)
                    with m.Switch(page):
                        for number, block in blocks.items():
                            with m.Case(number):
                                m.d.sync += bus.rdata.eq(block.access.read_data)
                    m.next = "RESPONSE"
            with m.State("KERNEL"), m.If(self.kernel.done):
                m.d.sync += [bus.rvalid.eq(1), bus.rdata.eq(self.kernel.read_data)]
                m.next = "RESPONSE"
            with m.State("RESPONSE"), m.If(Mux(writes, bus.bready, bus.rready)):
                m.d.sync += [bus.bvalid.eq(0), bus.rvalid.eq(0)]
                m.next = "IDLE"
        return m

    def _connect_registers(self, m: Module) -> None:
        """Registers to the members of their names, counters to their pulses."""
        served = self.cc.en & self.csts.rdy
        m.d.comb += self._blocks[qr.DOORBELL_PAGE].clear.eq(~served)
        for page, table in qr.PAGES.items():
            for register in table:
                name = register.name.lower()
                inside = getattr(self._blocks[page], name, None)
                if register in _COUNTED:
                    count = Signal(unsigned(8 * register.size_bytes), name=name)
                    m.d.sync += count.eq(count + getattr(self, _COUNTED[register]))
                    m.d.comb += inside.eq(count)
                elif register.access is Access.READ_WRITE:
                    m.d.comb += Value.cast(getattr(self, name)).eq(Value.cast(inside))
                elif register not in qr.CONSTANTS:
                    m.d.comb += Value.cast(inside).eq(Value.cast(getattr(self, name)))

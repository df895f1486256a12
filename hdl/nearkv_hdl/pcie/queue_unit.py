"""All of the native mode but the kernel and the way to memory: BAR0, queues, messages."""

from __future__ import annotations

from amaranth.hdl import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.bus.axi import axi_lite
from nearkv_hdl.bus.axi_lite import ADDRESS_BITS
from nearkv_hdl.bus.csr import register_shape
from nearkv_hdl.pcie.completer import Completer
from nearkv_hdl.pcie.controller import BAR_ADDRESS_BITS, REQUESTER, SETTINGS, STATE, QueueController
from nearkv_hdl.pcie.formats import CC_USER, CQ_USER, packet_stream
from nearkv_hdl.pcie.queue_engine import QueueEngine
from nearkv_hdl.pcie.queue_kernel_port import KernelPort

_OWN = ("msix_enable", "msix_function_mask", "interrupt", "kernel_busy")


class QueueUnit(wiring.Component):
    """Completer, QueueController, QueueEngine and KernelPort as one.

    Formula, timing: those of its parts.
    Numerics: none.
    Reset: all; only together with block, kernel and bus.

    Members:
        s_axis_cq, m_axis_cc: of the block.
        m_axil_kernel: the kernel's control port.
        m_axi: queues and messages, one read and one write at a time.
        completion_timeouts, unexpected_completions, late_completions: of the requester.
        others: as of QueueEngine.

    """

    def __init__(self) -> None:
        self._completer = Completer(BAR_ADDRESS_BITS)
        self._controller = QueueController()
        self._engine = QueueEngine()
        self._port = KernelPort()
        members = {
            "s_axis_cq": In(packet_stream(CQ_USER)),
            "m_axis_cc": Out(packet_stream(CC_USER)),
            "m_axil_kernel": Out(axi_lite(ADDRESS_BITS)),
            "m_axi": self._engine.signature.members["m_axi"],
        }
        members |= {register.name.lower(): In(register_shape(register)) for register in REQUESTER}
        super().__init__(members | {name: In(1) for name in _OWN})

    def elaborate(self, platform):
        m = Module()
        m.submodules.completer = completer = self._completer
        m.submodules.controller = controller = self._controller
        m.submodules.engine = engine = self._engine
        m.submodules.port = port = self._port
        wiring.connect(m, wiring.flipped(self.s_axis_cq), completer.s_axis_cq)
        wiring.connect(m, completer.m_axis_cc, wiring.flipped(self.m_axis_cc))
        wiring.connect(m, completer.m_axil, controller.s_axil)
        wiring.connect(m, controller.kernel, port.host)
        wiring.connect(m, engine.kernel, port.engine)
        wiring.connect(m, port.m_axil, wiring.flipped(self.m_axil_kernel))
        wiring.connect(m, engine.m_axi, wiring.flipped(self.m_axi))
        m.d.comb += [
            controller.dropped.eq(completer.dropped),
            controller.refused.eq(completer.refused),
            *(getattr(engine, name).eq(getattr(self, name)) for name in _OWN),
        ]
        for registers, source, sink in (
            (SETTINGS, controller, engine),
            (STATE, engine, controller),
            (REQUESTER, self, controller),
        ):
            for register in registers:
                name = register.name.lower()
                m.d.comb += Value.cast(getattr(sink, name)).eq(Value.cast(getattr(source, name)))
        return m

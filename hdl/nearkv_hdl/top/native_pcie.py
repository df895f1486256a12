"""The scoring kernel for boards without XRT: behind the UltraScale+ integrated block for PCIe alone."""

from __future__ import annotations

from amaranth.hdl import ClockDomain, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.pcie.controller import REQUESTER
from nearkv_hdl.pcie.formats import BEAT_BYTES, CC_USER, CQ_USER, RC_USER, RQ_USER, packet_stream
from nearkv_hdl.pcie.queue_unit import QueueUnit
from nearkv_hdl.pcie.requester import MemoryRequester
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.top.kernel_core import KernelCore
from nearkv_hdl.top.native_pcie_share import PortShare

MODULE_NAME = "nearkv_native_pcie"
TIMEOUT_PS = 50 * 10**9  # of a completion: 50 ms, the default of Device Control 2 (PCIe Base 3.1, 7.8.16)
_BUS_MASTER_BIT = 2  # of the first function's four in cfg_function_status (PG213)
_PS_PER_S = 10**12


class NativePcie(wiring.Component):
    """Kernel, queues and requester between the four streams of the block.

    Formula: QueueUnit runs the jobs of queues in host memory on KernelCore. Both read and write that memory
    through one MemoryRequester, so that every address of a job is one of the PCIe bus. A read that is not
    answered fails after `timeout_ps`; what comes for it later is counted for as long again.
    Timing: those of the parts. The block's user clock is the only one: 250 MHz for 512 bits at 3.0 x16.
    Numerics: those of Scorer.
    Reset: `user_reset`, synchronous, as the block drives it.

    Args:
        design: the kernel, on a bus of 64 bytes, with one key master.
        primitives: as of KernelCore.
        timeout_ps: completion timeout, from 16 clocks to 2^30.

    Members:
        user_clk, user_reset: of the block.
        s_axis_cq, m_axis_cc, m_axis_rq, s_axis_rc: its streams.
        pcie_cq_np_req: always 1: one more non-posted request may come; CQ itself holds them back.
        cfg_*: its status and MSI-X outputs; bits of functions beyond the first are not used.
        extended_tags: the Extended Tag Field Enable bit of Device Control, which the block does not bring
            out; 0 where nobody reads it, for 32 reads under way.

    Raises ValueError for another bus, more masters or a timeout outside its range, and as KernelCore.

    """

    def __init__(
        self, design: DesignConfig, *, primitives: bool = False, timeout_ps: int = TIMEOUT_PS
    ) -> None:
        if design.bus_bytes != BEAT_BYTES:
            raise ValueError(f"bus_bytes is {design.bus_bytes}; allowed: {BEAT_BYTES}, the PCIe block's")
        if design.key_masters != 1:
            raise ValueError(f"key_masters is {design.key_masters}; allowed: 1, since there is one link")
        self._core = KernelCore(design, primitives=primitives)
        self._queues = QueueUnit()
        self._share = PortShare(BEAT_BYTES)
        self._requester = MemoryRequester()
        self._timeout_cycles = timeout_ps * design.clock_hz // _PS_PER_S
        limit = (1 << len(self._requester.timeout_cycles)) - 1
        if not 16 <= self._timeout_cycles <= limit:
            raise ValueError(
                f"timeout_ps is {timeout_ps}, {self._timeout_cycles} cycles; allowed: 16 to {limit} cycles"
            )
        super().__init__(
            {
                "user_clk": In(1),
                "user_reset": In(1),
                "s_axis_cq": In(packet_stream(CQ_USER)),
                "m_axis_cc": Out(packet_stream(CC_USER)),
                "m_axis_rq": Out(packet_stream(RQ_USER)),
                "s_axis_rc": In(packet_stream(RC_USER)),
                "pcie_cq_np_req": Out(2),
                "cfg_max_payload": In(2),
                "cfg_max_read_req": In(3),
                "cfg_rcb_status": In(4),
                "cfg_function_status": In(16),
                "cfg_interrupt_msix_enable": In(4),
                "cfg_interrupt_msix_mask": In(4),
                "extended_tags": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = sync = ClockDomain()
        m.d.comb += [sync.clk.eq(self.user_clk), sync.rst.eq(self.user_reset)]
        m.submodules.core = core = self._core
        m.submodules.queues = queues = self._queues
        m.submodules.share = share = self._share
        m.submodules.requester = requester = self._requester
        wiring.connect(m, wiring.flipped(self.s_axis_cq), queues.s_axis_cq)
        wiring.connect(m, queues.m_axis_cc, wiring.flipped(self.m_axis_cc))
        wiring.connect(m, requester.rq, wiring.flipped(self.m_axis_rq))
        wiring.connect(m, wiring.flipped(self.s_axis_rc), requester.rc)
        wiring.connect(m, queues.m_axil_kernel, core.s_axi_control)
        wiring.connect(m, core.m_axi_gmem, share.first)
        wiring.connect(m, queues.m_axi, share.second)
        wiring.connect(m, share.m_axi, requester.s_axi)
        counters = (requester.timeouts, requester.unexpected_completions, requester.late_completions)
        m.d.comb += [
            self.pcie_cq_np_req.eq(1),
            queues.interrupt.eq(core.interrupt),
            queues.kernel_busy.eq(share.first_busy),
            queues.msix_enable.eq(self.cfg_interrupt_msix_enable[0]),
            queues.msix_function_mask.eq(self.cfg_interrupt_msix_mask[0]),
            requester.cfg_max_payload.eq(self.cfg_max_payload),
            requester.cfg_max_read_req.eq(self.cfg_max_read_req),
            requester.cfg_rcb_128.eq(self.cfg_rcb_status[0]),
            requester.bus_master_enable.eq(self.cfg_function_status[_BUS_MASTER_BIT]),
            requester.extended_tags.eq(self.extended_tags),
            requester.timeout_cycles.eq(self._timeout_cycles),
            requester.quarantine_cycles.eq(self._timeout_cycles),
            *(
                getattr(queues, register.name.lower()).eq(counter)
                for register, counter in zip(REQUESTER, counters, strict=True)
            ),
        ]
        return m

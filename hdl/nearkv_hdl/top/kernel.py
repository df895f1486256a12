"""The scoring kernel with the ports that XRT's packager looks for."""

from __future__ import annotations

from amaranth.hdl import ClockDomain, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.top.kernel_core import KernelCore

MODULE_NAME = "nearkv_kernel"


class Kernel(wiring.Component):
    """KernelCore under the clock and the active-low reset of an XRT kernel (AMD UG1393, "RTL Kernels").

    Formula: that of KernelCore. Export it under MODULE_NAME.
    Timing: that of KernelCore.
    Numerics: that of Scorer.
    Reset: `ap_rst_n`, synchronous.

    Args:
        design, primitives: as of KernelCore.

    Members:
        ap_clk, ap_rst_n: clock and reset.
        others: as of KernelCore.

    Raises ValueError as KernelCore.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        self._core = KernelCore(design, primitives=primitives)
        super().__init__({"ap_clk": In(1), "ap_rst_n": In(1), **self._core.signature.members})

    def elaborate(self, platform):
        m = Module()
        m.domains.sync = sync = ClockDomain()
        m.d.comb += [sync.clk.eq(self.ap_clk), sync.rst.eq(~self.ap_rst_n)]
        m.submodules.core = core = self._core
        wiring.connect(m, wiring.flipped(self.s_axi_control), core.s_axi_control)
        for name in core.signature.members:
            if name.startswith("m_axi_gmem"):
                wiring.connect(m, getattr(core, name), wiring.flipped(getattr(self, name)))
        m.d.comb += self.interrupt.eq(core.interrupt)
        return m

"""A host with a root complex, and UltraScale+ integrated block as its endpoint, for native PCIe benches."""

from __future__ import annotations

import logging
from typing import Any

from cocotb.triggers import ClockCycles, FallingEdge
from cocotbext.axi import AxiStreamBus
from cocotbext.pcie.core import RootComplex
from cocotbext.pcie.core.tlp import TlpType
from cocotbext.pcie.xilinx.us import UltraScalePlusPcieDevice
from cocotbext.pcie.xilinx.us.tlp import Tlp_us

from nearkv_hdl.spec import queue_registers as qr
from nearkv_sim.benches.axi_harness import random_pauses

CLOCK_HZ = 250e6
_STATUS = (
    *("max_payload", "max_read_req", "rcb_status", "function_status"),
    *("interrupt_msix_enable", "interrupt_msix_mask"),
)


class PcieHost:
    """Root complex, link and block around a device under test.

    Args:
        dut: with the completer's ports of the block.
        clk, rst: its clock and active-high reset, which the block drives.
        requests: it has the requester's ports and the block's status, too.

    Attributes:
        block: the integrated block.
        root: the root complex.
        bar: BAR0 after `start`.

    """

    def __init__(self, dut: Any, clk: Any, rst: Any, *, requests: bool) -> None:
        self.clk = clk
        # Their reports of every TLP take longer than the simulation.
        for name in ("cocotb.pcie", f"cocotb.{dut._name}"):
            logging.getLogger(name).setLevel(logging.ERROR)
        signals = {}
        if requests:
            signals = {f"cfg_{name}": getattr(dut, f"cfg_{name}") for name in _STATUS}
            signals["pcie_cq_np_req"] = dut.pcie_cq_np_req
            signals["rq_bus"] = AxiStreamBus.from_prefix(dut, "m_axis_rq")
            signals["rc_bus"] = AxiStreamBus.from_prefix(dut, "s_axis_rc")
        self.block = UltraScalePlusPcieDevice(
            pcie_generation=3,
            pcie_link_width=16,
            user_clk_frequency=CLOCK_HZ,
            alignment="dword",
            enable_extended_tag=True,
            max_payload_size=512,
            pf0_msix_enable=True,
            pf0_msix_table_size=qr.MSIX_VECTORS - 1,
            pf0_msix_table_bir=0,
            pf0_msix_table_offset=qr.MSIX_TABLE_OFFSET,
            pf0_msix_pba_bir=0,
            pf0_msix_pba_offset=qr.MSIX_PBA_OFFSET,
            user_clk=clk,
            user_reset=rst,
            cq_bus=AxiStreamBus.from_prefix(dut, "s_axis_cq"),
            cc_bus=AxiStreamBus.from_prefix(dut, "m_axis_cc"),
            **signals,
        )
        self.block.functions[0].configure_bar(0, qr.BAR_BYTES)
        self.root = RootComplex()
        self.root.make_port().connect(self.block)
        self.bar: Any = None
        self.function: Any = None

    async def start(self) -> None:
        """Wait for the end of the reset, enumerate, allow bus mastering."""
        await FallingEdge(self.block.user_reset)
        await self.root.enumerate()
        self.function = self.root.find_device(self.block.functions[0].pcie_id)
        await self.function.enable_device()
        await self.function.set_master()
        self.bar = self.function.bar_window[0]

    def pause(self, share: float) -> None:
        """Let the completer's interfaces pause at random."""
        for interface in (self.block.cq_source, self.block.cc_sink):
            interface.set_pause_generator(random_pauses(share))


def request(kind: TlpType, address: int, dwords: int = 1, data: bytes = b"", **fields: Any) -> Tlp_us:
    """A TLP for the CQ interface, all bytes enabled unless `fields` say otherwise."""
    tlp = Tlp_us()
    tlp.fmt_type = kind
    tlp.address = address
    tlp.length = dwords
    tlp.first_be = 0xF
    tlp.last_be = 0xF if dwords > 1 else 0
    tlp.data = bytearray(data)
    for name, value in fields.items():
        setattr(tlp, name, value)
    return tlp


class RawRequests:
    """Requests put straight into the CQ interface, and the completions that come out of CC.

    Nothing of them gets to the root complex, so that requests it would not send can be tried.

    Args:
        host: after its `start`.

    """

    def __init__(self, host: PcieHost) -> None:
        self._block = host.block
        self._clk = host.clk
        self.completions: list[Any] = []
        self._block.send = self._keep

    async def _keep(self, tlp: Any) -> None:
        self.completions.append(tlp)

    async def send(self, tlp: Tlp_us) -> None:
        """Behind all that was sent before."""
        await self._block.cq_source.send(tlp.pack_us_cq())

    async def settle(self, count: int, cycles: int = 400) -> list[Any]:
        """Completions so far, at least `count` unless `cycles` pass, and then no more."""
        for _ in range(cycles):
            if len(self.completions) >= count:
                break
            await ClockCycles(self._clk, 1)
        await ClockCycles(self._clk, 50)
        return self.completions

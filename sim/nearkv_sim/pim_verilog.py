"""The Verilog of a PIM design's instantiated part, as users get it and as it is synthesised."""

from __future__ import annotations

from nearkv_hdl.pim.device import PimDevice
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.verilog import to_verilog

PIM_MODULE = "nearkv_pim_device"


def pim_verilog(design: PimDesign) -> str:
    """Self-contained Verilog of `PimDevice` with the top module PIM_MODULE and flat port names."""
    return to_verilog(PimDevice(design), name=PIM_MODULE)

"""Simulated transports: one card model, with golden arithmetic (`tlm`) or compiled RTL (`rtl`) inside."""

from __future__ import annotations

from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.card import SimulatedCard
from nearkv_sim.engines import GoldenEngine
from nearkv_sim.hardware.pcie import PRESETS, PcieLink, PcieLinkConfig

DEFAULT_MEMORY_BYTES = 4 << 30  # the DDR4 beside a SmartSSD's FPGA (Samsung SmartSSD data sheet)


def open_tlm(
    design: DesignConfig,
    link: str | PcieLinkConfig = "smartssd",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> SimulatedCard:
    """Open a card that scores with golden arithmetic and takes its cycles from the timing formula.

    Args:
        design: the build to imitate.
        link: a name in `hardware.pcie.PRESETS`, or a configuration.
        memory_bytes: size of the card's memory.

    Raises ValueError for an unknown link or a size below 1.

    """
    return SimulatedCard("tlm", design, _link(link), GoldenEngine(design), memory_bytes)


def open_rtl(
    design: DesignConfig,
    link: str | PcieLinkConfig = "smartssd",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> SimulatedCard:
    """Open a card that scores with the compiled scorer; everything else is that of `open_tlm`.

    Raises ValueError as `open_tlm`, CosimBuildError or OSError if the scorer cannot be compiled.
    """
    # Imported late: tlm needs neither Amaranth nor a compiler.
    from nearkv_sim.engines_rtl import RtlEngine

    return SimulatedCard("rtl", design, _link(link), RtlEngine(design), memory_bytes)


def _link(link: str | PcieLinkConfig) -> PcieLink:
    if isinstance(link, PcieLinkConfig):
        return PcieLink(link)
    if link not in PRESETS:
        raise ValueError(f"link is {link!r}; allowed: {', '.join(PRESETS)}, or a PcieLinkConfig")
    return PcieLink(PRESETS[link])

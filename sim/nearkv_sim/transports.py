"""Simulated transports: a card model with golden arithmetic (`tlm`) or compiled RTL (`rtl`); `pcie`."""

from __future__ import annotations

from pathlib import Path

from nearkv_hdl.spec.design import DesignConfig
from nearkv_sim.card import SimulatedCard
from nearkv_sim.engines import Engine, GoldenEngine
from nearkv_sim.hardware.pcie import PRESETS, PcieLink, PcieLinkConfig
from nearkv_sim.pcie.faults import FaultPlan
from nearkv_sim.pcie.tlp_log import TlpLog
from nearkv_sim.pcie.transport import PcieTransport

DEFAULT_MEMORY_BYTES = 4 << 30  # the DDR4 beside a SmartSSD's FPGA (Samsung SmartSSD data sheet)


def open_tlm(
    design: DesignConfig,
    link: str | PcieLinkConfig = "smartssd",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    tlp_log: Path | None = None,
) -> SimulatedCard:
    """Open a card that scores with golden arithmetic and takes its cycles from the timing formula.

    Args:
        design: the build to imitate.
        link: a name in `hardware.pcie.PRESETS`, or a configuration.
        memory_bytes: size of the card's memory.
        tlp_log: file that gets every TLP as a line of JSON (`nearkv_sim.pcie.tlp_log`); None for no log.

    Raises ValueError for an unknown link or a size below 1, OSError for a log that cannot be written.

    """
    return _open("tlm", design, link, GoldenEngine(design), memory_bytes, tlp_log)


def open_rtl(
    design: DesignConfig,
    link: str | PcieLinkConfig = "smartssd",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    tlp_log: Path | None = None,
) -> SimulatedCard:
    """Open a card that scores with the compiled scorer; everything else is that of `open_tlm`.

    Raises ValueError as `open_tlm`, CosimBuildError or OSError if the scorer cannot be compiled.
    """
    # Imported late: tlm needs neither Amaranth nor a compiler.
    from nearkv_sim.engines_rtl import RtlEngine

    return _open("rtl", design, link, RtlEngine(design), memory_bytes, tlp_log)


def open_pcie(
    design: DesignConfig,
    link: str | PcieLinkConfig = "smartssd",
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    tlp_log: Path | None = None,
    faults: FaultPlan | Path | None = None,
) -> PcieTransport:
    """Open a card whose kernel is RTL and whose link, switch and host are simulated TLP by TLP.

    Args:
        design, link, memory_bytes, tlp_log: as of `open_tlm`.
        faults: what happens to which TLP, or a YAML file that says so; None for nothing.

    Raises ValueError as `open_tlm` or for a bad fault plan, OSError for a file that cannot be read or
    written, DeviceError if there is no simulator or the kernel cannot be compiled.
    """
    plan = FaultPlan.load(faults) if isinstance(faults, Path) else faults
    return PcieTransport(design, link_config(link), memory_bytes, tlp_log=tlp_log, faults=plan)


def link_config(link: str | PcieLinkConfig) -> PcieLinkConfig:
    """The configuration that a `link` option names; ValueError lists the known names."""
    if isinstance(link, PcieLinkConfig):
        return link
    if link not in PRESETS:
        raise ValueError(f"link is {link!r}; allowed: {', '.join(PRESETS)}, or a PcieLinkConfig")
    return PRESETS[link]


def _open(
    name: str,
    design: DesignConfig,
    link: str | PcieLinkConfig,
    engine: Engine,
    memory_bytes: int,
    tlp_log: Path | None,
) -> SimulatedCard:
    config = link_config(link)
    if tlp_log is None:
        return SimulatedCard(name, design, PcieLink(config), engine, memory_bytes)
    log = TlpLog(tlp_log)
    observed = PcieLink(config, observer=log.write_analytic)
    try:
        return SimulatedCard(name, design, observed, engine, memory_bytes, log.close)
    except ValueError:
        log.close()
        raise

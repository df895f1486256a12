"""Alveo U50 and SmartSSD as Amaranth platforms. Their Vivado scripts are generated and have never been run.

In a card of the XRT flow the kernel's pins belong to the shell, and Vitis links it in (see `nearkv rtl` and
its `package/`). What a platform is for here is the part itself: place and route of the scorer alone, at the
design's clock, which no open tool can do for UltraScale+.
"""

from __future__ import annotations

from amaranth.build import Attrs, Clock, DiffPairs, Pins, PinsN, Platform, Resource
from amaranth.hdl import ClockDomain, ClockSignal, Elaboratable, Instance, Module, ResetSignal, Signal
from amaranth.lib import io
from amaranth.vendor import XilinxPlatform

from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.few_pins import FewPins
from nearkv_hdl.spec.design import DesignConfig

_STIMULUS_TAPS = (31, 21, 1, 0)  # x^32 + x^22 + x^2 + x + 1, maximal length (Xilinx XAPP 052, table 3)


class _Card(XilinxPlatform):
    toolchain = "Vivado"
    connectors = ()

    @property
    def part(self) -> str:
        """Name of the part in `nearkv_hdl.spec.designs`."""
        return f"{self.device}-{self.package}-{self.speed}"


class AlveoU50(_Card):
    """AMD Alveo U50. Pins: the card's published master constraints (alveo-u50-xdc of 2021-05-05)."""

    device = "xcu50"
    package = "fsvh2104"
    speed = "2-e"
    resources = (
        Resource("clk100", 0, DiffPairs("G17", "G16", dir="i"), Clock(100e6), Attrs(IOSTANDARD="LVDS")),
        Resource("clk100", 1, DiffPairs("BB18", "BC18", dir="i"), Clock(100e6), Attrs(IOSTANDARD="LVDS")),
        # Transceiver inputs: no I/O standard. 0 serves lanes 0 to 7, 1 all sixteen.
        Resource("pcie_refclk", 0, DiffPairs("AB9", "AB8", dir="i"), Clock(100e6)),
        Resource("pcie_refclk", 1, DiffPairs("AF9", "AF8", dir="i"), Clock(100e6)),
        Resource("pcie_reset", 0, PinsN("AW27", dir="i"), Attrs(IOSTANDARD="LVCMOS18", PULLUP="true")),
        # Must be driven low by designs without HBM, or the card's controller takes it for overheated.
        Resource("hbm_cattrip", 0, Pins("J18", dir="o"), Attrs(IOSTANDARD="LVCMOS18")),
    )


class SmartSsdKu15P(_Card):
    """Samsung SmartSSD. Its pin map is not public, so that it has no resources."""

    device = "xcku15p"
    package = "ffva1156"
    speed = "2-e"
    resources = ()


class ScorerOnCard(Elaboratable):
    """The scorer of a design on its part, without a pin but what the card demands, for timing by Vivado.

    Formula: as FewPins, fed by a linear-feedback shift register; what comes out ends in a register that
    synthesis must keep.
    Timing: the clock is the configuration oscillator of STARTUPE3; the constraint is the design's clock.

    Args:
        design: the scorer's build, for the card's part.

    Raises ValueError for a design of another part.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design

    def elaborate(self, platform: Platform):
        if platform.part != self.design.device.part:
            raise ValueError(
                f"design {self.design.name} is for {self.design.device.part}; the card has {platform.part}"
            )
        m = Module()
        m.domains.sync = ClockDomain()
        oscillator = Signal()
        ready = Signal()
        m.submodules.startup = Instance("STARTUPE3", o_CFGMCLK=oscillator, o_EOS=ready)
        m.submodules.clock_buffer = Instance("BUFG", i_I=oscillator, o_O=ClockSignal())
        platform.add_clock_constraint(oscillator, self.design.clock_hz)
        m.d.comb += ResetSignal().eq(~ready)

        m.submodules.scorer = scorer = FewPins(Scorer(self.design, primitives=True))
        stimulus = Signal(32, init=1)
        kept = Signal(attrs={"dont_touch": "true"}, reset_less=True)
        feedback = stimulus[_STIMULUS_TAPS[0]]
        for tap in _STIMULUS_TAPS[1:]:
            feedback ^= stimulus[tap]
        m.d.sync += [stimulus.eq(stimulus << 1 | feedback), kept.eq(scorer.o)]
        m.d.comb += scorer.i.eq(stimulus[-1])
        if any(resource.name == "hbm_cattrip" for resource in platform.resources.values()):
            m.submodules.cattrip = io.Buffer("o", platform.request("hbm_cattrip", dir="-"))  # o stays 0
        return m

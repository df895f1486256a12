"""ULX3S board with LFE5U-85F: the serial scorer on its USB-serial converter.

Pins come from amaranth-boards (ULX3S_85F_Platform). The board's 16-bit SDRAM could not feed the scorer at its
rate; over the serial line keys arrive at about a hundred thousandth of it. What this shows is that the scorer
works on a part, not how fast.
"""

from __future__ import annotations

from amaranth.build import Platform
from amaranth.hdl import Elaboratable, Module
from amaranth.lib import io
from amaranth_boards.ulx3s import ULX3S_85F_Platform

from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.top.uart_scorer import UartScorer

BAUD = 1_000_000  # the FT231X makes it exactly, and the board's 25 MHz are 25 cycles a bit
TIMEOUT_MS = 100  # pauses of a USB host between two packets are some milliseconds


class Ulx3s85F(ULX3S_85F_Platform):
    """The board, as amaranth-boards describes it."""

    @property
    def part(self) -> str:
        """Name of the part in `nearkv_hdl.spec.designs`."""
        return f"{self.device}-{self.speed}{self.package}C"


class Ulx3sUartScorer(Elaboratable):
    """The serial scorer with its pins: UART 0 (USB), LED 0 on while a request is worked on.

    Formula: see UartScorer.
    Timing: the board's oscillator is the only clock.

    Args:
        design: the scorer's build, for the board's part.

    Raises ValueError for a design of another part.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design

    def elaborate(self, platform: Platform):
        if platform.part != self.design.device.part:
            raise ValueError(
                f"design {self.design.name} is for {self.design.device.part}; the board has {platform.part}"
            )
        clock_hz = int(platform.default_clk_frequency)
        m = Module()
        m.submodules.scorer = scorer = UartScorer(
            self.design, clock_hz // BAUD, clock_hz * TIMEOUT_MS // 1000, primitives=True
        )
        uart = platform.request("uart", 0, dir={"rx": "-", "tx": "-", "rts": "-", "dtr": "-"})
        m.submodules.rx = rx = io.Buffer("i", uart.rx)
        m.submodules.tx = tx = io.Buffer("o", uart.tx)
        m.submodules.led = led = io.Buffer("o", platform.request("led", 0, dir="-"))
        m.d.comb += [scorer.rx.eq(rx.i), tx.o.eq(scorer.tx), led.o.eq(scorer.o_busy)]
        return m

"""Flow control for a pipeline of fixed latency whose registers share one clock enable."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class PipelineControl(wiring.Component):
    """Valid bits and clock enable of a pipeline of `latency` register ranks.

    Formula: `enable` = last rank empty, or its token taken. With `enable` every rank moves on by one and
    the first takes `i_valid`; without it nothing moves.
    Timing: latency `latency`, interval 1. A pause of the source travels through as an empty rank; a pause
    of the sink stops the pipeline once a token has reached the last rank, and not before.
    Cuts: `o_valid` comes from a register. `o_ready` reaches `i_ready` and `enable` through one gate: put a
    SkidBuffer where that path is too long.
    Numerics: none.
    Reset: the valid bits.

    Args:
        latency: register ranks of the data path, from 1.

    Members:
        i_valid: a token is offered.
        i_ready: it is taken; does not depend on `i_valid`.
        o_valid: a token has reached the last rank.
        o_ready: it is taken.
        enable: clock enable of the data registers.

    Raises ValueError if `latency` is below 1.

    """

    def __init__(self, latency: int) -> None:
        if latency < 1:
            raise ValueError(f"latency is {latency}; allowed: from 1")
        self._latency = latency
        super().__init__(
            {
                "i_valid": In(1),
                "i_ready": Out(1),
                "o_valid": Out(1),
                "o_ready": In(1),
                "enable": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from `i_valid` to `o_valid` without stalls."""
        return self._latency

    @property
    def interval(self) -> int:
        """Cycles between two tokens."""
        return 1

    @property
    def capacity(self) -> int:
        """Tokens the pipeline can hold."""
        return self._latency

    def elaborate(self, platform):
        m = Module()
        valid = Signal(self.latency)
        m.d.comb += [
            self.o_valid.eq(valid[-1]),
            self.enable.eq(~valid[-1] | self.o_ready),
            self.i_ready.eq(self.enable),
        ]
        with m.If(self.enable):
            m.d.sync += valid.eq(Cat(self.i_valid, valid[:-1]))
        return m

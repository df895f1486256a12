"""Scores kept between the phases, and their running maxima: the row-wise max unit."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.attention import EMPTY_MAXIMUM, LOGIT, MAXIMUM
from nearkv_hdl.spec.pim_design import SLOTS, PimDesign


class ScoreMemory(wiring.Component):
    """Two slots of logits in order of arrival, each with its integer maximum and its count.

    Formula: maximum[slot] = max over the slot's logits of s >> 16, −2^15 for an empty slot.
    Timing: a logit and its maximum can be read in the cycle after `write`; `score` follows `address` by
    `latency` = 1 cycle; interval 1.
    Numerics: none beside the integer comparison. A logit beyond block_tokens is dropped and raises
    `overrun`.
    Reset: counts and maxima.

    Args:
        design: block_tokens.

    Members:
        write, write_slot, write_score: store a logit.
        clear, clear_slot: empty a slot; must not come together with a write.
        address_slot, address: logit to read.
        score: that logit, one cycle later.
        maximum, count: per slot.
        overrun: this write finds its slot full.

    """

    def __init__(self, design: PimDesign) -> None:
        self.block_tokens = design.block_tokens
        super().__init__(
            {
                "write": In(1),
                "write_slot": In(1),
                "write_score": In(shape_of(LOGIT)),
                "clear": In(1),
                "clear_slot": In(1),
                "address_slot": In(1),
                "address": In(range(design.block_tokens)),
                "score": Out(shape_of(LOGIT)),
                "maximum": Out(data.ArrayLayout(shape_of(MAXIMUM), SLOTS)),
                "count": Out(data.ArrayLayout(range(design.block_tokens + 1), SLOTS)),
                "overrun": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from address to score."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two writes, and between two reads."""
        return 1

    def elaborate(self, platform):
        m = Module()
        m.submodules.scores = scores = memory.Memory(
            shape=shape_of(LOGIT), depth=SLOTS * self.block_tokens, init=[]
        )
        write, read = scores.write_port(), scores.read_port()
        integer = self.write_score >> LOGIT.fraction_bits
        m.d.comb += [
            write.data.eq(self.write_score),
            read.addr.eq(self.address_slot * self.block_tokens + self.address),
            self.score.eq(read.data),
        ]
        for slot in range(SLOTS):
            count = Signal(range(self.block_tokens + 1), name=f"count{slot}")
            maximum = Signal(shape_of(MAXIMUM), name=f"maximum{slot}", init=EMPTY_MAXIMUM)
            m.d.comb += [self.count[slot].eq(count), self.maximum[slot].eq(maximum)]
            with m.If(self.clear & (self.clear_slot == slot)):
                m.d.sync += [count.eq(0), maximum.eq(EMPTY_MAXIMUM)]
            with m.Elif(self.write & (self.write_slot == slot)):
                full = count == self.block_tokens
                m.d.comb += [
                    write.addr.eq(slot * self.block_tokens + count),
                    write.en.eq(~full),
                    self.overrun.eq(full),
                ]
                m.d.sync += [
                    count.eq(count + ~full),
                    maximum.eq(Mux(integer > maximum, integer, maximum)),
                ]
        return m

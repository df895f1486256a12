"""From stored logits to weights under a maximum: what precedes the value phase of a processing unit."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, fifo, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.exp_polynomial import Exp2Polynomial
from nearkv_hdl.arith.exp_unit import ExpUnit
from nearkv_hdl.spec.attention import DEFAULT_DEGREE, LOGIT, MAXIMUM, WEIGHT
from nearkv_hdl.spec.formats import Format

BELOW = Format(6, signed=False)  # M − n; 63 stands for everything beyond, which weighs 0
WEIGHT_ENTRY = data.StructLayout({"mantissa": shape_of(WEIGHT), "below": BELOW.width, "above_maximum": 1})
_QUEUE_DEPTH = 4
_QUEUE_LATENCY = 2  # cycles from a write into the empty queue to its valid output


class WeightPath(wiring.Component):
    """Reads a block's logits ahead of its value rows and makes weights 2^f with their distance M − n.

    Formula: mantissa = polynomial of the logit's fraction, below = min(M − (s >> 16), 63).
    Timing: first weight `latency` cycles after `start`, one more every `interval` = 2 cycles, fewer than the
    four beats a row takes; a queue of four keeps them until `take`.
    Numerics: mantissa UQ1.15 as ExpUnit; a logit above M sets `above_maximum` and weighs as if equal to it.
    Reset: counters, queue pointers.

    Args:
        block_tokens: logits of a block at most.
        degree: of the polynomial.

    Members:
        start: begin a block of `tokens` logits from `first_address`; the block before must be taken.
        tokens, first_address, maximum: of the block, sampled with start.
        address: logit to read; `score` follows one cycle later.
        score: the logit read.
        weight, weight_valid: next weight.
        take: it is used up.

    """

    def __init__(self, block_tokens: int, degree: int = DEFAULT_DEGREE) -> None:
        self.block_tokens = block_tokens
        self._exp = ExpUnit(Exp2Polynomial(degree))
        super().__init__(
            {
                "start": In(1),
                "tokens": In(range(block_tokens + 1)),
                "first_address": In(range(block_tokens)),
                "maximum": In(shape_of(MAXIMUM)),
                "address": Out(range(block_tokens)),
                "score": In(shape_of(LOGIT)),
                "weight": Out(WEIGHT_ENTRY),
                "weight_valid": Out(1),
                "take": In(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from start to the first weight: address, memory, polynomial, queue."""
        return 1 + 1 + self._exp.latency + _QUEUE_LATENCY

    @property
    def interval(self) -> int:
        """Cycles between two weights: a logit is read while the one before enters the polynomial."""
        return 2

    def elaborate(self, platform):
        m = Module()
        m.submodules.exp = exp = self._exp
        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=WEIGHT_ENTRY.size, depth=_QUEUE_DEPTH)

        address = Signal(range(self.block_tokens), reset_less=True)
        left = Signal(range(self.block_tokens + 1))
        maximum = Signal(shape_of(MAXIMUM), reset_less=True)
        at_output = Signal()  # the memory shows the logit at `address`
        m.d.comb += [
            self.address.eq(address),
            exp.i.payload.x.eq(self.score),
            exp.i.valid.eq(at_output),
        ]
        with m.If(self.start):
            m.d.sync += [address.eq(self.first_address), left.eq(self.tokens), maximum.eq(self.maximum)]
        with m.Elif(at_output & exp.i.ready):
            m.d.sync += [address.eq(address + 1), left.eq(left - 1), at_output.eq(0)]
        with m.Elif(left != 0):
            m.d.sync += at_output.eq(1)

        entry = data.View(WEIGHT_ENTRY, queue.w_data)
        below = Signal(MAXIMUM.width + 1)
        above = exp.o.payload.exponent > maximum
        m.d.comb += [
            below.eq(Mux(above, 0, maximum - exp.o.payload.exponent)),
            entry.mantissa.eq(exp.o.payload.mantissa),
            entry.below.eq(Mux(below > BELOW.max, BELOW.max, below)),
            entry.above_maximum.eq(above),
            queue.w_en.eq(exp.o.valid),
            exp.o.ready.eq(queue.w_rdy),
            self.weight.eq(queue.r_data),
            self.weight_valid.eq(queue.r_rdy),
            queue.r_en.eq(self.take),
        ]
        return m

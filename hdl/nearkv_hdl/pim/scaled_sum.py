"""Sums of numbers that are first scaled by a power of two with a fractional exponent."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.attention import SUM, WEIGHT
from nearkv_hdl.spec.formats import Format

FACTOR_SHIFT = Format(6, signed=False)  # −n of 2^(n+f); 63 stands for everything beyond
COARSE_BITS = 3  # low bits of the shift, done in the second of its two ranks


class ScaledSum(wiring.Component):
    """Σ over consecutive numbers of x · 2^−shift · mantissa, on `lanes` lanes.

    Formula: o = Σ since `first` of rhu(x · mantissa, 15 + shift). With mantissa 2^15 and shift 0 a number
    passes unchanged, so plain sums need no second path.
    Timing: latency 5 (operands, product, two ranks of shift, sum), interval 1, all registers under `enable`.
    Numerics: the product is exact (64 bits); one rounding half up per number, error at most ½ of the last
    place of x; the sum is exact in `sum.width` bits.
    Reset: none, all registers hold data.

    Args:
        lanes: numbers side by side.
        terms: numbers of a sum at most.

    Members:
        enable: clock enable of every register.
        x: signed 48-bit numbers.
        mantissa: UQ1.15 factor of all lanes.
        shift: its exponent, negated; 63 gives 0.
        present: a number enters; without it the sum stays as it is.
        first: this number starts a sum.
        o: sums, `latency` cycles later.

    """

    def __init__(self, lanes: int, terms: int) -> None:
        if lanes < 1:
            raise ValueError(f"lanes is {lanes}; allowed: from 1")
        self.lanes = lanes
        self.sum = SUM.sum_of(terms)
        super().__init__(
            {
                "enable": In(1),
                "x": In(shape_of(SUM)).array(lanes),
                "mantissa": In(shape_of(WEIGHT)),
                "shift": In(FACTOR_SHIFT.width),
                "present": In(1),
                "first": In(1),
                "o": Out(shape_of(self.sum)).array(lanes),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a number to the sum that contains it: operands, product, two shifts, sum."""
        return 5

    @property
    def interval(self) -> int:
        """Cycles between two numbers."""
        return 1

    def elaborate(self, platform):
        m = Module()
        shifts, firsts, presents = [self.shift], [self.first], [self.present]
        for rank in range(self.latency - 1):
            shift = Signal(FACTOR_SHIFT.width, name=f"shift{rank}", reset_less=True)
            first = Signal(name=f"first{rank}", reset_less=True)
            present = Signal(name=f"present{rank}", reset_less=True)
            with m.If(self.enable):
                m.d.sync += [shift.eq(shifts[-1]), first.eq(firsts[-1]), present.eq(presents[-1])]
            shifts.append(shift)
            firsts.append(first)
            presents.append(present)
        mantissa = Signal.like(self.mantissa, reset_less=True)
        with m.If(self.enable):
            m.d.sync += mantissa.eq(self.mantissa)

        # One bit more than the result needs is kept, so that rounding is an addition after the shift.
        kept = signed(SUM.width + WEIGHT.width - (WEIGHT.fraction_bits - 1))
        for lane in range(self.lanes):
            x = Signal(shape_of(SUM), name=f"x{lane}", reset_less=True)
            product = Signal(kept, name=f"product{lane}", reset_less=True)
            coarse = Signal(kept, name=f"coarse{lane}", reset_less=True)
            rounded = Signal(shape_of(SUM), name=f"rounded{lane}", reset_less=True)
            total = Signal(shape_of(self.sum), name=f"total{lane}", reset_less=True)
            fine = coarse >> shifts[3][:COARSE_BITS]
            with m.If(self.enable):
                m.d.sync += [
                    x.eq(self.x[lane]),
                    product.eq((x * mantissa) >> (WEIGHT.fraction_bits - 1)),
                    coarse.eq(product >> Cat(Const(0, COARSE_BITS), shifts[2][COARSE_BITS:])),
                    rounded.eq((fine + 1) >> 1),
                ]
            with m.If(self.enable & presents[4]):
                m.d.sync += total.eq(Mux(firsts[4], 0, total) + rounded)
            m.d.comb += self.o[lane].eq(total)
        assert len(firsts) == self.latency
        return m

"""One lane of the expander: code times scale as FP16."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.ranks import Ranks
from nearkv_hdl.migrate.quantise_lane import SCALE, SIGNIFICAND_BITS
from nearkv_hdl.spec.attention import FP16_BITS, FP16_EXPONENT_BITS, FP16_EXPONENT_NAN, FP16_FRACTION_BITS
from nearkv_hdl.spec.formats import CODE

_PRODUCT_BITS = CODE.width + SIGNIFICAND_BITS - 1  # 128 · 2047 at most
_MAX_RIGHT = _PRODUCT_BITS - SIGNIFICAND_BITS


class ExpandLane(wiring.Component):
    """Code times scale, rounded once.

    Formula: code · scale to FP16, to nearest even; beyond 65504 saturating, code 0 gives +0.
    Timing: latency 4 (product, length, shift, rounding), interval 1, all registers under `enable`.
    Numerics: the product of 7 (code −128: 8) by 11 bits is exact, then one rounding.
    Reset: none, all registers hold data.

    Members:
        enable: clock enable of every register.
        code: of the number.
        scale: SCALE of its row, a finite number.
        o: FP16 bits, `latency` cycles later.

    """

    def __init__(self) -> None:
        super().__init__(
            {"enable": In(1), "code": In(shape_of(CODE)), "scale": In(SCALE), "o": Out(FP16_BITS)}
        )

    @property
    def latency(self) -> int:
        """Cycles from a code to its number."""
        return 4

    @property
    def interval(self) -> int:
        """Cycles between two codes."""
        return 1

    def elaborate(self, platform):
        m = Module()
        rank = Ranks(m, self.enable)

        magnitude = Mux(self.code < 0, -self.code, self.code)[: CODE.width]
        at = rank(
            product=(magnitude * self.scale.significand)[:_PRODUCT_BITS],
            field=self.scale.field,
            negative=self.code[-1],
        )
        length = Const(0, range(_PRODUCT_BITS + 1))
        for position in range(_PRODUCT_BITS):
            length = Mux(at["product"][position], position + 1, length)
        at = rank(**at, length=length[: _PRODUCT_BITS.bit_length()])

        # Eleven bits are kept; a short product moves up as far as its exponent allows.
        right, left = Signal(range(_MAX_RIGHT + 1)), Signal(range(SIGNIFICAND_BITS + 1))
        missing, room = SIGNIFICAND_BITS - at["length"], at["field"] - 1
        with m.If(at["length"] > SIGNIFICAND_BITS):
            m.d.comb += right.eq(at["length"] - SIGNIFICAND_BITS)
        with m.Else():
            m.d.comb += left.eq(Mux(missing < room, missing, room))
        doubled = Cat(Const(0, 1), at["product"]) >> right  # with the half below the last place
        below = (at["product"] & (((Const(1, 1) << right) - 1).as_unsigned() >> 1)).any()
        at = rank(
            kept=(doubled[1:] << left)[:SIGNIFICAND_BITS],
            up=doubled[0] & (below | doubled[1]),
            field=(at["field"] + right - left - 1)[: FP16_EXPONENT_BITS + 1],
            zero=at["length"] == 0,
            negative=at["negative"],
        )
        # A significand that rounds up to 2048 carries into the field.
        bits = Signal(FP16_EXPONENT_BITS + 2 + FP16_FRACTION_BITS)
        m.d.comb += bits.eq(Cat(Const(0, FP16_FRACTION_BITS), at["field"]) + at["kept"] + at["up"])
        infinity = FP16_EXPONENT_NAN << FP16_FRACTION_BITS
        finite = Mux(bits >= infinity, infinity - 1, bits)[: FP16_BITS - 1]
        at = rank(o=Mux(at["zero"], 0, Cat(finite, at["negative"])))
        m.d.comb += self.o.eq(at["o"])
        assert rank.count == self.latency
        return m

"""2^f from tables: a plain lookup, and a straight line per segment."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.exp_table import EXP_FRACTION, EXP_MANTISSA, LOOKUPS, SEGMENTS


def _core_signature() -> dict:
    return {
        "enable": In(1),
        "f": In(shape_of(EXP_FRACTION)),
        "m": Out(shape_of(EXP_MANTISSA)),
        "rounded_up": Out(1),
    }


def _check_index_bits(index_bits: int, known: dict) -> None:
    if index_bits not in known:
        raise ValueError(f"index_bits is {index_bits!r}; allowed: {', '.join(map(str, known))}")


class Exp2Lookup(wiring.Component):
    """Mantissa of 2^f, 0 <= f < 1, read from a table.

    Formula: m = table[rhu(f, 16 − index_bits)]; one past the last entry, the largest mantissa. The nearest
    index, not the one below: only so is 2^0 exact without doubling the table.
    Timing: latency 2 (index, entry), interval 1; without `enable` every register holds.
    Numerics: f UQ0.16, m UQ1.15 (entries rounded to 10, 11 or 15 fraction bits for 8, 9 and 12 index bits).
    Largest relative error .179 %, .0919 %, .00998 %; exact at 0, never falls.
    Area: a memory of 2^index_bits words and an adder for the index.
    Reset: none.

    Args:
        index_bits: 8, 9 or 12.

    Members:
        enable: clock enable of every register.
        f: fraction.
        m: mantissa, `latency` enabled cycles later.
        rounded_up: 0, an entry knows nothing of its rounding.

    Raises ValueError for another number of index bits.

    """

    def __init__(self, index_bits: int = 12) -> None:
        _check_index_bits(index_bits, LOOKUPS)
        self.index_bits = index_bits
        self.accuracy = LOOKUPS[index_bits].accuracy
        super().__init__(_core_signature())

    @property
    def latency(self) -> int:
        """Enabled cycles from `f` to `m`."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two fractions."""
        return 1

    def elaborate(self, platform):
        m = Module()
        dropped = EXP_FRACTION.width - self.index_bits
        index = Signal(self.index_bits, reset_less=True)
        beyond = Signal(reset_less=True)
        with m.If(self.enable):
            m.d.sync += Cat(index, beyond).eq(self.f[dropped:] + self.f[dropped - 1])

        entries = LOOKUPS[self.index_bits].entries
        # The leading one of a mantissa is not stored.
        m.submodules.table = table = memory.Memory(
            shape=EXP_MANTISSA.fraction_bits,
            depth=len(entries),
            init=[entry - (1 << EXP_MANTISSA.fraction_bits) for entry in entries],
        )
        port = table.read_port()
        was_beyond = Signal(reset_less=True)
        with m.If(self.enable):
            m.d.sync += was_beyond.eq(beyond)
        m.d.comb += [
            port.addr.eq(index),
            port.en.eq(self.enable),
            self.m.eq(Mux(was_beyond, EXP_MANTISSA.max, Cat(port.data, 1))),
        ]
        return m


class Exp2Segments(wiring.Component):
    """Mantissa of 2^f, 0 <= f < 1, as a straight line in each of 2^index_bits segments.

    Formula: i = upper index_bits of f, r = the next 8 or 9 bits; m = (base[i] + slope[i]·r) >> k.
    Timing: latency 3 (table, product, sum), interval 1; without `enable` every register holds.
    Numerics: f UQ0.16, m UQ1.15; k and all entries in `SEGMENTS`, rounding is part of the base. Largest
    relative error .0935 %, .00873 %, .00190 % for 3, 5 and 7 index bits; exact at 0, never falls.
    Area: a table of 2^index_bits bases and slopes, one multiplier of at most 11 × 9 bits.
    Reset: none.

    Args:
        index_bits: 3, 5 or 7.

    Members:
        enable: clock enable of every register.
        f: fraction.
        m: mantissa, `latency` enabled cycles later.
        rounded_up: the value before rounding lies below m; else m or above.

    Raises ValueError for another number of index bits.

    """

    def __init__(self, index_bits: int = 5) -> None:
        _check_index_bits(index_bits, SEGMENTS)
        self.index_bits = index_bits
        self.accuracy = SEGMENTS[index_bits].accuracy
        super().__init__(_core_signature())

    @property
    def latency(self) -> int:
        """Enabled cycles from `f` to `m`."""
        return 3

    @property
    def interval(self) -> int:
        """Cycles between two fractions."""
        return 1

    def elaborate(self, platform):
        m = Module()
        constants = SEGMENTS[self.index_bits]
        entry_layout = data.StructLayout(
            {
                "base": max(constants.bases).bit_length(),
                "slope": max(constants.slopes).bit_length(),
            }
        )
        m.submodules.table = table = memory.Memory(
            shape=entry_layout,
            depth=len(constants.bases),
            init=[
                {"base": base, "slope": slope}
                for base, slope in zip(constants.bases, constants.slopes, strict=True)
            ],
        )
        port = table.read_port()
        m.d.comb += [port.addr.eq(self.f[-self.index_bits :]), port.en.eq(self.enable)]

        below = EXP_FRACTION.width - self.index_bits
        r = Signal(constants.remainder_bits, reset_less=True)
        product = Signal(len(port.data.slope) + len(r), reset_less=True)
        base = Signal(len(port.data.base), reset_less=True)
        shift = constants.product_fraction_bits
        total = Signal(EXP_MANTISSA.width, reset_less=True)
        upper_half = Signal(reset_less=True)
        with m.If(self.enable):
            m.d.sync += [
                r.eq(self.f[below - constants.remainder_bits : below]),
                product.eq(port.data.slope * r),
                base.eq(port.data.base),
                Cat(upper_half, total).eq((base + product) >> (shift - 1)),
            ]
        # The base holds half a unit for rounding, so a fraction below it was rounded up.
        m.d.comb += [self.m.eq(total), self.rounded_up.eq(~upper_half)]
        return m

"""Sums as 8-bit codes under a shift per group, and back: the arithmetic of packed partials."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.arith.ranks import Ranks
from nearkv_hdl.spec.attention import SUM
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.packed_partial import MAX_SHIFT, max_shift

_FINE_BITS = 4  # of a shift: by up to 15 in one rank, by multiples of 16 in another


class GroupShift(wiring.Component):
    """The shift of a group of sums.

    Formula: the smallest e with max |x| < 127.5 · 2^e. An e is too small for x exactly if |x| has a bit from
    e + 7 up, or the eight bits e − 1 to e + 6 all ones. Bit e of a vector says so of bit e + 7 and of these
    ones; vectors are ORed over the group, and the shift is the length of the result.
    Timing: latency 4 from a group's last beat (magnitudes, vectors, OR over beats, length), interval 1,
    free-running.
    Numerics: exact, −2^(sum_bits − 1) included.
    Reset: valid bits.

    Args:
        lanes: sums per beat, from 1.
        sum_bits: width of a sum, from 9.

    Members:
        present: a beat is there.
        first, last: it is its group's first, its last.
        sums: the beat.
        o_valid: a group is complete, for one cycle.
        o: its shift, 0 to sum_bits − 7.

    Raises ValueError for fewer lanes or bits.

    """

    def __init__(self, lanes: int, sum_bits: int = SUM.width) -> None:
        if lanes < 1:
            raise ValueError(f"lanes is {lanes}; allowed: from 1")
        self.lanes = lanes
        self.max_shift = max_shift(sum_bits)
        super().__init__(
            {
                "present": In(1),
                "first": In(1),
                "last": In(1),
                "sums": In(signed(sum_bits)).array(lanes),
                "o_valid": Out(1),
                "o": Out(range(self.max_shift + 1)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a group's last beat to its shift."""
        return 4

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        rank = Ranks(m, Value.cast(1))
        magnitudes = {
            f"magnitude{lane}_": Mux(x < 0, -x, x).as_unsigned()[: len(x)] for lane, x in enumerate(self.sums)
        }
        at = rank(**magnitudes, first=self.first, present=self.present)
        vectors = [self._beyond(at[name]) for name in magnitudes]
        at = rank(beyond=_any_of(vectors), first=at["first"], present=at["present"])
        # A beat that a reset overtakes leaves nothing behind: the next group's first one starts afresh.
        beyond = Signal(self.max_shift, reset_less=True)
        with m.If(at["present"]):
            m.d.sync += beyond.eq(at["beyond"] | Mux(at["first"], 0, beyond))
        m.d.comb += self.o.eq(rank(shift=_length(beyond))["shift"])

        complete = Signal(self.latency - 1)
        m.d.sync += [
            complete.eq(Cat(self.present & self.last, complete[:-1])),
            self.o_valid.eq(complete[-1]),
        ]
        return m

    def _beyond(self, magnitude: Value) -> Value:
        """Bit e is set, or one above it, if and only if |x| ≥ 127.5 · 2^e."""
        ones, length = magnitude, 1
        while length < CODE.width:
            ones, length = ones & (ones >> length), 2 * length
        return magnitude[CODE.width - 1 :] | Cat(0, ones[: self.max_shift - 1])


def _any_of(vectors: list[Value]) -> Value:
    result = vectors[0]
    for vector in vectors[1:]:
        result = result | vector
    return result


def _length(bits: Value) -> Value:
    """Position above the highest one, 0 without: by halves, so that its depth is logarithmic."""
    index = []
    rest = bits
    half = 1 << (len(bits) - 1).bit_length() >> 1
    while half:
        upper = rest[half:].any()
        rest = Mux(upper, rest[half:], rest[:half])
        index.append(upper)
        half >>= 1
    return Cat(*reversed(index)) + rest.any()


class SumToCode(wiring.Component):
    """Code of one sum under its group's shift.

    Formula: rhu(x, e) = (x + 2^(e−1)) >> e; x itself at e = 0.
    Timing: latency 3 (shift by 16s, by less, rounding), interval 1, all registers under `enable`.
    Numerics: rounds half up; exact for e = 0. Under GroupShift's e codes lie within ±127, under a smaller one
    they are undefined.
    Reset: none, all registers hold data.

    Args:
        sum_bits: width of a sum, from 9.

    Members:
        enable: clock enable of every register.
        sum: signed.
        shift: e, 0 to sum_bits − 7.
        o: code, `latency` cycles later.

    Raises ValueError for fewer bits.

    """

    def __init__(self, sum_bits: int = SUM.width) -> None:
        super().__init__(
            {
                "enable": In(1),
                "sum": In(signed(sum_bits)),
                "shift": In(range(max_shift(sum_bits) + 1)),
                "o": Out(shape_of(CODE)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a sum to its code."""
        return 3

    @property
    def interval(self) -> int:
        """Cycles between two sums."""
        return 1

    def elaborate(self, platform):
        m = Module()
        rank = Ranks(m, self.enable)
        doubled_bits = CODE.width + 1  # a code and the half below its last place
        near_bits = doubled_bits + (1 << _FINE_BITS) - 1
        doubled = Cat(0, self.sum).as_signed()
        fine, coarse = self.shift[:_FINE_BITS], Cat(*[0] * _FINE_BITS, self.shift[_FINE_BITS:])
        extended = Signal(signed(max(len(doubled), near_bits)))
        m.d.comb += extended.eq(doubled)
        at = rank(near=(extended >> coarse)[:near_bits], fine=fine)
        at = rank(doubled=(at["near"].as_signed() >> at["fine"])[:doubled_bits])
        at = rank(code=((at["doubled"] + 1) >> 1)[: CODE.width])
        m.d.comb += self.o.eq(at["code"])
        assert rank.count == self.latency
        return m


class CodeToSum(wiring.Component):
    """Sum that a code under its group's shift stands for.

    Formula: code · 2^e, saturating at signed 48 bits.
    Timing: latency 3 (shift by less than 16, by 16s, saturation), interval 1, all registers under `enable`.
    Numerics: exact for e ≤ 40; at e = 41 sums from 2^47 saturate. Above, undefined.
    Reset: none, all registers hold data.

    Members:
        enable: clock enable of every register.
        code: signed.
        shift: e, 0 to 41.
        o: sum, `latency` cycles later.

    """

    def __init__(self) -> None:
        super().__init__(
            {
                "enable": In(1),
                "code": In(shape_of(CODE)),
                "shift": In(range(MAX_SHIFT + 1)),
                "o": Out(shape_of(SUM)),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a code to its sum."""
        return 3

    @property
    def interval(self) -> int:
        """Cycles between two codes."""
        return 1

    def elaborate(self, platform):
        m = Module()
        rank = Ranks(m, self.enable)
        fine, coarse = self.shift[:_FINE_BITS], Cat(*[0] * _FINE_BITS, self.shift[_FINE_BITS:])
        at = rank(near=self.code << fine, coarse=coarse)
        at = rank(wide=(at["near"] << at["coarse"])[: SUM.width + 1])
        wide = at["wide"].as_signed()
        fits = wide[-1] == wide[-2]
        at = rank(sum=Mux(fits, wide[: SUM.width].as_signed(), Mux(wide[-1], SUM.min, SUM.max))[: SUM.width])
        m.d.comb += self.o.eq(at["sum"])
        assert rank.count == self.latency
        return m

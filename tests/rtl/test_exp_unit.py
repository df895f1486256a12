"""Every exp unit against its golden twin: one suite for polynomials, tables and shift-and-add."""

import numpy as np
import pytest
from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith import exp_lookup, exp_polynomial, exp_shift_add
from nearkv_hdl.arith.exp_fp16 import ExpToFp16, number_layout
from nearkv_hdl.arith.exp_unit import ExpUnit, argument_layout, power_layout
from nearkv_sim.cosim.compiled import CompiledComponent
from nearkv_sim.cosim.stalls import Stalls
from nearkv_sim.cosim.words import pack_words, unpack_words
from nearkv_sim.golden import exp as golden

TAG_BITS = 7
ONE = 1 << 15
CORES = {
    "polynomial": (exp_polynomial.Exp2Polynomial, golden.Exp2Polynomial, (2, 3, 4, 5, 6)),
    "lookup": (exp_lookup.Exp2Lookup, golden.Exp2Lookup, (8, 9, 12)),
    "segments": (exp_lookup.Exp2Segments, golden.Exp2Segments, (3, 5, 7)),
    "shift_add": (exp_shift_add.Exp2ShiftAdd, golden.Exp2ShiftAdd, (10, 12, 14, 18)),
}
UNITS = {
    f"{name}{size}": (lambda rtl=rtl, size=size: rtl(size), lambda twin=twin, size=size: twin(size))
    for name, (rtl, twin, sizes) in CORES.items()
    for size in sizes
}


class Bank(wiring.Component):
    """All units side by side, so that they are compiled once; each has streams of its own."""

    def __init__(self):
        self.units = {name: ExpUnit(core(), tag_bits=TAG_BITS) for name, (core, _) in UNITS.items()}
        self.units["fp16"] = ExpToFp16(tag_bits=TAG_BITS)
        members = {}
        for name, unit in self.units.items():
            for port, flow in (("i", In), ("o", Out)):
                layout = getattr(unit, port).payload.shape()
                members[f"{port}_{name}"] = flow(stream.Signature(layout))
        super().__init__(members)

    def elaborate(self, _platform):
        m = Module()
        for name, unit in self.units.items():
            m.submodules[name] = unit
            wiring.connect(m, wiring.flipped(getattr(self, f"i_{name}")), unit.i)
            wiring.connect(m, unit.o, wiring.flipped(getattr(self, f"o_{name}")))
        return m


@pytest.fixture(scope="module")
def bank():
    return CompiledComponent(Bank(), name="exp-bank")


@pytest.fixture(params=UNITS)
def unit(request):
    return request.param


def send(bank, name, x, tags=0, stalls=None):
    """Fields of the results, and the run."""
    beats = pack_words(argument_layout(TAG_BITS), x=x, tag=np.broadcast_to(tags, len(x)))
    run = bank.run({f"i_{name}": beats}, {f"o_{name}": len(x)}, stalls=stalls, drain_cycles=40)
    return unpack_words(power_layout(TAG_BITS), run.outputs[f"o_{name}"]), run


def assert_golden(name, x, result):
    expected = golden.ExpUnit(UNITS[name][1]()).evaluate(x)
    for field in ("exponent", "mantissa", "rounded_up"):
        np.testing.assert_array_equal(result[field], getattr(expected, field), err_msg=field)


def test_powers_known_by_heart(bank, unit):
    # 2^0, 2^-1, 2^1, 2^-32768, 2^½ = 1.41421…, 2^-½ = 1.41421…/2
    x = np.array([0, -1 << 16, 1 << 16, -(1 << 31), 1 << 15, -(1 << 15)])
    result, _ = send(bank, unit, x)
    assert list(result["exponent"]) == [0, -1, 1, -32768, 0, -1]
    assert list(result["mantissa"][:4]) == [ONE] * 4
    bound = UNITS[unit][0]().accuracy.max_relative_error
    for mantissa in result["mantissa"][4:]:
        assert abs(mantissa / ONE / 2**0.5 - 1) <= bound


def test_every_fraction_and_every_exponent(bank, unit):
    # 40503 is odd, so each of the 65,536 exponents occurs once, far from its neighbours.
    fractions = np.arange(1 << 16)
    exponents = (fractions * 40503 + 12345) % (1 << 16) - ONE
    x = exponents * (1 << 16) + fractions
    result, run = send(bank, unit, x)
    assert_golden(unit, x, result)
    assert len(set(exponents)) == 1 << 16
    # One result per cycle: the run lasts as long as its input and the latency.
    assert run.cycles == len(x) + UNITS[unit][0]().latency


@pytest.mark.parametrize("burst", [None, 9])
def test_random_arguments_with_pauses_on_both_sides(bank, unit, burst):
    generator = np.random.default_rng(7)
    x = generator.integers(-(1 << 31), 1 << 31, 4000)
    tags = generator.integers(0, 1 << TAG_BITS, len(x))
    stalls = Stalls(seed=11, input_probability=0.4, output_probability=0.4, mean_burst_cycles=burst)
    result, _ = send(bank, unit, x, tags, stalls)
    assert_golden(unit, x, result)
    np.testing.assert_array_equal(result["tag"], tags)


def test_latency_and_interval(bank, unit):
    latency = UNITS[unit][0]().latency
    for count in (1, 2, 50):
        _, run = send(bank, unit, np.arange(count) * 1000)
        first, last = (run.ports[f"o_{unit}"].first_cycle, run.ports[f"o_{unit}"].last_cycle)
        assert first - run.ports[f"i_{unit}"].first_cycle == latency
        assert last - first == count - 1


def test_a_stalled_sink_fills_the_pipeline_and_no_more(bank, unit):
    latency = UNITS[unit][0]().latency
    beats = pack_words(argument_layout(TAG_BITS), x=np.arange(100), tag=0)
    run = bank.run({f"i_{unit}": beats[:latency]}, {}, max_idle_cycles=100)
    assert run.ports[f"i_{unit}"].transfers == latency
    result = bank.run({}, {f"o_{unit}": latency}, drain_cycles=40).outputs[f"o_{unit}"]
    assert_golden(unit, np.arange(latency), unpack_words(power_layout(TAG_BITS), result))


class TestToFp16:
    def convert(self, bank, exponent, mantissa, rounded_up, tags=0, stalls=None):
        beats = pack_words(
            power_layout(TAG_BITS),
            exponent=exponent,
            mantissa=mantissa,
            rounded_up=rounded_up,
            tag=np.broadcast_to(tags, len(exponent)),
        )
        run = bank.run({"i_fp16": beats}, {"o_fp16": len(beats)}, stalls=stalls, drain_cycles=10)
        return unpack_words(number_layout(TAG_BITS), run.outputs["o_fp16"]), run

    def test_numbers_known_by_heart(self, bank):
        table = [
            # exponent, mantissa, rounded up, bits
            (0, ONE, 0, 0x3C00),  # 1
            (-1, ONE, 0, 0x3800),  # ½
            (15, 65504, 0, 0x7BFF),  # 65504, the largest
            (15, 65520, 0, 0x7C00),  # midway to 2^16: infinity
            (15, 65520, 1, 0x7BFF),  # just below midway
            (16, ONE, 0, 0x7C00),
            (32767, ONE, 0, 0x7C00),
            (-14, ONE, 0, 0x0400),  # smallest normal
            (-15, 65535, 0, 0x0400),  # rounds up to it
            (-24, ONE, 0, 0x0001),  # smallest subnormal
            (-25, ONE, 0, 0x0001),  # midway to 0
            (-25, 65535, 0, 0x0001),
            (-26, 65535, 0, 0x0000),  # underflow
            (-32768, 65535, 0, 0x0000),
            (0, ONE + 16, 0, 0x3C01),  # midway, not rounded up before: up
            (0, ONE + 16, 1, 0x3C00),  # midway, rounded up before: down
        ]
        exponent, mantissa, rounded_up, bits = (np.array(column) for column in zip(*table, strict=True))
        result, _ = self.convert(bank, exponent, mantissa, rounded_up)
        assert [hex(b) for b in result["bits"]] == [hex(b) for b in bits]

    def test_every_mantissa_at_every_kind_of_exponent(self, bank):
        exponents = np.array([-32768, *range(-28, 19), 32767])
        mantissas = np.arange(ONE, 2 * ONE, dtype=np.int64)
        mantissas = np.concatenate([mantissas[::7], mantissas[(mantissas & 15) == 0]])
        exponent, mantissa = (a.ravel() for a in np.meshgrid(exponents, mantissas))
        rounded_up = np.arange(len(exponent)) % 3 % 2
        result, run = self.convert(bank, exponent, mantissa, rounded_up)
        expected = golden.ExpToFp16().convert(exponent, mantissa, rounded_up)
        np.testing.assert_array_equal(result["bits"], expected)
        assert run.cycles == len(exponent) + ExpToFp16().latency

    def test_random_with_pauses(self, bank):
        generator = np.random.default_rng(3)
        count = 4000
        exponent = generator.integers(-30, 20, count)
        mantissa = generator.integers(ONE, 2 * ONE, count)
        rounded_up = generator.integers(0, 2, count)
        tags = generator.integers(0, 1 << TAG_BITS, count)
        stalls = Stalls(seed=5, input_probability=0.3, output_probability=0.5)
        result, _ = self.convert(bank, exponent, mantissa, rounded_up, tags, stalls)
        expected = golden.ExpToFp16().convert(exponent, mantissa, rounded_up)
        np.testing.assert_array_equal(result["bits"], expected)
        np.testing.assert_array_equal(result["tag"], tags)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: exp_polynomial.Exp2Polynomial(7), "degree is 7; allowed: 2, 3, 4, 5, 6"),
        (lambda: exp_lookup.Exp2Lookup(10), "index_bits is 10; allowed: 8, 9, 12"),
        (lambda: exp_lookup.Exp2Segments(4), "index_bits is 4; allowed: 3, 5, 7"),
        (lambda: exp_shift_add.Exp2ShiftAdd(0), "digits is 0; allowed: 10, 12, 14, 18"),
        (lambda: ExpUnit(tag_bits=-1), "tag_bits is -1; allowed: from 0"),
        (lambda: ExpToFp16(tag_bits=-1), "tag_bits is -1; allowed: from 0"),
    ],
)
def test_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_default_is_degree_three_without_a_tag():
    unit = ExpUnit()
    assert unit.core.degree == 3
    assert (unit.latency, unit.interval, unit.capacity) == (6, 1, 6)
    assert "tag" not in dict(unit.i.payload.shape())

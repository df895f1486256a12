"""Parts of the processing unit, and a small unit in Amaranth's own simulator."""

from __future__ import annotations

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator

from nearkv_hdl.arith.fp16 import NUMBER, number_of_fp16, number_of_int8
from nearkv_hdl.pim.aligned_product import AlignedProduct
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_designs import get_pim_design
from nearkv_sim.golden.pim_program import UnitProgram
from nearkv_sim.golden.stored_rows import quantise_int8

MAX_CYCLES = 3000
EDGE_FRACTIONS = (0, 1, 2, 511, 512, 1022, 1023)


def numbers(make, patterns):
    """(significand, exponent, invalid) that a decoder gives for each pattern of (bits, exponent field)."""
    m = Module()
    bits, field = Signal(16), Signal(5)
    number = Signal(NUMBER)
    m.d.comb += number.as_value().eq(make(bits, field))
    found = []

    async def testbench(ctx):
        for pattern, exponent in patterns:
            ctx.set(bits, pattern)
            ctx.set(field, exponent)
            found.append((ctx.get(number.significand), ctx.get(number.exponent), ctx.get(number.invalid)))

    sim = Simulator(m)
    sim.add_testbench(testbench)
    sim.run()
    return found


def test_fp16_numbers_of_every_exponent_and_sign():
    patterns = [s << 15 | e << 10 | f for s in (0, 1) for e in range(32) for f in EDGE_FRACTIONS]
    found = numbers(lambda bits, _: number_of_fp16(bits), [(p, 0) for p in patterns])
    for pattern, (significand, exponent, invalid) in zip(patterns, found, strict=True):
        value = float(np.uint16(pattern).view(np.float16))
        assert bool(invalid) == (not np.isfinite(value))
        if not invalid:
            assert significand * 2.0 ** (exponent - 25) == value
            assert 1 <= exponent <= 30


def test_int8_numbers_of_every_code():
    patterns = [(code & 0xFF, exponent) for code in range(-128, 128) for exponent in (0, 1, 15, 30, 31)]
    found = numbers(lambda bits, field: number_of_int8(bits[:8], field), patterns)
    for (code, given), (significand, exponent, invalid) in zip(patterns, found, strict=True):
        assert significand == 16 * (code - 256 * (code > 127))
        assert exponent == given
        assert bool(invalid) == (given in (0, 31))


def test_aligned_product_rounds_half_up_and_has_its_latency():
    """Corners of both operands at every shift, then random; o is the operands' of 4 cycles before."""
    rng = np.random.default_rng(0)
    corners = [(a, b, s) for a in (-2047, 2047, 65535) for b in (-2048, -1, 1, 2047) for s in range(64)]
    # A weight is never shifted left.
    corners = [(a, b, s) for a, b, s in corners if a != 65535 or s >= 26]
    triples = corners + [
        (int(a), int(b), int(s))
        for a, b, s in zip(
            rng.integers(-2047, 2048, 2000),
            rng.integers(-2048, 2048, 2000),
            rng.integers(2, 64, 2000),
            strict=True,
        )
    ]
    part = AlignedProduct()

    async def testbench(ctx):
        for cycle in range(len(triples) + part.latency):
            if cycle < len(triples):
                for port, value in zip((part.a, part.b, part.shift), triples[cycle], strict=True):
                    ctx.set(port, value)
            if cycle >= part.latency:
                a, b, shift = triples[cycle - part.latency]
                doubled = (a * b << 27) >> shift
                assert ctx.get(part.o) == (doubled + 1) >> 1, (a, b, shift)
            await ctx.tick()

    sim = Simulator(part)
    sim.add_clock(1e-6)
    sim.add_testbench(testbench)
    sim.run()


@pytest.mark.parametrize("pauses", [0.0, 0.5])
def test_small_unit_with_pauses(pauses):
    """An exact and an exponential head, FP16 and INT8, in Amaranth's simulator."""
    design = get_pim_design("tiny_pim")
    program, rng = UnitProgram(design), np.random.default_rng(3)
    rows = [rng.standard_normal((5, 16)).astype(np.float16) for _ in range(4)]
    program.write_query((rng.standard_normal(16) * 4).astype(np.float16))
    program.score(0, rows[0], first=True)
    top = program.read_maximum(0)
    program.accumulate(0, rows[1], first=True, exponent=3, merge=Merge.EXACT, maximum=top + 1)
    program.read_result(Merge.EXACT)
    for slot, (keys, values) in enumerate([rows[:2], rows[2:]]):
        program.score(slot, quantise_int8(keys), first=True)
        values8 = quantise_int8(values)
        program.accumulate(slot, values8, first=slot == 0, exponent=5, merge=Merge.EXPONENTIAL)
    program.read_result(Merge.EXPONENTIAL)
    commands, beats, expected = program.take()
    unit = ProcessingUnit(design)

    def feeder(port, fields, seed):
        async def feed(ctx):
            pause = np.random.default_rng(seed)
            for index in range(len(next(iter(fields.values())))):
                while pause.random() < pauses:
                    await ctx.tick()
                values = {name: field[index] for name, field in fields.items()}
                if "data" in values:
                    values["data"] = int.from_bytes(values["data"].tobytes(), "little")
                constant = {n: int(v) for n, v in values.items()}
                ctx.set(port.payload, constant)
                ctx.set(port.valid, 1)
                await ctx.tick().until(port.ready)
                ctx.set(port.valid, 0)

        return feed

    taken = []

    async def collect(ctx):
        pause = np.random.default_rng(9)
        for _ in range(MAX_CYCLES):
            ctx.set(unit.o.ready, int(pause.random() >= pauses))
            _, _, valid, ready, payload = await ctx.tick().sample(unit.o.valid, unit.o.ready, unit.o.payload)
            if valid and ready:
                taken.append(([payload.data[lane] for lane in range(4)], payload.last))
            if len(taken) == len(expected["data"]):
                return
        raise AssertionError(f"{len(taken)} of {len(expected['data'])} beats after {MAX_CYCLES} cycles")

    sim = Simulator(unit)
    sim.add_clock(1e-6)
    sim.add_testbench(feeder(unit.i_command, commands, 1), background=True)
    sim.add_testbench(feeder(unit.i_rows, beats, 2), background=True)
    sim.add_testbench(collect)
    sim.run()
    assert [d for d, _ in taken] == expected["data"].tolist()
    assert [last for _, last in taken] == expected["last"].tolist()

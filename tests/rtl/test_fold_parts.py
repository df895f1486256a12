"""Shift, product and passes of folding against Python integers, out to the ends of every operand."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from amaranth.sim import Simulator

from nearkv_hdl.attention.fold_config import TERM_FRACTION_BITS, TERM_PART_BITS, half_units
from nearkv_hdl.attention.fold_product import FoldProduct
from nearkv_hdl.attention.fold_shift import FoldShift
from nearkv_hdl.spec.designs import DESIGNS


def fits(value: int, bits: int) -> bool:
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def simulate(unit, inputs: list[dict[str, int]], outputs: dict[str, int]) -> dict[str, list[int]]:
    """Feed one operand set a cycle; read each output its latency later."""
    found: dict[str, list[int]] = {name: [] for name in outputs}

    async def bench(ctx):
        for cycle in range(len(inputs) + max(outputs.values())):
            for name, value in (inputs[cycle] if cycle < len(inputs) else {}).items():
                ctx.set(getattr(unit, name), value)
            for name, latency in outputs.items():
                if latency <= cycle < len(inputs) + latency:
                    found[name].append(ctx.get(getattr(unit, name)))
            await ctx.tick()

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run_until(1e-6 * (len(inputs) + 50))
    return found


@pytest.mark.parametrize(("value_bits", "result_bits"), [(27, 16), (27, 76), (36, 76), (16, 8)])
def test_shift_is_the_floor_or_an_overflow(value_bits, result_bits):
    rng = np.random.default_rng(value_bits + result_bits)
    top = 1 << (value_bits - 1)
    values = [0, 1, -1, top - 1, -top, top - 2, 1 - top, 5, -5]
    inputs = [{"value": v, "amount": a} for v in values for a in range(-value_bits - 20, result_bits + 20)]
    for _ in range(1500):
        size = int(rng.integers(1, value_bits))
        value = int(rng.integers(-(1 << size), 1 << size))
        inputs.append({"value": value, "amount": int(rng.integers(-value_bits - 3, result_bits + 3))})
    inputs += [{"value": v, "amount": a} for v in values for a in (-512, 511)]
    unit = FoldShift(value_bits, result_bits)
    found = simulate(unit, inputs, {"o": unit.latency, "overflow": unit.latency})
    overflows = 0
    for operand, o, overflow in zip(inputs, found["o"], found["overflow"], strict=True):
        exact = floor(operand["value"] * Fraction(2) ** operand["amount"])
        assert overflow == (not fits(exact, result_bits)), operand
        assert overflow or o == exact, operand
        overflows += overflow
    assert 0 < overflows < len(inputs) // 2


def fixed(bits: int) -> int:
    """A finite FP16 number times 2^24."""
    number = np.array(bits, np.uint16).view(np.float16)
    return int(Fraction(float(number)) * 2**24)


def product_operands(rng: np.random.Generator, count: int) -> list[dict[str, int]]:
    operands = []
    for _ in range(count):
        centre, scale = (int(x) for x in rng.integers(0, 1 << 16, 2))
        mantissa = int(rng.choice([rng.integers(-(2**15), 2**15), -(2**15), 2**15 - 1, 1, -1, 0, 3 << 9]))
        mean = int(rng.choice([rng.integers(-128, 128), -128, 127, 0, -1]))
        kind = int(rng.integers(5))
        if kind == 0:  # simple significands: sums that end in exactly one half
            centre, scale = ((x & 0xFC00) | (1 << int(rng.integers(11))) % (1 << 10) for x in (centre, scale))
        if kind == 1:  # subnormal, or zero
            scale &= 0x83FF
        if kind == 2:  # the centre cancels the half steps but for a little
            size = fixed(scale & 0x7BFF) * (2 * mean + 1) / 2 / 2**24
            if abs(size) < 65504:
                centre = int(np.array(-size, np.float16).view(np.uint16)) ^ (scale & 0x8000)
        # Near the larger of both, so that the result has few or some bits, and sometimes anywhere.
        largest = max(fixed(x & 0x7FFF if (x >> 10) & 31 < 31 else x & 0x83FF) for x in (centre, scale))
        unit = (abs(mantissa) * largest).bit_length() - int(rng.integers(-12, 24))
        unit = int(rng.integers(-128, 128)) if rng.random() < 0.1 else max(-128, min(127, unit))
        operands.append({"mantissa": mantissa, "unit": unit, "scale": scale, "centre": centre, "mean": mean})
    return operands


@pytest.mark.parametrize("name", ["tiny", "alveo_u50"])
def test_product_is_exact_or_an_overflow(name):
    design = DESIGNS[name]
    unit = FoldProduct(design)
    operands = product_operands(np.random.default_rng(3), 6000)
    outputs = {"half_units": unit.half_latency, "term": unit.latency, "overflow": unit.latency}
    found = simulate(unit, operands, outputs)
    seen = {"fine": 0, "overflow": 0, "infinite": 0, "half": 0, "negative": 0}
    for index, x in enumerate(operands):
        half, term, overflow = (found[key][index] for key in outputs)
        if any((x[key] >> 10) & 31 == 31 for key in ("scale", "centre")):
            assert overflow
            seen["infinite"] += 1
            continue
        scale, centre = fixed(x["scale"]), fixed(x["centre"])
        step = Fraction(2) ** x["unit"]
        product = x["mantissa"] * scale
        expected_half = floor(2 * product / step)
        parts = [x["mantissa"] * 2 * centre, product * (2 * x["mean"] + 1)]
        in_terms = [part * 2**7 / step for part in parts]
        cut = [floor(part * 2**TERM_FRACTION_BITS) for part in in_terms]
        misfit = not fits(expected_half, half_units(design).width) or not all(
            fits(part, TERM_PART_BITS) for part in cut
        )
        assert overflow == misfit, x
        if not misfit:
            exact = sum(in_terms) + Fraction(1, 2)
            assert (half, term) == (expected_half, floor(exact)), x
            seen["fine"] += 1
            seen["half"] += exact.denominator == 1
            seen["negative"] += expected_half < 0
        seen["overflow"] += misfit
    assert min(seen.values()) > 50, seen


def near_ties(rng: np.random.Generator, count: int, grid_bits: int) -> list[dict[str, int]]:
    """Operands whose term is just above a half that floors on a grid of 2^-grid_bits would miss."""
    operands: list[dict[str, int]] = []
    exponent = 28  # of the scale; its product counts in 2^-(grid_bits + 1) of a term
    unit = exponent + 6 + grid_bits + 1
    while len(operands) < count:
        significand, half_steps = int(rng.integers(1024, 2048)), 2 * int(rng.integers(8, 32)) + 1
        tie = int(rng.choice([-1, 1])) << grid_bits
        mantissa = tie // (significand * half_steps)
        missing = tie - mantissa * significand * half_steps
        # The centre's part has to make up for what is missing, and hardly more.
        below = 0
        while missing and missing << below < 1024 * abs(mantissa):
            below += 1
        centre_significand = -(-(missing << below) // abs(mantissa))
        if not (missing and 1024 <= centre_significand < 2048 and abs(mantissa) < 1 << 15):
            continue
        parts = [
            Fraction(tie - missing, 2 << grid_bits),
            Fraction(abs(mantissa) * centre_significand, 2 << grid_bits << below),
        ]
        coarse = sum(floor(part * 2**grid_bits) for part in parts)
        half = Fraction(1, 2)
        if floor(Fraction(coarse, 1 << grid_bits) + half) != floor(sum(parts) + half):
            centre = (mantissa < 0) << 15 | (exponent - 1 - below) << 10 | centre_significand & 1023
            scale = exponent << 10 | significand & 1023
            mean = (half_steps - 1) // 2
            operands.append(
                {"mantissa": mantissa, "unit": unit, "scale": scale, "centre": centre, "mean": mean}
            )
    return operands


def test_terms_are_exact_where_a_coarser_grid_is_not():
    unit = FoldProduct(DESIGNS["tiny"])
    operands = near_ties(np.random.default_rng(1), 200, grid_bits=30)
    found = simulate(unit, operands, {"term": unit.latency})
    for x, term in zip(operands, found["term"], strict=True):
        scale, centre = fixed(x["scale"]), fixed(x["centre"])
        exact = x["mantissa"] * (2 * centre + scale * (2 * x["mean"] + 1))
        assert term == floor(exact * 2**7 / Fraction(2) ** x["unit"] + Fraction(1, 2)), x

"""The golden model of folding against the formula in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import floor

import numpy as np
import pytest

from nearkv_hdl.attention.fold_config import HEAD_SLOTS, fold_lanes, fold_steps, header_beats
from nearkv_hdl.attention.fold_unit import FoldUnit
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import DESIGNS, KU15P, LFE5U_85F
from nearkv_hdl.spec.layout import HEAD_DIMS, KeyFormat
from nearkv_sim.fold_job import FoldJob, channel_tables, random_fold_job
from nearkv_sim.golden.fold import FoldModel

INT8, INT4 = KeyFormat.INT8, KeyFormat.INT4
HALF = Fraction(1, 2)


def design(query_bits: int, head_dim: int = 64) -> DesignConfig:
    return DesignConfig(
        name="custom",
        device=KU15P,
        bus_bytes=16,
        lanes=16,
        query_group=3,
        head_dims=(head_dim,),
        clock_hz=1,
        query_bits=query_bits,
        block_tokens=16,
    )


def head_by_fractions(job: FoldJob, block: int, head: int, limit: int) -> tuple[list[int], int, int]:
    """Codes, shift and bias of one block and head, from the real numbers that the operands stand for."""
    headers = job.blocks.headers
    # In score units: mantissa · 2^-fraction_bits · 2^L, with 2^-(fraction_bits − L) = 2^(24 − unit).
    weight = Fraction(2) ** (24 - int(job.unit[head]))
    query = [int(q) * weight for q in job.query.mantissa[head]]
    scale, centre = ([Fraction(float(x)) for x in t[block]] for t in (headers.scale, headers.centre))
    mean = headers.mean_code[block].tolist()
    for shift in range(8):
        codes = [floor(q * s / 2**shift + HALF) for q, s in zip(query, scale, strict=True)]
        if all(-limit <= code <= limit for code in codes):
            break
    else:
        raise AssertionError(f"no shift fits block {block}, head {head}")
    terms = [
        floor(q * (c + s * (mu + HALF)) * 256 + HALF)
        for q, c, s, mu in zip(query, centre, scale, mean, strict=True)
    ]
    low = HALF * 15 if job.key_format[block] is INT4 else 0
    seen = sum(code * (mu - low) for code, mu in zip(codes, mean, strict=True)) * 2**shift
    return codes, shift, floor(Fraction(sum(terms), 256) + HALF) - floor(seen + HALF)


@pytest.mark.parametrize("extreme", [False, True], ids=["normal", "extreme"])
@pytest.mark.parametrize("query_bits", [8, 10, 12])
def test_golden_model_is_the_formula(query_bits, extreme):
    rng = np.random.default_rng(query_bits)
    config = design(query_bits)
    shifts = set()
    for _ in range(12):
        job = random_fold_job(config, 3, rng, extreme=extreme)
        folded = job.folded(config)
        for block in range(3):
            for head in range(3):
                codes, shift, bias = head_by_fractions(job, block, head, config.query_code.max)
                assert folded.query_codes[block][head].tolist() == codes
                assert (folded.shift[block, head], folded.bias[block, head]) == (shift, bias)
                shifts.add(shift)
    assert len(shifts) > 4


def test_a_saturating_half_needs_the_next_shift_on_one_side_only():
    """127½ rounds to 128 and does not fit; −127½ rounds to −127 and does."""
    config = design(8)
    job = random_fold_job(config, 1, np.random.default_rng(0), key_formats=(INT8,))
    mantissa = np.zeros((3, 64), np.int64)
    mantissa[0, 5], mantissa[1, 5], mantissa[2, 5] = 255, -255, 254
    job.blocks.headers.scale[0] = np.float16(1)
    folded = FoldModel(config).fold(mantissa, np.full(3, 25), job.blocks.headers, INT8)
    assert folded.shift[0].tolist() == [1, 0, 0]
    assert folded.codes[0, :, 5].tolist() == [64, -127, 127]


def test_folding_keeps_up_with_the_lanes_of_every_design():
    for config in DESIGNS.values():
        for head_dim in config.head_dims:
            cycles = config.query_group * head_dim / fold_lanes(config)
            assert cycles <= config.lane_beats_per_block(head_dim)
            assert header_beats(config, head_dim) <= cycles
            assert (HEAD_SLOTS - 1) * fold_steps(config, head_dim) >= FoldUnit(config).place_latency


def test_folding_keeps_up_in_blocks_of_128_tokens_whatever_the_build():
    """The slowest per head_dim: as many lanes as bus and head_dim allow, and every number of query heads."""
    for bus_bytes, head_dim, group in product((4, 8, 16, 32, 64, 128), HEAD_DIMS, range(1, 9)):
        config = DesignConfig(
            name="custom",
            device=LFE5U_85F,
            bus_bytes=bus_bytes,
            lanes=min(2 * bus_bytes, head_dim),
            query_group=group,
            head_dims=(head_dim,),
            clock_hz=1,
        )
        assert group * fold_steps(config, head_dim) <= config.lane_beats_per_block(head_dim)


def test_stored_headers_are_centre_scale_and_mean_code():
    config = design(8)
    headers = random_fold_job(config, 2, np.random.default_rng(1), extreme=True).blocks.headers
    tables = channel_tables(headers)
    assert tables.shape == (2, config.layout(64).channel_table_bytes)
    for block in range(2):
        stored = tables[block].tobytes()
        np.testing.assert_array_equal(np.frombuffer(stored, "<f2", 64), headers.centre[block])
        np.testing.assert_array_equal(np.frombuffer(stored, "<f2", 64, 128), headers.scale[block])
        np.testing.assert_array_equal(np.frombuffer(stored, "i1", 64, 256), headers.mean_code[block])


def test_bad_input_is_refused():
    config = design(8)
    model = FoldModel(config)
    job = random_fold_job(config, 2, np.random.default_rng(2))
    mantissa, unit, headers = job.query.mantissa, job.unit, job.blocks.headers
    with pytest.raises(ValueError, match=r"mantissa \(2, 64\) and unit \(3,\) do not match"):
        model.fold(mantissa[:2], unit, headers, INT8)
    with pytest.raises(ValueError, match="unit is 200 to 200; allowed: -128 to 127"):
        model.fold(mantissa, np.full(3, 200), headers, INT8)
    with pytest.raises(ValueError, match="mantissa is 32768 to 32768; allowed: -32768 to 32767"):
        model.fold(np.full((3, 64), 1 << 15), unit, headers, INT8)
    with pytest.raises(ValueError, match="too large for these keys"):
        model.fold(mantissa, unit - 12, headers, INT8)
    with pytest.raises(ValueError, match="head_dim is 64; design custom allows: 128"):
        FoldModel(design(8, 128)).fold(mantissa, unit, headers, INT8)
    with pytest.raises(ValueError, match="blocks is 0; allowed: at least 1"):
        random_fold_job(config, 0, np.random.default_rng(0))

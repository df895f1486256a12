"""INT8 rows: golden against float64 and by hand, RTL against golden, error on a real model's rows."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from nearkv.trace.format import read_trace
from nearkv_hdl.migrate.row_expander import RowExpander
from nearkv_hdl.migrate.row_quantiser import RowQuantiser
from nearkv_hdl.spec.migration import SCALE_HEADER_BYTES
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_sim.cosim import CompiledComponent, Stalls
from nearkv_sim.formal import Status, prove_ready_independent, prove_stream_contract
from nearkv_sim.golden.migrate_layout import to_tiles
from nearkv_sim.golden.migrate_rows import expand_rows, from_records, quantise_rows, to_records

FIXTURE = Path(__file__).parents[2] / "data" / "smollm2-135m-austen-4096.safetensors"
TINY = PIM_LAYOUTS["tiny_pim"]
FINITE = np.arange(0x7C00, dtype=np.uint16).view(np.float16)  # every magnitude
SHAPES = [("tiny_pim", 4), ("tiny_pim", 16), ("ssd_pim", 16)]


def any_rows(shape, seed=1):
    """Random bit patterns: all magnitudes, subnormals, both zeros; some rows close together, some 0."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 16, shape, np.uint16)
    bits = np.where(bits & 0x7C00 == 0x7C00, bits & 0xBFFF, bits).astype(np.uint16)
    rows = bits.view(np.float16)
    rows[::3] = rng.normal(size=rows[::3].shape).astype(np.float16)
    rows[::7] *= np.float16(2**-14)
    rows[-1] = 0
    return rows


# The golden model.


def test_smallest_examples_by_hand():
    codes, scales = quantise_rows(np.float16([127, -127, 0.5, -0.5, 0.49, 1.5, 0, -0.0]))
    assert scales == 1
    assert codes.tolist() == [127, -127, 1, -1, 0, 2, 0, 0]
    codes, scales = quantise_rows(np.zeros(4, np.float16))
    assert (scales, codes.tolist()) == (np.float16(2**-24), [0, 0, 0, 0])
    assert expand_rows(np.int8([3, -128]), np.float16(0.5)).tolist() == [1.5, -64]


def test_the_scale_is_the_smallest_that_suffices():
    """Every finite magnitude as a row's largest."""
    _, scales = quantise_rows(FINITE[:, None])
    exact, below = scales.astype(np.float64), np.nextafter(scales, np.float16(0)).astype(np.float64)
    assert (exact * 127 >= FINITE.astype(np.float64)).all()
    assert ((below * 127 < FINITE.astype(np.float64)) | (exact == 2.0**-24)).all()


def test_codes_are_the_rounded_quotients():
    rows = any_rows((20_000, 8))
    codes, scales = quantise_rows(rows)
    quotient = rows.astype(np.float64) / scales.astype(np.float64)[:, None]
    assert np.array_equal(codes, np.sign(quotient) * np.floor(np.abs(quotient) + 0.5))
    error = np.abs(rows.astype(np.float64) - codes * scales.astype(np.float64)[:, None])
    assert (error <= scales.astype(np.float64)[:, None] / 2).all()


def test_expansion_is_rounded_once():
    """Every code under every finite scale, against IEEE arithmetic of an exact float32 product."""
    codes = np.arange(-128, 128, dtype=np.int8)
    products = codes.astype(np.float32) * FINITE.astype(np.float32)[:, None]
    expected = np.clip(products, -65504, 65504).astype(np.float16) + np.float16(0)  # −0 becomes +0
    given = expand_rows(np.broadcast_to(codes, products.shape), FINITE)
    small = np.abs(products) < 2**-25  # rounds to a signed zero in IEEE only; a product is at least 2^−24
    assert not (small & (products != 0)).any()
    assert np.array_equal(given.view(np.uint16), expected.view(np.uint16))


def test_records_hold_scales_and_codes():
    rows = any_rows((TINY.block_tokens, 2, 16))
    records = to_records(TINY, rows)
    codes, scales = quantise_rows(rows)
    assert records.shape == (TINY.block_tiles, TINY.record_bytes)
    # Tile 1 holds tokens 4 to 7: their keys, then their values.
    assert np.array_equal(records[1, :16].view(np.float16), scales[4:8].T.reshape(-1))
    assert not records[:, 16:SCALE_HEADER_BYTES].any()
    given = records[1, SCALE_HEADER_BYTES:].view(np.int8).reshape(2, 4, 16)
    assert np.array_equal(given[0], codes[4:8, 0])
    assert np.array_equal(given[1], codes[4:8, 1])
    assert np.array_equal(from_records(TINY, records), expand_rows(codes, scales))


def test_error_on_real_rows():
    """Relative L2 error of moved rows, as docs/migration.md gives it."""
    trace = read_trace(FIXTURE)
    for name, expected in (("key", 0.00995), ("value", 0.00614)):
        rows = np.concatenate([getattr(stream, name) for stream in trace.streams])
        exact = rows.astype(np.float64)
        error = expand_rows(*quantise_rows(rows)).astype(np.float64) - exact
        assert np.linalg.norm(error) / np.linalg.norm(exact) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: quantise_rows(np.zeros(3)), r"rows are float64; allowed: float16"),
        (lambda: quantise_rows(np.float16([np.inf])), r"rows hold Inf or NaN"),
        (lambda: expand_rows(np.zeros(3), np.float16(1)), r"codes are float64, scales float16"),
        (lambda: expand_rows(np.int8([1]), np.float16(-1)), r"a scale is Inf, NaN or negative"),
        (lambda: to_records(TINY, np.zeros((3, 2, 16), np.float16)), r"rows hold 3 tokens; allowed: whole"),
        (lambda: from_records(TINY, np.zeros((3, 5), np.uint8)), r"records are \[3, 5\]; allowed"),
        (
            lambda: RowQuantiser(TINY, 32),
            r"beat_bytes is 32 for tiny_pim; allowed: a power of two from 4 to 16",
        ),
        (lambda: RowExpander(TINY, 2), r"beat_bytes is 2 for tiny_pim"),
    ],
)
def test_bad_arguments_are_refused(act, message):
    with pytest.raises(ValueError, match=message):
        act()


# The RTL.


@cache
def compiled(kind, name: str, beat_bytes: int) -> CompiledComponent:
    component = kind(PIM_LAYOUTS[name], beat_bytes)
    return CompiledComponent(component, name=f"{kind.__name__}-{name}-{beat_bytes}")


def words(data: np.ndarray, beat_bytes: int) -> np.ndarray:
    beats = np.ascontiguousarray(data).view(np.uint8).reshape(-1, beat_bytes)
    return beats.view("<u4").reshape(len(beats), -1)


def run(kind, shape, data, out_bytes, **how):
    unit = compiled(kind, *shape)
    unit.reset()
    result = unit.run({"i": words(data, shape[1])}, {"o": out_bytes // shape[1]}, drain_cycles=60, **how)
    return result.outputs["o"].view(np.uint8).reshape(-1), result


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rtl_equals_the_golden_model_under_pauses(shape):
    layout = PIM_LAYOUTS[shape[0]]
    for seed, stalls in enumerate([None, Stalls(1, 0.5, 0.1), Stalls(2, 0.1, 0.7, mean_burst_cycles=9)]):
        rows = any_rows((5 * layout.tile_tokens, 2, layout.design.head_dim), seed)
        records = to_records(layout, rows)
        tiles = to_tiles(layout, rows)
        out, result = run(RowQuantiser, shape, tiles, records.size, stalls=stalls)
        assert np.array_equal(out, records.reshape(-1))
        assert not result.flags["o_invalid"].high_cycles
        out, result = run(RowExpander, shape, records, rows.nbytes, stalls=stalls)
        tiles = to_tiles(layout, from_records(layout, records))
        assert np.array_equal(out, tiles.view(np.uint8).reshape(-1))
        assert not result.flags["o_invalid"].high_cycles


def test_every_magnitude_through_the_rtl():
    """As a row's largest number, beside its half and its 254th part; and every code under every scale."""
    shape, layout = ("ssd_pim", 16), PIM_LAYOUTS["ssd_pim"]
    rows = np.zeros((len(FINITE) // 2, 2, 128), np.float16)
    flat = rows.reshape(-1, 128)
    flat[:, 0] = FINITE
    for place, divisor in enumerate((2, 254, 127, 3), start=1):
        flat[:, place] = FINITE / np.float16(divisor)
    records = to_records(layout, rows)
    out, _ = run(RowQuantiser, shape, to_tiles(layout, rows), records.size)
    assert np.array_equal(out, records.reshape(-1))
    halves = np.arange(-128, 128, dtype=np.int8).reshape(2, 128)
    records = np.tile(records, (2, 1))
    records[:, SCALE_HEADER_BYTES:] = np.tile(halves, (8, 1)).view(np.uint8).reshape(-1)
    scales = np.repeat(FINITE, 2).view(np.uint8).reshape(len(records), -1)
    records[:, : scales.shape[1]] = scales
    out, _ = run(RowExpander, shape, records, 2 * rows.nbytes)
    tiles = to_tiles(layout, from_records(layout, records))
    assert np.array_equal(out, tiles.view(np.uint8).reshape(-1))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rates(shape):
    """64 KiB of FP16: the quantiser takes a beat every cycle; the expander pays its header beats."""
    layout = PIM_LAYOUTS[shape[0]]
    tiles = -(-(64 << 10) // layout.tile_bytes)
    rows = any_rows((tiles * layout.tile_tokens, 2, layout.design.head_dim))
    records = to_records(layout, rows)
    _, result = run(RowQuantiser, shape, rows, records.size)
    port = result.ports["i"]
    assert port.last_cycle - port.first_cycle + 1 == port.transfers
    expander = RowExpander(layout, shape[1])
    _, result = run(RowExpander, shape, records, rows.nbytes)
    port = result.ports["o"]
    numbers = layout.tile_bytes // shape[1]
    assert port.last_cycle - port.first_cycle + 1 == (tiles - 1) * expander.record_cycles + numbers


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_latencies(shape):
    layout = PIM_LAYOUTS[shape[0]]
    rows = any_rows((layout.tile_tokens, 2, layout.design.head_dim))
    records = to_records(layout, rows)
    _, result = run(RowQuantiser, shape, rows, records.size)
    quantiser, expander = RowQuantiser(layout, shape[1]), RowExpander(layout, shape[1])
    assert result.ports["o"].first_cycle - result.ports["i"].last_cycle == quantiser.latency
    _, result = run(RowExpander, shape, records, rows.nbytes)
    assert result.ports["o"].first_cycle == expander.header_beats + expander.latency


def test_what_is_no_number_is_flagged():
    rows = np.zeros((TINY.tile_tokens, 2, 16), np.float16)
    records = to_records(TINY, rows)
    rows[1, 1, 3] = np.nan
    _, result = run(RowQuantiser, ("tiny_pim", 4), rows, records.size)
    assert result.flags["o_invalid"].high_cycles
    for bad in (np.inf, -1):
        records[0, 4:6] = np.float16([bad]).view(np.uint8)
        _, result = run(RowExpander, ("tiny_pim", 4), records, rows.nbytes)
        assert result.flags["o_invalid"].high_cycles


@pytest.mark.parametrize("kind", [RowQuantiser, RowExpander])
def test_streams_keep_the_contract(kind):
    def make():
        return kind(TINY, 4)

    assert (
        prove_stream_contract(make, cut=("$mul", "$mem_v2", "$shr", "$shl", "$sub")).status is Status.PROVED
    )
    assert prove_ready_independent(make).status is Status.PROVED

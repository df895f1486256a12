"""Re-layout buffer, compiled: every layout and pair of widths against index arithmetic, pauses, rates."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from nearkv_hdl.migrate.relayout import Relayout, relayout_job_layout
from nearkv_hdl.migrate.tile_address import TileAddress
from nearkv_hdl.spec.migration import Order
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_sim.cosim import CompiledComponent, Stalls
from nearkv_sim.cosim.words import pack_words
from nearkv_sim.formal import Status, prove_ready_independent, prove_stream_contract
from nearkv_sim.golden.migrate_layout import reorder_tiles

TINY = PIM_LAYOUTS["tiny_pim"]
JOB = relayout_job_layout(16)
# name, source and destination bytes: one column a beat, several, less than one; equal, wider, narrower.
SHAPES = [
    ("tiny_pim", 8, 8),
    ("tiny_pim", 16, 16),
    ("tiny_pim", 4, 16),
    ("tiny_pim", 16, 4),
    ("hbm_pim", 64, 32),
    ("ddr_pim", 32, 64),
    ("ssd_pim", 16, 64),
]
SMALL = SHAPES[:4]


@cache
def compiled(name: str, source_bytes: int, destination_bytes: int) -> CompiledComponent:
    component = Relayout(PIM_LAYOUTS[name], source_bytes, destination_bytes)
    return CompiledComponent(component, name=f"relayout-{name}-{source_bytes}-{destination_bytes}")


def words(data: np.ndarray, beat_bytes: int) -> np.ndarray:
    beats = data.reshape(-1, beat_bytes)
    return np.ascontiguousarray(beats).view("<u4").reshape(len(beats), -1)


def run(shape, jobs, seed=1, **how):
    """Jobs of (tiles, source, destination) through the RTL: what went in, what came out, statistics."""
    name, source_bytes, destination_bytes = shape
    layout = PIM_LAYOUTS[name]
    rng = np.random.default_rng(seed)
    given = [rng.integers(0, 256, tiles * layout.tile_bytes, np.uint8) for tiles, _, _ in jobs]
    tiles, sources, destinations = zip(*jobs, strict=True)
    stream = np.concatenate(given)
    result = compiled(*shape).run(
        {
            "i_job": pack_words(JOB, tiles=tiles, source=sources, destination=destinations),
            "i": words(stream, source_bytes),
        },
        {"o": stream.size // destination_bytes},
        **how,
    )
    return given, result.outputs["o"].view(np.uint8).reshape(-1), result


def by_index(layout, tile, source, destination):
    """Independent oracle: the place of every byte of a tile, one at a time."""

    def place(order, token, part, column):
        if order is Order.ROWS:
            return (part * layout.tile_tokens + token) * layout.row_columns + column
        return (part * layout.row_columns + column) * layout.tile_tokens + token

    out = np.empty_like(tile)
    size = layout.column_bytes
    for token in range(layout.tile_tokens):
        for part in (0, 1):
            for column in range(layout.row_columns):
                come = place(source, token, part, column) * size
                go = place(destination, token, part, column) * size
                out[go : go + size] = tile[come : come + size]
    return out


PAIRS = [(source, destination) for source in Order for destination in Order]


@pytest.mark.parametrize("name", PIM_LAYOUTS)
@pytest.mark.parametrize(("source", "destination"), PAIRS)
def test_the_golden_model_does_what_indices_say(name, source, destination):
    layout = PIM_LAYOUTS[name]
    data = np.random.default_rng(5).integers(0, 256, 2 * layout.tile_bytes, np.uint8)
    expected = [by_index(layout, tile, source, destination) for tile in data.reshape(2, -1)]
    assert np.array_equal(reorder_tiles(layout, data, source, destination), np.concatenate(expected))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rtl_equals_the_golden_model_under_pauses(shape):
    layout = PIM_LAYOUTS[shape[0]]
    jobs = [(n, *pair) for n, pair in zip((1, 3, 2, 1, 2), [*PAIRS, PAIRS[1]], strict=True)]
    for seed, stalls in enumerate([None, Stalls(1, 0.5, 0.1), Stalls(2, 0.1, 0.6, mean_burst_cycles=9)]):
        given, out, _ = run(shape, jobs, seed, stalls=stalls, drain_cycles=50)
        expected = [
            reorder_tiles(layout, data, source, destination)
            for data, (_, source, destination) in zip(given, jobs, strict=True)
        ]
        assert np.array_equal(out, np.concatenate(expected))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("source", "destination"), PAIRS[1:3])
def test_the_narrower_side_never_waits(shape, source, destination):
    """64 KiB and more, without pauses: every cycle a beat on the narrower side, between first and last."""
    name, source_bytes, destination_bytes = shape
    tiles = -(-(64 << 10) // PIM_LAYOUTS[name].tile_bytes)
    _, out, result = run(shape, [(tiles, source, destination)])
    narrow_beats = out.size // min(source_bytes, destination_bytes)
    narrow = result.ports["i" if source_bytes < destination_bytes else "o"]
    assert narrow.last_cycle - narrow.first_cycle + 1 == narrow_beats
    assert narrow_beats >= 0.9 * result.cycles


@pytest.mark.parametrize(
    ("shape", "percent"),
    [
        (("hbm_pim", 64, 32), 96.7),
        (("ddr_pim", 32, 64), 96.8),
        (("ssd_pim", 16, 64), 99.1),
        (("hbm_pim", 32, 32), 93.9),
        (("hbm_pim", 64, 64), 93.7),
    ],
    ids=str,
)
@pytest.mark.parametrize(("source", "destination"), PAIRS[1:3])
def test_a_single_move_pays_for_half_a_tile(shape, percent, source, destination):
    """64 KiB alone, from the first beat in to the last one out, as docs/migration.md gives it."""
    _, out, result = run(shape, [((64 << 10) // PIM_LAYOUTS[shape[0]].tile_bytes, source, destination)])
    cycles = result.ports["o"].last_cycle - result.ports["i"].first_cycle + 1
    narrow_beats = out.size // min(shape[1:])
    assert round(100 * narrow_beats / cycles, 1) == percent


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_half_a_tile_leaves_when_it_is_complete(shape):
    """Keys without their values, then these."""
    layout = PIM_LAYOUTS[shape[0]]
    unit = compiled(*shape)
    unit.reset()
    half = words(np.zeros(layout.half_tile_bytes, np.uint8), shape[1])
    job = pack_words(JOB, tiles=[1], source=[Order.ROWS], destination=[Order.PIM])
    for jobs in ({"i_job": job}, {}):
        result = unit.run({"i": half, **jobs}, {"o": layout.half_tile_bytes // shape[2]})
        complete = result.ports["i"].last_cycle
        assert result.ports["o"].first_cycle - complete == Relayout(layout, *shape[1:]).latency


def test_small_moves_follow_one_another_without_a_gap():
    jobs = [(1, Order.ROWS, Order.PIM), (1, Order.PIM, Order.ROWS)] * 8
    _, _, result = run(("tiny_pim", 8, 8), jobs)
    port = result.ports["o"]
    assert port.last_cycle - port.first_cycle + 1 == port.transfers


def test_a_job_without_tiles_does_nothing():
    given, out, _ = run(("tiny_pim", 8, 8), [(0, Order.ROWS, Order.PIM), (1, Order.ROWS, Order.ROWS)])
    assert np.array_equal(out, given[1])


def test_two_layouts_in_a_row_lead_from_device_to_device():
    """Sender to row-major, receiver from it: HBM order to DDR order, by way of the interchange format."""
    hbm, ddr = PIM_LAYOUTS["hbm_pim"], PIM_LAYOUTS["ddr_pim"]
    rows = np.random.default_rng(6).integers(0, 256, 4 * hbm.tile_bytes, np.uint8)
    sent = reorder_tiles(hbm, reorder_tiles(hbm, rows, Order.ROWS, Order.PIM), Order.PIM, Order.ROWS)
    assert np.array_equal(
        reorder_tiles(ddr, sent, Order.ROWS, Order.PIM), reorder_tiles(ddr, rows, Order.ROWS, Order.PIM)
    )


@pytest.mark.parametrize("shape", [("tiny_pim", 4, 8), ("tiny_pim", 16, 8)], ids=str)
def test_streams_keep_the_contract(shape):
    def make():
        return Relayout(PIM_LAYOUTS[shape[0]], *shape[1:], tiles_bits=2)

    assert prove_stream_contract(make, cut=("$mem_v2",)).status is Status.PROVED
    assert prove_ready_independent(make).status is Status.PROVED


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TileAddress(TINY, 4), r"beat_bytes is 4 for tiny_pim; allowed: a power of two from 8 to 16"),
        (lambda: TileAddress(TINY, 32), r"beat_bytes is 32 for tiny_pim"),  # all of a row, and of a stripe
        (lambda: TileAddress(PIM_LAYOUTS["hbm_pim"], 512), r"beat_bytes is 512 for hbm_pim; .* 32 to 256"),
        (lambda: Relayout(TINY, 12, 8), r"beat_bytes is 12"),
    ],
)
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

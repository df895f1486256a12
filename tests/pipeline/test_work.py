"""Bytes and operations of a layer, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nearkv.pipeline.settings import Method, PipelineSettings
from nearkv.pipeline.work import StepLoad, layer_work, output_kernel

# 8 KV heads of 128 FP16 channels, keys and values: 4096 bytes a token and layer.
TOKEN_BYTES = 4096
LOAD = StepLoad(context_tokens=1280, batch=2, hot_bytes=8 * 2 * 1024 * TOKEN_BYTES)
HOT, COLD = 2 * 1024 * TOKEN_BYTES, 2 * 256 * TOKEN_BYTES


def work(geometry, load=LOAD, card_bytes=10**9, gpu_bytes=10**12, **settings):
    return layer_work(
        geometry, load, PipelineSettings(**settings), card_bytes=card_bytes, gpu_bytes=gpu_bytes
    )


def test_near_data_by_hand(geometry):
    found = work(geometry)
    assert (found.hot_kv, found.cold_kv) == (HOT, COLD)
    assert found.hot_scored == HOT // 2  # FP16 keys
    assert found.cold_scored == COLD // 4  # a byte per channel of a key
    assert found.streamed == 0
    assert found.queries == 4 * 8 * 128  # four blocks of 128 tokens
    assert found.scores == 512 * 8 * 4
    assert found.hot_fetched + found.cold_fetched == (HOT + COLD) // 10
    assert found.hot_fetched == (HOT + COLD) // 10 * 4 // 5
    assert found.piece == TOKEN_BYTES
    assert found.appended == 2 * TOKEN_BYTES
    assert found.sealed == found.appended * 5 // 4
    assert found.attention.nbytes == (HOT + COLD) // 10
    assert found.attention.flops == found.attention.nbytes // 2 * 2
    assert found.query.nbytes == 2 * geometry.qkv_parameters
    assert found.query.flops == 2 * 2 * geometry.qkv_parameters
    assert output_kernel(geometry, 2).nbytes == 2 * geometry.head_parameters


def test_int4_halves_the_codes_and_per_head_selection_the_pieces(geometry):
    assert work(geometry, code_bits=4).cold_scored == COLD // 8
    assert work(geometry, per_head_selection=True).piece == TOKEN_BYTES // 8


def test_codes_beyond_the_card_are_streamed(geometry):
    assert work(geometry, card_bytes=8 * 1000).streamed == COLD // 4 - 1000


def test_weights_beyond_the_gpu_are_fetched(geometry):
    assert work(geometry, gpu_bytes=geometry.weight_bytes - 8000).weights == 1000
    assert work(geometry).weights == 0


def test_methods_move_what_they_say(geometry):
    full = work(geometry, method=Method.FULL)
    assert (full.hot_fetched, full.cold_fetched, full.piece) == (HOT, COLD, 0)
    assert full.attention.nbytes == HOT + COLD
    assert (full.hot_scored, full.cold_scored, full.scores) == (0, 0, 0)
    host = work(geometry, method=Method.HOST_SCORING)
    assert (host.hot_scored, host.streamed, host.cold_scored) == (HOT // 2 + COLD // 4, COLD // 4, 0)
    recency = work(geometry, method=Method.RECENCY)
    assert (recency.hot_fetched, recency.cold_fetched) == ((HOT + COLD) // 10, 0)
    assert (recency.hot_scored, recency.streamed) == (0, 0)


def test_hits_and_late_rows(geometry):
    attended = (HOT + COLD) // 10
    hits = work(geometry, hot_hit_fraction=0.95)
    assert hits.hot_fetched == int(attended * 0.95)
    assert hits.hot_fetched + hits.cold_fetched == attended
    late = work(geometry, hot_hit_fraction=0.5, late_fraction=0.25)
    assert late.late_fetched == int((attended - int(attended * 0.5)) * 0.25)
    assert late.hot_fetched + late.cold_fetched + late.late_fetched == attended
    none_cold = work(geometry, replace(LOAD, hot_bytes=8 * (HOT + COLD)), hot_hit_fraction=0.5)
    assert (none_cold.hot_fetched, none_cold.cold_fetched) == (attended, 0)
    none_hot = work(geometry, replace(LOAD, hot_bytes=0), hot_hit_fraction=0.5)
    assert (none_hot.hot_fetched, none_hot.cold_fetched) == (0, attended)


@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("share", [1e-300, 1e-9, 1.0])
def test_the_smallest_selection_is_a_row_and_has_work(geometry, method, share):
    load = StepLoad(context_tokens=2, batch=1, hot_bytes=8 * 2 * TOKEN_BYTES)
    found = work(geometry, load, method=method, select_fraction=share)
    fetched = found.hot_fetched + found.cold_fetched
    if method in (Method.NEAR_DATA, Method.HOST_SCORING) and share < 1:
        assert fetched == TOKEN_BYTES // 8  # one head's
    assert 0 < fetched <= 2 * TOKEN_BYTES
    assert min(found.attention.flops, found.attention.nbytes) > 0


def test_a_pool_that_holds_part_of_a_row_has_its_scores(geometry):
    """Pools are given in bytes; a token is scored as a whole."""
    found = work(geometry, StepLoad(context_tokens=1, batch=1, hot_bytes=8 * (TOKEN_BYTES - 4)))
    assert (found.cold_scored, found.scores, found.queries) == (1, 8 * 4, 8 * 128)


def test_grouped_heads_do_more_operations_per_byte(geometry):
    grouped = replace(geometry, kv_heads=2)
    load = replace(LOAD, hot_bytes=0)
    assert work(grouped, load).attention.flops == work(geometry, load).attention.flops
    assert work(grouped, load).attention.nbytes * 4 == work(geometry, load).attention.nbytes


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda g: work(g, replace(LOAD, hot_bytes=10**12)), "hot_bytes is 1000000000000; allowed: at most"),
        (lambda g: work(g, replace(LOAD, hot_bytes=0), method=Method.RECENCY), "select_fraction is 0.1, "),
        (lambda _: replace(LOAD, batch=0), "batch is 0; allowed: from 1"),
        (lambda _: replace(LOAD, preempted_bytes=-1), "preempted_bytes is -1; allowed: from 0"),
        (lambda _: PipelineSettings(select_fraction=0), "select_fraction is 0; allowed: above 0"),
        (lambda _: PipelineSettings(link_cap=1.5), "link_cap is 1.5; allowed: 0.001 to 1"),
        (lambda _: PipelineSettings(link_cap=1e-300), "link_cap is 1e-300; allowed: 0.001 to 1"),
        (lambda _: PipelineSettings(code_bits=2), "code_bits is 2; allowed: 4 or 8"),
        (lambda _: PipelineSettings(lookahead_layers=-1), "lookahead_layers is -1"),
        (lambda _: PipelineSettings(late_fraction=2.0), "late_fraction is 2.0; allowed: 0 to 1"),
        (lambda _: PipelineSettings(hot_hit_fraction=-0.5), "hot_hit_fraction is -0.5"),
        (lambda _: PipelineSettings(late_fraction=0.1, lookahead_layers=0), "lookahead_layers 0: 0, nothing"),
        (lambda _: PipelineSettings(late_fraction=0.1, method=Method.FULL), "allowed with full"),
        (lambda _: PipelineSettings(hot_hit_fraction=0.1, method=Method.RECENCY), "recency: none, no score"),
    ],
)
def test_bad_work_is_refused(geometry, ask, message):
    with pytest.raises(ValueError, match=message):
        ask(geometry)

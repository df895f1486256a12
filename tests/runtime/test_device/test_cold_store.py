"""Sealing, scoring and fetching through the cold store, on both transports."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.codec.key_block import quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv.device.cold_store import ColdStore
from nearkv.device.driver import ScorerDriver
from nearkv_hdl.spec.block_header import StreamIdentity
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.card import SimulatedCard
from nearkv_sim.engines import GoldenEngine
from nearkv_sim.hardware.pcie import PRESETS, PcieLink

INT8, INT4 = KeyFormat
BLOCK = 16  # tokens of a block of the design `small`


@pytest.fixture
def store(driver):
    return ColdStore(driver)


def rows(rng, tokens, head_dim):
    return rng.standard_normal((2, tokens, head_dim)).astype(np.float16)


def test_fetch_returns_every_bit(store, rng):
    stream = store.open_stream("L0.H0", 128)
    keys, values = rows(rng, 6 * BLOCK, 128)
    keys[3, :4] = np.array([0x8000, 0x0001, 0x7BFF, 0xFBFF], np.uint16).view(np.float16)  # −0, denormal, ±max
    for part in (slice(0, 2 * BLOCK), slice(2 * BLOCK, 3 * BLOCK), slice(3 * BLOCK, None)):
        stream.seal(keys[part], values[part])
        assert stream.sealed_tokens == min(part.stop or 6 * BLOCK, 6 * BLOCK)
    tokens = np.concatenate([rng.permutation(6 * BLOCK), [3, 3, 0]])
    fetched = stream.fetch(tokens)
    for got, expected in zip(fetched, (keys, values), strict=True):
        assert got.dtype == np.float16
        assert np.array_equal(got.view(np.uint16), expected[tokens].view(np.uint16))


def test_key_masters_take_turns(rng):
    """Blocks alternate between the banks of two masters, however they are sealed; scores and rows stay."""
    tiny = replace(get_design("tiny"), block_tokens=BLOCK)
    keys, values = rows(rng, 9 * BLOCK, 64)
    query = rng.standard_normal((2, 64)).astype(np.float16)
    found = []
    for design in (tiny, replace(tiny, key_masters=2, key_bank_bytes=1 << 16)):
        with SimulatedCard(
            "tlm", design, PcieLink(PRESETS["smartssd"]), GoldenEngine(design), 1 << 20
        ) as card:
            stream = ColdStore(ScorerDriver(card)).open_stream("s", 64)
            for part in (slice(0, 3 * BLOCK), slice(3 * BLOCK, 4 * BLOCK), slice(4 * BLOCK, None)):
                stream.seal(keys[part], values[part])
            masters = [design.key_master(address) for address in stream._stored.key_addresses.tolist()]
            assert masters == [index % design.key_masters for index in range(9)]
            fetched = stream.fetch(np.arange(9 * BLOCK))
            assert np.array_equal(fetched, (keys, values))
            found.append(stream.score(query, np.arange(9)))
    one, two = found
    assert np.array_equal(one.tokens, two.tokens)
    assert np.array_equal(one.scores, two.scores)


def test_a_seal_may_be_larger_than_a_bank(rng):
    """A block takes 8 KiB with its rows, so that a bank of 32 KiB has room for four; eight banks, 32 blocks.

    One block too many takes no memory: afterwards all that is free still serves.
    """
    design = replace(get_design("tiny"), block_tokens=BLOCK, key_masters=2, key_bank_bytes=1 << 15)
    keys, values = rows(rng, 33 * BLOCK, 64)
    with SimulatedCard("tlm", design, PcieLink(PRESETS["smartssd"]), GoldenEngine(design), 8 << 15) as card:
        stream = ColdStore(ScorerDriver(card)).open_stream("s", 64)
        with pytest.raises(ValueError, match=r"stream 's' with 528 more tokens needs 270336 bytes"):
            stream.seal(keys, values)
        stream.seal(keys[: 32 * BLOCK], values[: 32 * BLOCK])
        masters = [design.key_master(address) for address in stream._stored.key_addresses.tolist()]
        assert masters == [index % 2 for index in range(32)]
        assert np.array_equal(stream.fetch(np.arange(32 * BLOCK)), (keys[: 32 * BLOCK], values[: 32 * BLOCK]))


def test_streams_do_not_mix(store, rng):
    sealed = {}
    for head_dim in (64, 128, 256, 64):
        stream = store.open_stream(f"{len(sealed)}", head_dim)
        sealed[stream] = rows(rng, 2 * BLOCK, head_dim)
    for half in (slice(0, BLOCK), slice(BLOCK, 2 * BLOCK)):
        for stream, (keys, values) in sealed.items():
            stream.seal(keys[half], values[half])
    for stream, (keys, values) in sealed.items():
        fetched_keys, fetched_values = stream.fetch(np.arange(2 * BLOCK))
        assert np.array_equal(fetched_keys, keys)
        assert np.array_equal(fetched_values, values)
        query = rng.standard_normal((2, stream.head_dim)).astype(np.float16)
        result = stream.score(query, [0, 1])
        logits = result.scores * 2.0**-result.fraction_bits
        real = keys.astype(float) @ query.T.astype(float) * np.log2(np.e) / np.sqrt(stream.head_dim)
        assert np.abs(logits - real).max() < 0.1


@pytest.mark.parametrize("key_format", [INT8, INT4, (INT8, INT4, INT4)], ids=str)
def test_scores_are_logits_within_the_quantisation_bound(store, rng, key_format):
    stream = store.open_stream("s", 64)
    keys, values = rows(rng, 4 * BLOCK, 64)
    keys[:, 7] *= 30  # an outlier channel
    stream.seal(keys, values)
    query = rng.standard_normal((8, 64)).astype(np.float16)
    chosen = np.array([3, 0, 1])
    result = stream.score(query, chosen, key_format)
    assert result.tokens.dtype == np.int64
    assert result.tokens.tolist() == [*range(48, 64), *range(32)]
    part = quantise_keys(keys[result.tokens], BLOCK)
    formats = (key_format,) * 3 if isinstance(key_format, KeyFormat) else key_format
    folded = fold_query(prepare_query(query), part.headers, formats, store.driver.design.query_code)
    assert np.array_equal(result.fraction_bits, folded.score_fraction_bits)
    # Half a key step per channel (in INT4 half of 16), half a query step per code of at most 128.
    factor = np.log2(np.e) / np.sqrt(64)
    real = keys[result.tokens].astype(float) @ query.T.astype(float) * factor
    half_steps = np.repeat([0.5 if f is INT8 else 8.0 for f in formats], BLOCK)[:, None]
    step = np.abs(query.astype(float)) @ part.headers.scale.astype(float).T * factor  # [heads, blocks]
    query_step = np.exp2(folded.shift - result.fraction_bits)
    bound = half_steps * np.repeat(step.T, BLOCK, axis=0)
    bound += np.repeat(0.5 * 128 * 64 * query_step, BLOCK, axis=0) + 1e-3 * np.abs(real).max()
    error = np.abs(result.scores * 2.0**-result.fraction_bits - real)
    assert (error <= bound).all()


def test_transports_agree(open_card, rng):
    keys, values = rows(rng, 5 * BLOCK, 64)
    query = rng.standard_normal((4, 64)).astype(np.float16)
    reports = []
    for name in ("tlm", "rtl"):
        with open_card(name) as card:
            stream = ColdStore(ScorerDriver(card)).open_stream("s", 64)
            stream.seal(keys, values)
            scores = stream.score(query, [4, 2, 0], (INT4, INT8, INT4))
            fetched = stream.fetch([70, 1])
            reports.append(
                (scores.scores.tolist(), scores.fraction_bits.tolist(), fetched[0].tolist(), card.counters)
            )
    assert reports[0] == reports[1]


def test_traffic_of_each_operation_by_hand(store, rng):
    """Payload both ways of what driver and DMA engine exchange, byte by byte."""
    transport = store.driver.transport
    doorbell, completion, word = 32, 4, 4
    stream = store.open_stream("s", 64)

    def traffic(operation, *args):
        before = transport.counters
        operation(*args)
        gained = transport.counters - before
        return gained.payload_bytes_to_device, gained.payload_bytes_from_device

    page, row = 4096, 2 * 2 * 64  # a block's planes fill half a page and start on one; key and value in FP16
    assert traffic(stream.seal, *rows(rng, 2 * BLOCK, 64)) == (
        doorbell + 2 * page + 2 * BLOCK * row,
        completion,
    )
    query = rng.standard_normal((3, 64)).astype(np.float16)
    image = 2 * (64 + 3 * 64 * 2)  # per block its descriptor and 16-bit codes of three heads
    arguments = 7 * 2 * word + 6 * word
    handshake = 3 * word  # ap_start, interrupt status, ap_continue
    interrupt, status, control, crc = 4 * [word]
    assert traffic(stream.score, query, [0, 1]) == (
        doorbell + image + arguments + handshake + doorbell,
        completion + interrupt + status + control + 2 * BLOCK * 3 * 4 + completion + crc,
    )
    addresses = 3 * 8
    assert traffic(stream.fetch, [5, 30, 2]) == (doorbell + addresses, 3 * row + completion)


def test_results_of_small_blocks_do_not_misalign_the_descriptors(rng):
    """One block of 8 tokens and one head: 32 bytes of results."""
    design = replace(get_design("tiny"), name="short", block_tokens=8)
    card = SimulatedCard("tlm", design, PcieLink(PRESETS["smartssd"]), GoldenEngine(design), 1 << 20)
    stream = ColdStore(ScorerDriver(card)).open_stream("s", 64)
    keys, values = rows(rng, 24, 64)
    stream.seal(keys, values)
    query = rng.standard_normal((1, 64)).astype(np.float16)
    whole = stream.score(query, [0, 1, 2])
    assert len(stream.score(query, [1]).scores) == 8
    assert whole.scores.shape == (24, 1)


def test_empty_lists_need_no_device(store, rng):
    stream = store.open_stream("s", 64)
    none = np.empty((0, 64), np.float16)
    before = store.driver.transport.counters
    stream.seal(none, none)
    assert stream.sealed_tokens == 0
    query = rng.standard_normal((3, 64)).astype(np.float16)
    for indices in ([], np.array([], np.int64)):
        scores = stream.score(query, indices)
        assert (scores.tokens.shape, scores.scores.shape, scores.fraction_bits.shape) == ((0,), (0, 3), (3,))
        keys, values = stream.fetch(indices)
        assert keys.shape == values.shape == (0, 64)
    assert store.driver.transport.counters == before


def test_bad_input_is_refused_and_changes_nothing(store):
    with pytest.raises(ValueError, match="head_dim is 96; design small allows: 64, 128, 256"):
        store.open_stream("s", 96)
    stream = store.open_stream("s", 64)
    with pytest.raises(ValueError, match="stream 's' is open already"):
        store.open_stream("s", 64)
    with pytest.raises(ValueError, match=r"sequence=0.* is that of stream 's'; allowed: one of its own"):
        store.open_stream("t", 64, StreamIdentity())
    good = np.ones((BLOCK, 64), np.float16)
    nan, inf = good.copy(), good.copy()
    nan[3, 5], inf[0, 0] = np.nan, np.inf
    query = np.ones((2, 64), np.float16)
    free_bytes = store.driver._allocator.free_bytes
    for refused, reason in [
        (lambda: stream.fetch([0]), "tokens holds 0; allowed: none, since stream 's' has 0 sealed tokens"),
        (lambda: stream.seal(good[1:], good[1:]), "keys has 15 tokens; allowed: a positive multiple of 16"),
        (lambda: stream.seal(good[:, :32], good), "keys has head_dim 32; allowed: 64"),
        (lambda: stream.seal(good, np.ones((32, 64), np.float16)), "keys has 16 tokens and values 32"),
        (lambda: stream.seal(good.astype(np.float32), good), "keys is float32"),
        (lambda: stream.seal(nan, good), "keys is nan at token 3, channel 5"),
        (lambda: stream.seal(good, inf), "values is inf at token 0, channel 0"),
    ]:
        with pytest.raises(ValueError, match=reason):
            refused()
    assert stream.sealed_tokens == 0
    assert store.driver._allocator.free_bytes == free_bytes
    stream.seal(good, good)
    for refused, reason in [
        (lambda: stream.fetch([0, 16]), "tokens holds 16; allowed: 0 to 15"),
        (lambda: stream.fetch([-1]), "tokens holds -1; allowed: 0 to 15"),
        (lambda: stream.fetch([0.0]), "tokens is float64"),
        (lambda: stream.fetch([[0]]), "allowed: integers"),
        (lambda: stream.score(query, [1]), "block_indices holds 1; allowed: 0 to 0"),
        (lambda: stream.score(query, [0], (INT8, INT8)), "key_format names 2 blocks"),
        (lambda: stream.score(query, [0], [7]), "7 is not a valid KeyFormat"),
        (lambda: stream.score(np.ones((9, 64), np.float16), [0]), "query has 9 heads; allowed: 1 to 8"),
        (lambda: stream.score(np.ones((1, 32), np.float16), [0]), "query has head_dim 32; allowed: 64"),
        (lambda: stream.score(nan, [0]), "query is nan"),
    ]:
        with pytest.raises(ValueError, match=reason):
            refused()


def test_device_memory_runs_out(open_card, transport_name):
    with open_card(transport_name, memory_bytes=60_000) as card:
        stream = ColdStore(ScorerDriver(card)).open_stream("long", 64)
        ones = np.ones((BLOCK, 64), np.float16)
        for _ in range(5):
            stream.seal(ones, ones)
        with pytest.raises(
            ValueError, match=r"stream 'long' with 80 more tokens needs 40960 bytes .*; 19040 "
        ):
            stream.seal(np.ones((5 * BLOCK, 64), np.float16), np.ones((5 * BLOCK, 64), np.float16))
        assert stream.sealed_tokens == 5 * BLOCK
        assert np.array_equal(stream.fetch([79])[0], ones[:1])

"""The highest scores of each head, chosen on the device, are those of a sort of all scores."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.device.cold_store import ColdStore
from nearkv.device.driver import ScorerDriver
from nearkv.device.top_scores import Selection, merge, pack_selection, unpack_selection
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.layout import KeyFormat

BLOCK = 16


@pytest.fixture(params=["tlm", "rtl", "pyxrt"])
def transport_name(request):
    return request.param


@pytest.fixture
def stream(driver, rng):
    """Ten blocks; those of tokens 64 to 95 are equal, and so are their scores."""
    stream = ColdStore(driver).open_stream("s", 64)
    keys, values = rng.standard_normal((2, 10 * BLOCK, 64)).astype(np.float16)
    keys[80:96] = keys[64:80]
    stream.seal(keys, values)
    return stream


@pytest.fixture
def query(rng):
    return rng.standard_normal((5, 64)).astype(np.float16)


def best(scores, k):
    """Of all scores: by sorting, the higher first, then the lower token."""
    found = []
    for head in range(scores.scores.shape[1]):
        ranked = sorted(zip(-scores.scores[:, head].astype(int), scores.tokens.tolist(), strict=True))[:k]
        found.append(sorted((token, -negative) for negative, token in ranked))
    return found


def pairs(selection):
    return [
        list(zip(tokens, scores, strict=True))
        for tokens, scores in zip(selection.tokens.tolist(), selection.scores.tolist(), strict=True)
    ]


@pytest.mark.parametrize("blocks", [[0], [4, 5], [1, 2, 3], list(range(10)), [9, 0, 5, 4]], ids=str)
@pytest.mark.parametrize("k", [1, 7, 8, 9, 24, 64])
def test_equals_a_sort(stream, query, blocks, k):
    key_format = KeyFormat(k % 2)
    found = stream.score_topk(query, blocks, k, key_format)
    everything = stream.score(query, blocks, key_format)
    assert pairs(found) == best(everything, k)
    assert np.array_equal(found.fraction_bits, everything.fraction_bits)
    assert found.tokens.shape == found.scores.shape == (5, min(k, len(blocks) * BLOCK))


def test_brings_the_pairs_alone(stream, query):
    """Five heads in groups of three and two, and 64 tokens: a job for each group; six pairs take 64 bytes."""
    before = stream._driver.transport.counters
    stream.score_topk(query, [0, 1, 2, 3], 6)
    assert (stream._driver.transport.counters - before).jobs == 2
    assert stream._driver.access.read(reg.WRITTEN_BYTES) == 2 * 64
    assert stream._driver.access.read(reg.TOKENS) == 64


def test_a_search_takes_its_time(stream, query):
    stream.score(query[:1], [0, 1, 2, 3])
    cycles = stream._driver.last_job().cycles
    stream.score_topk(query[:1], [0, 1, 2, 3], 6)
    assert stream._driver.last_job().cycles > cycles + stream._driver.design.topk.scan_rows


def test_bad_arguments(stream, query, open_card, transport_name):
    for k in (0, -1, 65):
        with pytest.raises(ValueError, match=rf"k is {k}; design small allows: 1 to 64"):
            stream.score_topk(query, [0], k)
    with pytest.raises(ValueError, match="blocks have tokens in common"):
        stream.score_topk(query, [3, 1, 3], 4)
    nothing = stream.score_topk(query, [], 4)
    assert nothing.tokens.shape == nothing.scores.shape == (5, 0)
    with open_card(transport_name, "tiny") as card:
        tiny = ColdStore(ScorerDriver(card)).open_stream("s", 64)
        tiny.seal(*np.ones((2, 128, 64), np.float16))
        with pytest.raises(ValueError, match="k is 3; design tiny allows: none, since it has no top-k units"):
            tiny.score_topk(query, [0], 3)


def test_damage_is_an_error_here_too(stream, query):
    address = int(stream._stored.key_addresses[1])
    stream._driver.access.write_memory(address, stream._driver.access.read_memory(address, 1) ^ 1)
    with pytest.raises(OSError, match=r"stream 's', block 1: .* error KEY_CRC .*, tokens 16 to 31"):
        stream.score_topk(query, [0, 1], 3)


def test_selections_survive_packing(rng):
    for count in (1, 7, 8, 9):
        chosen = Selection(
            rng.integers(0, 1 << 32, (3, count)),
            rng.integers(-(1 << 31), 1 << 31, (3, count)).astype(np.int32),
        )
        data = pack_selection(chosen)
        assert len(data) == 3 * 64 * -(-count // 8)
        assert pairs(unpack_selection(data, 3, count)) == pairs(chosen)
        if count % 8:
            assert not data.reshape(3, -1)[:, 8 * count :].any()


def test_merge_of_any_parts(rng):
    for _ in range(50):
        tokens = np.sort(rng.choice(1000, 40, replace=False))
        scores = rng.integers(-3, 3, (2, 40)).astype(np.int32)
        cuts = sorted(rng.choice(np.arange(1, 40), 3, replace=False))
        k = int(rng.integers(1, 45))

        def chosen(columns, k=k, tokens=tokens, scores=scores):
            index = np.arange(40)[columns]
            kept = [sorted(index[np.lexsort((tokens[index], -scores[head, index]))[:k]]) for head in range(2)]
            return Selection(tokens[np.array(kept)], np.stack([scores[h, kept[h]] for h in range(2)]))

        parts = [chosen(slice(a, b)) for a, b in zip([0, *cuts], [*cuts, 40], strict=True)]
        assert pairs(merge(parts, k)) == pairs(chosen(slice(None)))


def test_a_kernel_without_top_k_says_so(driver):
    assert driver.access.read(reg.SELECTION) == driver.design.topk_capacity == 64
    assert replace(driver.design, topk=None).topk_capacity == 0

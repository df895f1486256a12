"""What is wrong with a job that selects, and what such a job writes."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.device.top_scores import unpack_selection
from nearkv_hdl.spec import registers as reg

E = reg.ErrorCode


def select(bench, k):
    """Make the bench's job a selection with a window exact to the byte."""
    pairs = min(k, bench.blocks * bench.design.block_tokens)
    bench.arguments |= {reg.FLAGS: 1, reg.K: k, reg.RESULT_BYTES: bench.heads * 64 * -(-pairs // 8)}


@pytest.mark.parametrize(("flags", "k"), [(0, 1), (1, 0), (1, 65), (1, (1 << 32) - 1)])
def test_a_k_that_is_not_allowed(bench, flags, k):
    bench.arguments |= {reg.FLAGS: flags, reg.K: k}
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.TOP_K, 0, 0)
    assert bench.untouched()


def test_more_tokens_than_the_kernel_selects_from(bench):
    bench.descriptors *= 2
    bench.arguments |= {reg.FLAGS: 1, reg.K: 1, reg.BLOCK_COUNT: 5}
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.TOP_K, 0, 0)


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ((100, 116, 116), 116),
        ((100, 131, 90), 90),
        ((100, 115, 200), 115),
        ((100, 116, (1 << 32) - 15), (1 << 32) - 15),
    ],
)
def test_tokens_that_do_not_ascend(bench, tokens, found):
    select(bench, 3)
    for block, token in enumerate(tokens):
        bench.descriptors[block] = replace(bench.descriptors[block], first_token=token)
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.TOKEN_ORDER, 0, found)
    assert bench.untouched()


def test_a_window_of_a_selection_is_exact_to_the_byte(bench):
    select(bench, 9)
    bench.arguments[reg.RESULT_BYTES] -= 1
    assert bench.run() == reg.JobState.FAILED
    assert bench.error == (E.RESULT_ADDRESS, bench.result, 0)


@pytest.mark.parametrize("k", [1, 8, 9, 48, 64])
def test_what_is_written(bench, k):
    """The pairs by hand from the scores of the same job, and not a byte beside them."""
    assert bench.run() == reg.JobState.DONE
    tokens = bench.blocks * bench.design.block_tokens
    scores = bench.card.read_memory(bench.result, bench.result_bytes).view("<i4").reshape(tokens, bench.heads)
    bench.acknowledge()
    bench.write(bench.result, np.full(1024, bench.guard))
    select(bench, k)
    assert bench.run() == reg.JobState.DONE
    nbytes = bench.arguments[reg.RESULT_BYTES]
    found = unpack_selection(bench.card.read_memory(bench.result, nbytes), bench.heads, min(k, tokens))
    for head in range(bench.heads):
        ranked = sorted((-int(score), 100 + index) for index, score in enumerate(scores[:, head]))[:k]
        expected = sorted((token, -negative) for negative, token in ranked)
        assert list(zip(found.tokens[head].tolist(), found.scores[head].tolist(), strict=True)) == expected
    assert (bench.card.read_memory(bench.result + nbytes, 64) == bench.guard).all()
    assert bench.get(reg.WRITTEN_BYTES) == nbytes
    assert bench.get(reg.TOKENS) == tokens

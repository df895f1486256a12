"""One driver on every transport: the same scores, the same traffic, the same cycles."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.codec.block_header import with_headers
from nearkv.codec.key_block import BlockHeaders, KeyBlocks, dequantise_keys, pack_blocks
from nearkv.codec.query import FoldedQuery, fold_query, prepare_query
from nearkv.device.descriptors import StoredBlocks, job_image
from nearkv.device.driver import JobCounters, ScorerDriver
from nearkv.device.transport import open_transport
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES, StreamIdentity
from nearkv_hdl.spec.designs import DESIGNS as ALL_DESIGNS
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES, BlockDescriptor, KeyFormat
from nearkv_sim.card.kernel_cycles import READ_LATENCY_PS, reading_cycles, writing_cycles
from nearkv_sim.golden.scorer import ScorerModel
from nearkv_sim.golden.scorer_timing import job_cycles

INT8, INT4 = KeyFormat


@pytest.fixture(params=["tlm", "rtl", "pcie", "pyxrt"])
def transport_name(request):
    return request.param


IDENTITY = StreamIdentity(model=0xFFFF_FFFF, sequence=3, layer=61, kv_head=7)


def store(driver, blocks, first_tokens=None):
    """Write key blocks with their headers to the device; returns where they are."""
    count = len(blocks)
    if first_tokens is None:
        first_tokens = np.arange(count) * blocks.layout.block_tokens
    size = -(-(blocks.layout.block_bytes + HEADER_BYTES) // 4096) * 4096
    addresses = driver.allocate(size * count, "test keys") + size * np.arange(count)
    stored = StoredBlocks(IDENTITY, addresses, first_tokens, 5 + np.arange(count))
    write(driver, stored, blocks)
    return stored


def write(driver, stored, blocks):
    """Blocks with their headers."""
    written = with_headers(
        pack_blocks(blocks), blocks.layout, stored.identity, stored.first_tokens, stored.generations
    )
    for at, block in zip(stored.key_addresses.tolist(), written, strict=True):
        driver.access.write_memory(at, block)


def random_query(rng, heads, head_dim):
    return rng.standard_normal((heads, head_dim)).astype(np.float16)


def golden(design, blocks, folded):
    int8 = np.array([f is INT8 for f in folded.key_format])[:, None, None]
    codes = np.where(int8, blocks.codes, blocks.codes & np.int8(-16))
    return ScorerModel(design).score(codes, folded.codes, folded.shift, folded.bias)


def test_hand_made_block(driver):
    """Query code 3 on channel 1, bias −7, e = 2: a score is −7 + 4 · 3 · code[t, 1]."""
    design = driver.design
    layout = design.layout(64)
    codes = np.zeros((1, design.block_tokens, 64), np.int8)
    codes[0, :4, 1] = [-128, -1, 0, 127]
    codes[0, :, 0] = 99  # must not count
    table = np.ones((1, 64), np.float16)
    stored = store(driver, KeyBlocks(BlockHeaders(layout, table, table, codes[:, 0]), codes))
    query = np.zeros((1, 1, 64), np.int16)
    query[0, 0, 1] = 3
    expected = [-7 - 12 * 128, -7 - 12, -7, -7 + 12 * 127]
    for key_format, codes_seen in (
        (INT8, expected),
        (INT4, [-7 - 12 * 128, -7 - 12 * 16, -7, -7 + 12 * 112]),
    ):
        folded = FoldedQuery(query, np.array([[2]]), np.array([[-7]]), np.array([0]), (key_format,))
        scores = driver.score(stored, folded)
        assert scores.dtype == np.int32
        assert scores.shape == (design.block_tokens, 1)
        assert scores[:4, 0].tolist() == codes_seen
        assert (scores[4:] == -7).all()


@pytest.mark.parametrize("heads", range(1, 9))
def test_every_number_of_heads(driver, rng, random_keys, heads):
    blocks = random_keys(driver.design, 3, 64)
    stored = store(driver, blocks)
    query = prepare_query(random_query(rng, heads, 64))
    folded = fold_query(query, blocks.headers, (INT8, INT4, INT8), driver.design.query_code)
    jobs = driver.transport.counters.jobs
    scores = driver.score(stored, folded)
    assert np.array_equal(scores, golden(driver.design, blocks, folded))
    assert driver.transport.counters.jobs - jobs == -(-heads // driver.design.query_group)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("formats", [(INT8,), (INT4,), (INT4, INT8, INT8, INT4, INT4)], ids=str)
def test_every_head_dim_and_format(driver, rng, random_keys, head_dim, formats):
    design = driver.design
    blocks = random_keys(design, len(formats), head_dim)
    stored = store(driver, blocks)
    query = random_query(rng, 2, head_dim)
    folded = fold_query(prepare_query(query), blocks.headers, formats, design.query_code)
    before = driver.transport.counters
    scores = driver.score(stored, folded)
    assert np.array_equal(scores, golden(design, blocks, folded))
    # Independent of the golden model: the real logit of the keys as stored, within the query's rounding.
    logits = scores * 2.0**-folded.score_fraction_bits
    for index, key_format in enumerate(formats):
        real = dequantise_keys(blocks[slice(index, index + 1)], key_format) @ query.T.astype(np.float64)
        real *= np.log2(np.e) / np.sqrt(head_dim)
        lsb = np.exp2(folded.shift[index] - folded.score_fraction_bits)
        bound = 0.5 * 128 * head_dim * lsb + 1e-3 * np.abs(real).max()
        rows = slice(index * design.block_tokens, (index + 1) * design.block_tokens)
        assert (np.abs(logits[rows] - real) <= bound).all()
    cycles = job_cycles(design, [head_dim] * len(formats), formats)
    cycles += reading_cycles(design, head_dim, formats, 2, READ_LATENCY_PS)
    cycles += writing_cycles(design, scores.nbytes)
    spent, counted = (driver.transport.counters - before).device_cycles, driver.last_job()
    if driver.transport.name == "pcie":  # a kernel with its memory; the shell counts from the store on
        assert abs(counted.cycles - cycles) <= 0.05 * cycles
        assert counted.cycles < spent
        cycles = counted.cycles
    else:
        assert spent == cycles
    streamed = sum(blocks.layout.streamed_bytes(f) for f in formats)
    assert counted == JobCounters(cycles, len(formats) * design.block_tokens, streamed)


def test_128_token_blocks_and_byte_queries(open_card, transport_name, rng, random_keys):
    with open_card(transport_name, "tiny") as card:
        driver = ScorerDriver(card)
        blocks = random_keys(driver.design, 2, 64)
        stored = store(driver, blocks, np.array([256, 0]))
        query = prepare_query(random_query(rng, 3, 64))
        folded = fold_query(query, blocks.headers, (INT4, INT8), driver.design.query_code)
        scores = driver.score(stored, folded)
        assert np.array_equal(scores, golden(driver.design, blocks, folded))


def test_rewritten_keys_are_scored_afresh(driver, rng, random_keys):
    old, new = random_keys(driver.design, 3, 64), random_keys(driver.design, 3, 64)
    stored = store(driver, old)
    query = prepare_query(random_query(rng, 2, 64))
    folded = fold_query(query, old.headers, INT8, driver.design.query_code)
    driver.score(stored, folded)
    # One byte of a low plane, then a whole block, which has another generation.
    codes = old.codes.copy()
    codes[0, -1, -2:] ^= 0x0F
    codes[2] = new.codes[2]
    changed = replace(old, codes=codes)
    stored.generations[2] += 1
    write(driver, stored[np.array([0, 2])], changed[np.array([0, 2])])
    scores = driver.score(stored, folded)
    assert np.array_equal(scores, golden(driver.design, changed, folded))
    assert not np.array_equal(scores, golden(driver.design, old, folded))


@pytest.mark.parametrize("design", ALL_DESIGNS.values(), ids=ALL_DESIGNS)
def test_every_named_design(design, rng, random_keys):
    with open_transport("tlm", design) as transport:
        driver = ScorerDriver(transport)
        for head_dim in design.head_dims:
            blocks = random_keys(design, 3, head_dim)
            stored = store(driver, blocks)
            query = prepare_query(random_query(rng, 7, head_dim))
            folded = fold_query(query, blocks.headers, (INT4, INT8, INT8), design.query_code)
            scores = driver.score(stored, folded)
            assert np.array_equal(scores, golden(design, blocks, folded))


def test_jobs_of_growing_and_shrinking_size(driver, rng, random_keys):
    blocks = random_keys(driver.design, 9, 64)
    stored = store(driver, blocks)
    free_bytes = []
    for count in (1, 9, 2, 9, 5):
        some = blocks[slice(count)]
        query = prepare_query(random_query(rng, 3, 64))
        folded = fold_query(query, some.headers, INT8, driver.design.query_code)
        scores = driver.score(stored[:count], folded)
        assert np.array_equal(scores, golden(driver.design, some, folded))
        free_bytes.append(driver._allocator.free_bytes)
    assert len(set(free_bytes[1:])) == 1


def test_a_job_leaves_the_handshake_complete(driver, rng, random_keys):
    blocks = random_keys(driver.design, 2, 64)
    stored = store(driver, blocks)
    query = prepare_query(random_query(rng, 3, 64))
    folded = fold_query(query, blocks.headers, INT8, driver.design.query_code)
    for _ in range(3):
        start_ps = driver.transport.now_ps
        driver.score(stored, folded)
        # Microseconds: none of the interrupts was waited for until the deadline.
        assert driver.transport.now_ps - start_ps < 20 * 10**6
        assert driver.access.read(reg.CTRL) == reg.CTRL.mask("ap_idle")
        assert driver.access.read(reg.ISR) == 0


def test_transports_agree_in_everything(open_card, rng, random_keys):
    reports = []
    blocks = random_keys(open_card("tlm").design, 6, 128)
    query = prepare_query(random_query(rng, 7, 128))
    for name in ("tlm", "rtl"):
        with open_card(name) as card:
            driver = ScorerDriver(card)
            stored = store(driver, blocks)
            folded = fold_query(query, blocks.headers, (INT8, INT4) * 3, card.design.query_code)
            scores = driver.score(stored, folded)
            reports.append((scores.tolist(), card.counters, card.now_ps, driver.last_job()))
    assert reports[0] == reports[1]


def test_descriptors_equal_the_layout(rng, random_keys, driver):
    blocks = random_keys(driver.design, 4, 128)
    query = prepare_query(random_query(rng, 5, 128))
    folded = fold_query(query, blocks.headers, (INT8, INT4, INT4, INT8), driver.design.query_code)
    addresses, tokens = np.array([5, 6, 7, 1 << 40]) * 4096, np.array([0, 3, 2, 1]) * 16
    for heads, query_bits in ((slice(0, 5), 8), (slice(3, 5), 10)):
        stored = StoredBlocks(IDENTITY, addresses, tokens, 10 + np.arange(4))
        image = job_image(0x7000, stored, folded, heads, query_bits).tobytes()
        code_bytes = 1 if query_bits == 8 else 2
        row_bytes = (heads.stop - heads.start) * 128 * code_bytes
        for block in range(4):
            data = image[block * DESCRIPTOR_BYTES : (block + 1) * DESCRIPTOR_BYTES]
            expected = BlockDescriptor(
                key_address=int(addresses[block]),
                query_address=0x7000 + 4 * DESCRIPTOR_BYTES + block * row_bytes,
                first_token=int(tokens[block]),
                head_dim=128,
                key_format=folded.key_format[block],
                bias=tuple(folded.bias[block, heads].tolist()),
                shift=tuple(folded.shift[block, heads].tolist()),
                generation=10 + block,
            )
            assert data == expected.pack()
            codes = image[expected.query_address - 0x7000 :][:row_bytes]
            assert codes == folded.codes[block, heads].astype(f"<i{code_bytes}").tobytes()
        assert len(image) == 4 * (DESCRIPTOR_BYTES + row_bytes)


def test_bad_arguments(driver, rng, random_keys, open_card):
    blocks = random_keys(driver.design, 2, 64)
    stored = store(driver, blocks)
    query = prepare_query(random_query(rng, 1, 64))
    folded = fold_query(query, blocks.headers, INT8, driver.design.query_code)
    with pytest.raises(ValueError, match="1 stored blocks for 2 folded ones; allowed: as many, at least"):
        driver.score(stored[:1], folded)
    with pytest.raises(ValueError, match="timeout_ps is 0"):
        ScorerDriver(driver.transport, timeout_ps=0)
    wide = random_keys(driver.design, 2, 128)
    folded = fold_query(
        prepare_query(random_query(rng, 1, 128)), wide.headers, INT8, driver.design.query_code
    )
    with pytest.raises(ValueError, match="head_dim is 128; design tiny allows: 64"):
        ScorerDriver(open_card("tlm", "tiny")).score(stored, folded)


def test_no_memory_for_a_job(open_card, transport_name, rng, random_keys):
    with open_card(transport_name, memory_bytes=8192) as card:
        driver = ScorerDriver(card)
        blocks = random_keys(driver.design, 4, 64)
        query = prepare_query(random_query(rng, 3, 64))
        folded = fold_query(query, blocks.headers, INT8, driver.design.query_code)
        driver.allocate(4097, "keys")
        stored = StoredBlocks(IDENTITY, np.full(4, card.memory_base), *np.zeros((2, 4), np.int64))
        with pytest.raises(ValueError, match=r"a scoring job needs 2560 bytes of device memory; 0 are free"):
            driver.score(stored, folded)


def test_the_last_bytes_of_memory_serve_a_job(open_card, rng, random_keys):
    # Pages 0 and 1 take the keys, page 2 the scratch of 4 blocks; the rest is what 5 blocks need, not more.
    with open_card("tlm", memory_bytes=3 * 4096 + 5 * (64 + 64 + 128)) as card:
        driver = ScorerDriver(card)
        blocks = random_keys(driver.design, 4, 64)
        stored = store(driver, blocks[slice(1)])
        query = prepare_query(random_query(rng, 1, 64))
        for count in (4, 5):
            chosen = blocks[np.zeros(count, np.int64)]
            folded = fold_query(query, chosen.headers, INT8, driver.design.query_code)
            scores = driver.score(stored[np.zeros(count, np.int64)], folded)
            assert np.array_equal(scores, golden(driver.design, chosen, folded))

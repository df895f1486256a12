"""Cycles and time of single jobs: the card model against the kernel's RTL.

A third of all combinations, or with NEARKV_ALL_CYCLES=1 every one.
"""

import os
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from nearkv.codec.block_header import with_headers
from nearkv.codec.query import FoldedQuery
from nearkv.device.descriptors import StoredBlocks
from nearkv.device.driver import ScorerDriver
from nearkv_hdl.spec.block_header import StreamIdentity
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES, KeyFormat
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_sim.hardware.pcie import PRESETS
from nearkv_sim.pcie.simulator import Simulator
from nearkv_sim.pcie.transport import PcieTransport
from nearkv_sim.transports import open_pcie, open_tlm

ALL = os.environ.get("NEARKV_ALL_CYCLES") == "1"
INT8, INT4 = KeyFormat.INT8, KeyFormat.INT4
BLOCKS = (1, 2, 8, 36)
MOST = max(BLOCKS)
MEMORY_BYTES = 1 << 23
SMARTSSD = PRESETS["smartssd"]
# The SmartSSD's bus, lanes, clock and blocks, for two heads and selections of these few blocks alone.
CARD = replace(
    get_design("smartssd_ku15p"),
    name="card",
    query_group=2,
    topk=TopKConfig(capacity=MOST * 128, lanes=4, token_run=128),
)
# Keys that its reader holds last these lanes for longer than any other kernel computes without its memory.
FEW_LANES = replace(
    get_design("tiny"), name="few_lanes", bus_bytes=64, lanes=4, query_group=1, head_dims=(256,)
)


def mixed(count):
    """Runs of both formats, the longer ones further behind."""
    return tuple(INT4 if int(np.log2(1 + block)) % 2 else INT8 for block in range(count))


FORMATS = {"int8": lambda count: (INT8,) * count, "int4": lambda count: (INT4,) * count, "mixed": mixed}


def jobs(design, head_dim):
    """Blocks, name of the formats, heads, k: every combination of the others, with all formats or with one.

    Which one goes round with them, and from one head_dim to the next.
    """
    others = list(product(BLOCKS, sorted({1, design.query_group}), (0, 100) if design.topk else (0,)))
    shift = design.head_dims.index(head_dim)
    for (index, (count, heads, k)), (place, name) in product(enumerate(others), enumerate(FORMATS)):
        if ALL or (index + shift) % len(FORMATS) == place:
            yield count, name, heads, k


class LoadedCard:
    """A driver and MOST blocks of one head_dim in its card's memory, the same on every card."""

    def __init__(self, transport, head_dim):
        self.driver = ScorerDriver(transport)
        design, rng = transport.design, np.random.default_rng(head_dim)
        layout = design.layout(head_dim)
        identity = StreamIdentity(model=1, sequence=2, layer=3, kv_head=4)
        tokens, generations = design.block_tokens * np.arange(MOST), np.ones(MOST, np.int64)
        planes = rng.integers(0, 256, (MOST, layout.block_bytes), dtype=np.uint8)
        image = with_headers(planes, layout, identity, tokens, generations)
        step = -(-image.shape[1] // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
        addresses = self.driver.allocate(step * MOST, "keys") + step * np.arange(MOST)
        for address, block in zip(addresses.tolist(), image, strict=True):
            transport.write_memory(address, block)
        self.stored = StoredBlocks(identity, addresses, tokens, generations)

    def run(self, folded, k):
        """A job over the first blocks: what it brings, its CYCLES, the time at the host."""
        stored = self.stored[: len(folded.codes)]
        start_ps = self.driver.transport.now_ps
        if k:
            found = self.driver.score_topk(stored, folded, k)
            result = np.stack([found.tokens, found.scores])
        else:
            result = self.driver.score(stored, folded)
        time_ps = self.driver.transport.now_ps - start_ps
        return result, self.driver.last_job().cycles, time_ps


def random_folded(design, head_dim, heads, formats):
    rng = np.random.default_rng(len(formats))
    limit = design.query_code.max
    shape = len(formats), heads
    return FoldedQuery(
        codes=rng.integers(-limit, limit + 1, (*shape, head_dim)).astype(np.int16),
        shift=rng.integers(0, 4, shape),
        bias=rng.integers(-1000, 1000, shape),
        score_fraction_bits=np.zeros(heads, np.int64),
        key_format=formats,
    )


@pytest.fixture(scope="module")
def card_simulator():
    simulator = Simulator(CARD, SMARTSSD)
    yield simulator
    simulator.close()


@pytest.mark.parametrize(
    ("kernel", "head_dim"),
    [("simulator", 64), *(("card_simulator", head_dim) for head_dim in CARD.head_dims)],
)
def test_jobs_take_the_cycles_and_time_of_the_rtl(request, kernel, head_dim):
    simulator = request.getfixturevalue(kernel)
    design = simulator.design
    with (
        PcieTransport(design, SMARTSSD, MEMORY_BYTES, simulator=simulator) as rtl_card,
        open_tlm(design, memory_bytes=MEMORY_BYTES) as model_card,
    ):
        rtl, model = (LoadedCard(transport, head_dim) for transport in (rtl_card, model_card))
        wrong = []
        for count, name, heads, k in jobs(design, head_dim):
            folded = random_folded(design, head_dim, heads, FORMATS[name](count))
            expected, cycles, time_ps = rtl.run(folded, k)
            found, model_cycles, model_ps = model.run(folded, k)
            assert np.array_equal(found, expected)
            if abs(model_cycles - cycles) > 0.02 * cycles or abs(model_ps - time_ps) > 0.05 * time_ps:
                wrong.append((count, name, heads, k, cycles, model_cycles, time_ps, model_ps))
        assert wrong == []


@pytest.mark.slow
@pytest.mark.parametrize("key_format", KeyFormat)
def test_a_kernel_that_computes_for_long_is_waited_for(key_format):
    folded = random_folded(FEW_LANES, 256, 1, (key_format,) * 4)
    with (
        open_pcie(FEW_LANES, memory_bytes=MEMORY_BYTES) as rtl_card,
        open_tlm(FEW_LANES, memory_bytes=MEMORY_BYTES) as model_card,
    ):
        expected, cycles, _ = LoadedCard(rtl_card, 256).run(folded, 0)
        found, model_cycles, _ = LoadedCard(model_card, 256).run(folded, 0)
    assert np.array_equal(found, expected)
    assert abs(model_cycles - cycles) <= 0.02 * cycles

"""One simulator for all tests, a small trace, and experiments on it."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkv.codec.block_header import with_headers
from nearkv.codec.key_block import pack_blocks, quantise_keys
from nearkv.codec.query import fold_query, prepare_query
from nearkv.device.descriptors import StoredBlocks
from nearkv.experiments.config import ExperimentConfig, PolicyConfig
from nearkv.experiments.runner import ScorerDevice, run_experiment
from nearkv_hdl.spec.block_header import StreamIdentity
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES, KeyFormat
from nearkv_sim.golden.scorer import ScorerModel
from nearkv_sim.hardware.pcie import PRESETS
from nearkv_sim.pcie.simulator import Simulator
from nearkv_sim.pcie.tlp_log import read_log
from nearkv_sim.pcie.transport import PcieTransport
from nearkv_sim.transports import open_tlm

TINY = get_design("tiny")
MEMORY_BYTES = 1 << 20
RUNTIME = runpy.run_path(str(Path(__file__).parents[1] / "runtime" / "conftest.py"))


@pytest.fixture(scope="session")
def simulator():
    simulator = Simulator(TINY, PRESETS["smartssd"])
    yield simulator
    simulator.close()


@pytest.fixture
def open_pcie(simulator):
    """A transport on the shared simulator, freshly powered on."""

    def open_it(**options):
        return PcieTransport(TINY, simulator.config, MEMORY_BYTES, simulator=simulator, **options)

    return open_it


@pytest.fixture
def open_logged(open_pcie, tmp_path):
    """A transport by name, and where its TLPs are logged."""

    def open_it(name, **options):
        path = tmp_path / f"{name}.jsonl"
        if name == "pcie":
            return open_pcie(tlp_log=path, **options), path
        return open_tlm(TINY, memory_bytes=MEMORY_BYTES, tlp_log=path), path

    return open_it


@pytest.fixture
def run_logged(open_logged):
    """A few decode steps of one stream on a transport: result, TLPs, counters, simulated time."""
    trace = RUNTIME["make_trace"](first_query_position=520, steps=3, streams=1, group=2)

    def run(name, **changes):
        config = ExperimentConfig(trace=Path("synthetic"), policy=PolicyConfig("hill"), **changes)
        config = replace(config, design="tiny", transport=name, select_fraction=0.05)
        transport, path = open_logged(name)
        with transport:
            result = run_experiment(config, trace, ScorerDevice(transport))
            totals = transport.counters, transport.now_ps
        return result, list(read_log(path)), *totals

    return run


@pytest.fixture
def rng():
    return np.random.default_rng(7)


class KeyJob:
    """Key blocks with their headers, where they belong on a card, and a query over them."""

    def __init__(self, driver, rng, count):
        design = driver.design
        self.driver = driver
        tokens = design.block_tokens
        blocks = quantise_keys(rng.standard_normal((count * tokens, 64)).astype(np.float16), tokens)
        identity = StreamIdentity(model=1, sequence=2, layer=3, kv_head=4)
        first_tokens, generations = tokens * np.arange(count), np.ones(count, np.int64)
        self.image = with_headers(pack_blocks(blocks), blocks.layout, identity, first_tokens, generations)
        room_bytes = -(-self.image.shape[1] // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
        addresses = driver.allocate(room_bytes * count, "keys") + room_bytes * np.arange(count)
        self.stored = StoredBlocks(identity, addresses, first_tokens, generations)
        query = prepare_query(rng.standard_normal((2, 64)).astype(np.float16))
        self.folded = fold_query(query, blocks.headers, KeyFormat.INT8, design.query_code)
        self.expected = ScorerModel(design).score(
            blocks.codes, self.folded.codes, self.folded.shift, self.folded.bias
        )

    def write(self):
        for address, block in zip(self.stored.key_addresses.tolist(), self.image, strict=True):
            self.driver.access.write_memory(address, block)

    def check(self):
        assert np.array_equal(self.driver.score(self.stored, self.folded), self.expected)


@pytest.fixture
def key_job(rng):
    return lambda driver, count: KeyJob(driver, rng, count)

"""What a host does with a card, from loading to results, in blocking calls: for a bench and for its twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearkv.codec.block_header import with_headers
from nearkv.codec.key_block import KeyBlocks, pack_blocks, quantise_keys
from nearkv.codec.query import FoldedQuery, fold_query, prepare_query
from nearkv.device.descriptors import StoredBlocks
from nearkv.device.driver import ScorerDriver
from nearkv_hdl.spec.block_header import StreamIdentity
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import BLOCK_ALIGN_BYTES, KeyFormat
from nearkv_sim.golden.scorer import ScorerModel
from nearkv_sim.pcie.faults import FaultPlan
from nearkv_sim.pcie.simulation import Simulation
from nearkv_sim.pcie.transport import PcieTransport

MEMORY_BYTES = 1 << 20
_BLOCKS, _FROM_DRIVE = 3, 1  # blocks, and how many of them the drive has
# The DMA engine's first read of the second job's descriptors and codes: one transfer is repeated.
_FAULT = FaultPlan.from_dict({"faults": [{"tlp": "query_load", "index": 0, "fault": "ur"}]})


def run_host(simulation: Simulation, log: Path) -> list[int]:
    """Load blocks, score them in INT8 and INT4, through one failed transfer; compare with the golden model.

    Args:
        simulation: of a design that scores head_dim 64; blocking.
        log: file for the TLPs.

    Returns CYCLES of the jobs. AssertionError if a score differs or anything else was repeated.
    """
    design, rng = simulation.design, np.random.default_rng(11)
    keys = quantise_keys(
        rng.standard_normal((_BLOCKS * design.block_tokens, 64)).astype(np.float16), design.block_tokens
    )
    query = prepare_query(rng.standard_normal((design.query_group, 64)).astype(np.float16))
    with PcieTransport(design, simulation.config, MEMORY_BYTES, tlp_log=log, simulator=simulation) as card:
        driver = ScorerDriver(card)
        stored = _store(card, driver, keys)
        cycles = []
        for key_format in KeyFormat:
            folded = fold_query(query, keys.headers, key_format, design.query_code)
            scores = driver.score(stored, folded)
            assert np.array_equal(scores, _golden(design, keys, folded))
            cycles.append(driver.last_job().cycles)
            if key_format is KeyFormat.INT8:
                assert driver.access.retries == 0
                card.inject(_FAULT)
        assert (driver.access.retries, driver.job_retries) == (1, 0)
        report = card.link_report()
        assert report.pending_faults == 0
        assert card.counters.jobs == len(cycles)
    return cycles


def _store(card: PcieTransport, driver: ScorerDriver, keys: KeyBlocks) -> StoredBlocks:
    """Bring the blocks into the card's memory: the first ones from the host, the others from the drive."""
    tokens = driver.design.block_tokens * np.arange(_BLOCKS)
    generations = np.ones(_BLOCKS, np.int64)
    identity = StreamIdentity(model=1, sequence=2, layer=3, kv_head=4)
    image = with_headers(pack_blocks(keys), keys.layout, identity, tokens, generations)
    step = -(-image.shape[1] // BLOCK_ALIGN_BYTES) * BLOCK_ALIGN_BYTES
    addresses = driver.allocate(step * _BLOCKS, "keys") + step * np.arange(_BLOCKS)
    for index, address in enumerate(addresses.tolist()):
        if index < _BLOCKS - _FROM_DRIVE:
            driver.access.write_memory(address, image[index])
        else:
            card.fill_drive(4096, image[index])
            card.drive_to_card(4096, address, image.shape[1])
    return StoredBlocks(identity, addresses, tokens, generations)


def _golden(design: DesignConfig, keys: KeyBlocks, folded: FoldedQuery) -> np.ndarray:
    codes = keys.codes
    if folded.key_format[0] is KeyFormat.INT4:
        codes = codes // 16 * 16
    return ScorerModel(design).score(codes, folded.codes, folded.shift, folded.bias)

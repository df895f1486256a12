"""The transport pcie against tlm: the same results, the same TLPs, nearly the same time."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from nearkv.experiments.compare import compare
from nearkv_sim.pcie.tlp_log import read_log, totals

DLLP_BYTES = 8


def without_dllps(counters, log):
    """Counters with the wire bytes of TLPs alone, and without cycles."""
    wire_bytes = Counter()
    for (direction, _), (_, _, nbytes) in totals(log).items():
        wire_bytes[direction] += nbytes
    to_device, from_device = wire_bytes["to_device"], wire_bytes["from_device"]
    return replace(
        counters, wire_bytes_to_device=to_device, wire_bytes_from_device=from_device, device_cycles=0
    )


def within(share, one, other):
    return abs(one - other) <= share * max(one, other)


def test_an_experiment_is_the_same_on_both(run_logged):
    tlm, tlm_log, tlm_counters, tlm_ps = run_logged("tlm")
    pcie, pcie_log, pcie_counters, pcie_ps = run_logged("pcie")
    comparison = compare(tlm, pcie)
    assert comparison.difference is None
    assert {"score_crc32", "output_crc32", "to_device_bytes", "from_device_bytes"} <= set(comparison.fields)
    assert "device_cycles" not in comparison.fields
    assert comparison.steps == 3
    assert sum(record.fetched_tokens + record.promotion_read_tokens for record in tlm.records) > 0
    assert totals(pcie_log) == totals(tlm_log)
    assert without_dllps(pcie_counters, pcie_log) == without_dllps(tlm_counters, tlm_log)
    assert pcie_counters.jobs == 3
    for way in ("wire_bytes_to_device", "wire_bytes_from_device"):
        assert within(0.01, getattr(pcie_counters, way), getattr(tlm_counters, way))
    assert within(0.05, tlm_ps, pcie_ps)
    for one, other in zip(tlm.records, pcie.records, strict=True):
        assert within(0.001, one.fetch_time_ps, other.fetch_time_ps)
        assert within(0.05, one.score_time_ps, other.score_time_ps)


@pytest.mark.parametrize("nbytes", [1, 64, 255, 4096, 10_000])
@pytest.mark.parametrize("offset", [0, 5])
def test_single_transfers_agree_in_every_tlp(open_logged, rng, nbytes, offset):
    data = rng.integers(0, 256, nbytes, dtype=np.uint8)
    seen = []
    for name in ("tlm", "pcie"):
        transport, path = open_logged(name)
        with transport:
            start = transport.memory_base + offset
            transport.write_memory(start, data)
            times_ps = [transport.now_ps]
            assert np.array_equal(transport.read_memory(start, nbytes), data)
            times_ps.append(transport.now_ps)
            rows = transport.read_gather(np.array([start + nbytes // 2, start]), max(1, nbytes // 2))
            times_ps.append(transport.now_ps)
            assert np.array_equal(rows[1], data[: max(1, nbytes // 2)])
            counters = transport.counters
        seen.append((counters, list(read_log(path)), times_ps))
    (tlm, tlm_log, tlm_ps), (pcie, pcie_log, pcie_ps) = seen
    assert totals(pcie_log) == totals(tlm_log)
    assert without_dllps(pcie, pcie_log) == without_dllps(tlm, tlm_log)
    # A link-layer packet that is due is counted when it is sent here, by tlm with the TLP that follows it.
    for way in ("wire_bytes_to_device", "wire_bytes_from_device"):
        assert abs(getattr(pcie, way) - getattr(tlm, way)) <= 2 * DLLP_BYTES
    for one, other in zip(tlm_ps, pcie_ps, strict=True):
        assert within(0.001, one, other)

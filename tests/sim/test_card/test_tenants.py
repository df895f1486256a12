"""Two tenants of one card: nothing that A's jobs read or wrote is in what B's jobs write."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv_hdl.spec import registers as reg

PATTERN = 0xA5


@pytest.mark.parametrize("k", [0, 5])
@pytest.mark.parametrize("end", ["done", "failed", "dropped"])
def test_short_jobs_after_another_tenants(bench, end, k):
    """B's job is the shortest; all memory but its results stays, and those are as on a card of its own."""
    before = snapshot(bench)
    of_a = bench.descriptors, bench.arguments
    of_b = job_of_b(bench, k)
    alone = run(bench, *of_b)

    bench.descriptors, bench.arguments = of_a
    restore(bench, before)
    bench.planes[:] = PATTERN
    bench.write_blocks()
    if end == "failed":
        bench.flip(bench.keys, 0)
    bench.start()
    if end != "dropped":
        bench.card.wait_interrupt(10**9)
    bench.set(reg.RESET, 1)
    bench.enable_interrupts()

    restore(bench, before)
    shared = run(bench, *of_b)
    assert shared == alone
    results = shared[0]
    changed = np.flatnonzero(np.frombuffer(results, np.uint8) != np.frombuffer(before, np.uint8))
    starts = (bench.list - bench.card.memory_base, bench.result - bench.card.memory_base)
    # B's own descriptor and results, 64 bytes each.
    assert set(changed // 64 * 64) <= set(starts)
    assert bytes([PATTERN]) * 4 not in results


def snapshot(bench):
    """All memory that the bench uses."""
    base = bench.card.memory_base
    content = np.full(0x50000, 0x11, np.uint8)
    parts = ((bench.keys, 3 * 4096), (bench.queries, 3 * bench.row_bytes))
    for address, nbytes in parts:
        for at in range(address, address + nbytes, 64):
            try:
                content[at - base : at - base + 64] = bench.card.read_memory(at, 64)
            except OSError:  # never written: the pattern there will do
                continue
    restore(bench, content.tobytes())
    return content.tobytes()


def restore(bench, content):
    bench.write(bench.card.memory_base, np.frombuffer(content, np.uint8))


def job_of_b(bench, k):
    """Descriptors and arguments of one block and one head."""
    first = bench.descriptors[0]
    descriptors = [replace(first, bias=first.bias[:1], shift=first.shift[:1])]
    changes = {reg.BLOCK_COUNT: 1, reg.HEADS: 1, reg.K: k, reg.FLAGS: int(k > 0), reg.RESULT_BYTES: 64}
    return descriptors, bench.arguments | changes


def run(bench, descriptors, arguments):
    """Memory and counters after a good job."""
    bench.descriptors, bench.arguments = descriptors, arguments
    assert bench.run() == reg.JobState.DONE
    counters = tuple(bench.get(register) for register in reg.COUNTERS)
    bench.acknowledge()
    return bench.card.read_memory(bench.card.memory_base, 0x50000).tobytes(), counters

"""Reads of which some requests fail, for the benches of faults and timeouts."""

from __future__ import annotations

from typing import Any

from cocotbext.axi import AxiResp

from nearkv_hdl.pcie.formats import BEAT_BYTES
from nearkv_sim.benches.pcie_requester_bench import bench_of
from nearkv_sim.benches.pcie_requester_harness import HOST_BASE, RequesterBench

LIMIT_CYCLES, REST_CYCLES = 600, 900  # timeout and quarantine here
_MAX_READ = 2  # requests of 512 bytes, which the host here answers in four completions
READ_BYTES = 128 << _MAX_READ
_READ_BEATS = READ_BYTES // BEAT_BYTES
PIECES = 5
START = HOST_BASE + 3 * READ_BYTES


async def failing_bench_of(dut: Any) -> RequesterBench:
    """A bench with short timeouts, whose host answers a request in four completions."""
    bench = await bench_of(dut)
    await bench.set_sizes(0, _MAX_READ)
    bench.host.max_payload_size = 0
    dut.timeout_cycles.value, dut.quarantine_cycles.value = LIMIT_CYCLES, REST_CYCLES
    return bench


async def check_failing(bench: RequesterBench, *failing: int) -> None:
    """Read five requests' bytes; beats of the failing ones alone are errors, the others have their data."""
    bench.answers.clear()
    answer = await bench.axi.read(START, PIECES * READ_BYTES)
    for piece in range(PIECES):
        answers = set(bench.answers[piece * _READ_BEATS : (piece + 1) * _READ_BEATS])
        assert answers == {AxiResp.SLVERR if piece in failing else AxiResp.OKAY}, (piece, bench.answers)
        if piece not in failing:
            at = piece * READ_BYTES
            expected = bench.content(START + at, READ_BYTES)
            assert bytes(answer.data[at : at + READ_BYTES]) == expected, piece
    assert len(bench.answers) == PIECES * _READ_BEATS

"""Situations of tiered caches: capacity and bandwidth move time, rooflines hold, overlap is real."""

from __future__ import annotations

import pytest

from nearkv.pipeline.comparison import cache_bytes
from nearkv.pipeline.decode import run_decode
from nearkv.pipeline.recompute import Recovery, recovery_times
from nearkv.pipeline.settings import Method, PipelineSettings
from nearkv.pipeline.work import StepLoad
from nearkv_sim.hardware.machine import open_machine
from nearkv_sim.hardware.model_shapes import named_model

GIB = 2**30
GB = 10**9
PS_PER_S = 10**12
QWEN = named_model("qwen_7b").config


@pytest.fixture(scope="module")
def hillinfer():
    return open_machine("hillinfer")


@pytest.mark.parametrize("method", [Method.NEAR_DATA, Method.HOST_SCORING, Method.FULL])
def test_f1_a_growing_hot_tier_moves_hits_and_time(hillinfer, method):
    runs = [
        run_decode(
            hillinfer,
            QWEN,
            StepLoad(context_tokens=36_000, batch=4, hot_bytes=size * GIB),
            PipelineSettings(method=method),
        )
        for size in (0, 10, 25, 50)
    ]
    hits = [run.work.hot_fetched for run in runs]
    assert hits[0] == 0
    assert hits == sorted(set(hits))
    times = [run.step_ps for run in runs]
    assert times == sorted(set(times), reverse=True)
    assert times[0] > 2 * times[-1]
    assert runs[0].cold_traffic_bytes > 2 * runs[-1].cold_traffic_bytes


def test_f1_a_links_bandwidth_moves_the_time(rates, geometry):
    load = StepLoad(context_tokens=20_000, batch=4, hot_bytes=8 * 10**8)

    def step_ps(drive_link: float) -> int:
        return run_decode(rates(drive_link=drive_link), geometry, load, PipelineSettings()).step_ps

    infinite, fast, slow = step_ps(1e18), step_ps(3.2 * GB), step_ps(0.1 * GB)
    assert infinite < fast < slow
    assert slow > 20 * fast


@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("steps", [1, 3])
def test_f3_throughput_stays_below_every_roofline(rates, geometry, method, steps):
    machine = rates()
    load = StepLoad(context_tokens=20_000, batch=4, hot_bytes=10**9)
    run = run_decode(machine, geometry, load, PipelineSettings(method=method), steps=steps)
    seconds = run.schedule.time_ps / PS_PER_S
    passes = run.layers * steps
    work = run.work
    cold = work.cold_fetched + work.late_fetched + work.streamed
    assert passes * cold <= machine.drive_link * seconds
    assert passes * (work.hot_fetched + work.cold_fetched) <= machine.gpu_link * seconds
    assert passes * work.hot_scored <= machine.cpu * seconds
    assert passes * work.cold_scored <= machine.card * seconds
    weights = work.query.nbytes + work.attention.nbytes + work.rest.nbytes
    assert passes * weights <= machine.gpu_bytes * seconds
    assert run.tokens_per_s <= load.batch * steps * PS_PER_S / run.schedule.bound_ps


def test_f3_preemption_costs_time(hillinfer):
    def step_ps(preempted: int) -> int:
        load = StepLoad(context_tokens=8192, batch=4, hot_bytes=12 * GIB, preempted_bytes=preempted)
        return run_decode(hillinfer, QWEN, load, PipelineSettings()).step_ps

    assert step_ps(4 * GIB) > step_ps(1 * GIB) > step_ps(0)


def test_f5_offload_slower_than_recompute_is_said_and_can_be_avoided(rates, geometry):
    slow = recovery_times(rates(drive_link=0.1 * GB), geometry, 4096, "nand")
    assert slow.faster is Recovery.RECOMPUTE
    assert "fetching from nand at 0.10 GB/s is slower than computing again" in slow.warning
    fast = recovery_times(rates(drive_link=1e12), geometry, 4096, "nand")
    assert fast.faster is Recovery.FETCH
    assert fast.warning == ""
    assert slow.break_even_bytes_per_s == fast.break_even_bytes_per_s
    for factor, choice in ((0.99, Recovery.RECOMPUTE), (1.01, Recovery.FETCH)):
        machine = rates(drive_link=slow.break_even_bytes_per_s * factor, gpu_link=1e15)
        assert recovery_times(machine, geometry, 4096, "nand").faster is choice


def test_f5_on_the_papers_machine(hillinfer):
    """Prefill of a 7B model yields its cache at a few GB/s: above the SmartSSD's link, below the host's."""
    drive = recovery_times(hillinfer, QWEN, 4096, "nand")
    host = recovery_times(hillinfer, QWEN, 4096, "host_memory")
    assert drive.break_even_bytes_per_s == host.break_even_bytes_per_s
    assert drive.kv_bytes == cache_bytes(QWEN, 4096, 1)
    assert host.faster is Recovery.FETCH
    assert (drive.fetch_ps > drive.recompute_ps) == bool(drive.warning)


@pytest.mark.parametrize("gpu_bytes", [2 * GB, 20 * GB, 200 * GB])
def test_f7_a_step_takes_the_longer_of_compute_and_transfer(rates, geometry, gpu_bytes):
    """Not their sum, from bound by the link to bound by the GPU."""
    machine = rates(gpu_bytes=gpu_bytes)
    load = StepLoad(context_tokens=20_000, batch=1, hot_bytes=cache_bytes(geometry, 20_000, 1))
    run = run_decode(machine, geometry, load, PipelineSettings(method=Method.FULL), steps=4)
    compute_ps = run.schedule.busy_ps["gpu"]
    transfer_ps = run.schedule.busy_ps["gpu_link out"]
    longer, total = max(compute_ps, transfer_ps), compute_ps + transfer_ps
    assert longer <= run.schedule.time_ps < longer + 0.35 * (total - longer)
    assert run.schedule.serial_ps >= total

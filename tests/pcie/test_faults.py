"""One fault of every kind: what the driver sees, that it recovers, and that the links are as before."""

import numpy as np
import pytest

from nearkv.device.access import RetryingAccess
from nearkv.device.driver import ScorerDriver
from nearkv.device.errors import DeviceError, DeviceTimeout, TransferError
from nearkv_sim.pcie.faults import Fault, FaultKind, FaultPlan, TlpRole
from nearkv_sim.pcie.tlp_log import read_log

DATA = np.arange(6000, dtype=np.uint32).view(np.uint8)
LINK_LAYER = [
    (FaultKind.DROPPED, 1, "nak"),
    (FaultKind.DROPPED, 3, "replay"),
    (FaultKind.CORRUPTED, 1, "bad lcrc"),
    (FaultKind.CORRUPTED, 9, "retraining"),
    (FaultKind.DUPLICATED, 1, "duplicate"),
]
BULK = [TlpRole.QUERY_LOAD, TlpRole.QUERY_COMPLETION, TlpRole.RESULT_WRITE]


@pytest.fixture(scope="session")
def idle_counts(simulator):
    """Credits, tags and buffers of links on which nothing has gone wrong."""
    return simulator.call("link_report")[0]


@pytest.fixture
def recovers(open_logged, idle_counts):
    """Write and read with a plan; returns how often a transfer was repeated, events and log."""

    def run(*faults):
        transport, path = open_logged("pcie", faults=FaultPlan(faults))
        with transport:
            access = RetryingAccess(transport)
            access.write_memory(transport.memory_base, DATA)
            assert np.array_equal(access.read_memory(transport.memory_base, len(DATA)), DATA)
            time_ps = transport.now_ps
            report = transport.link_report()
        assert report.pending_faults == 0
        assert report.counts == idle_counts
        return access.retries, report.events, list(read_log(path)), time_ps

    return run


@pytest.mark.parametrize(("kind", "count", "event"), LINK_LAYER)
@pytest.mark.parametrize("role", BULK)
def test_the_link_layer_cures_its_own_faults(recovers, role, kind, count, event):
    retries, events, log, _ = recovers(Fault(role, 5, kind, count=count))
    assert retries == 0
    assert events[event] > 0
    assert [record.status for record in log].count(kind.value) == count
    assert ("replay" in {record.status for record in log}) is (kind is not FaultKind.DUPLICATED)


@pytest.mark.parametrize("role", [TlpRole.DOORBELL, TlpRole.DMA_COMPLETION])
def test_the_last_packet_before_silence_is_replayed_by_the_timer(recovers, role):
    retries, events, _, _ = recovers(Fault(role, 0, FaultKind.DROPPED))
    assert retries == 0
    assert events["replay"] > 0


@pytest.mark.parametrize(
    ("fault", "event"),
    [
        (Fault(TlpRole.QUERY_LOAD, 3, FaultKind.UR), "completion with status UR"),
        (Fault(TlpRole.QUERY_LOAD, 3, FaultKind.CA), "completion with status CA"),
        (Fault(TlpRole.QUERY_LOAD, 3, FaultKind.TIMEOUT), "completion timeout"),
        (Fault(TlpRole.QUERY_COMPLETION, 3, FaultKind.TIMEOUT), "completion timeout"),
        (Fault(TlpRole.QUERY_COMPLETION, 3, FaultKind.POISONED), "poisoned completion"),
        (Fault(TlpRole.RESULT_WRITE, 3, FaultKind.POISONED), "poisoned write at host"),
        (Fault(TlpRole.DMA_COMPLETION, 0, FaultKind.POISONED), "poisoned write at host"),
        (Fault(TlpRole.DOORBELL, 1, FaultKind.POISONED), "poisoned write at device"),
    ],
    ids=lambda value: f"{value.tlp.value}-{value.fault.value}" if isinstance(value, Fault) else "",
)
def test_a_failed_transfer_is_repeated_once(recovers, fault, event):
    retries, events, _, _ = recovers(fault)
    assert retries == 1
    assert events[event] == 1


def test_a_delay_costs_its_time(recovers):
    *_, undisturbed_ps = recovers()
    retries, events, log, time_ps = recovers(
        Fault(TlpRole.DMA_COMPLETION, 0, FaultKind.DELAYED, delay_ps=700_000)
    )
    assert retries == 0
    assert "delayed" in {record.status for record in log}
    assert not events
    assert time_ps - undisturbed_ps == 700_000


def test_a_late_completion_is_dropped(recovers):
    late = Fault(TlpRole.QUERY_COMPLETION, 4, FaultKind.DELAYED, delay_ps=70_000_000)
    retries, events, _, _ = recovers(late)
    assert retries == 1
    assert events["unexpected completion"] > 0


def test_registers(open_pcie, idle_counts):
    kinds = (FaultKind.UR, FaultKind.CA, FaultKind.TIMEOUT)
    plan = FaultPlan(
        (
            *(Fault(TlpRole.REGISTER_READ, index, kind) for index, kind in enumerate(kinds)),
            Fault(TlpRole.REGISTER_COMPLETION, 2, FaultKind.POISONED),
            Fault(TlpRole.REGISTER_READ, 5, FaultKind.CORRUPTED, count=2),
        )
    )
    with open_pcie(faults=plan) as transport:
        for reason in ("status UR", "status CA", "completion timeout", "poisoned completion"):
            with pytest.raises(TransferError, match=reason):
                transport.read_register(0)
        values = {transport.read_register(0) for _ in range(3)}
        assert len(values) == 1
        assert transport.link_report().counts == idle_counts


def test_a_lost_interrupt_costs_its_deadline_and_no_job(open_pcie, key_job):
    with open_pcie(faults=FaultPlan((Fault(TlpRole.MSI, 0, FaultKind.LOST_MSI),))) as transport:
        driver = ScorerDriver(transport, timeout_ps=10**12)
        job = key_job(driver, 1)
        job.write()
        job.check()
        assert transport.now_ps > 10**12  # skipped, not simulated
        assert driver.job_retries == 0
        start_ps = transport.now_ps
        job.check()
        assert transport.now_ps - start_ps < 10**8


def test_a_link_that_comes_back(recovers):
    retries, events, _, _ = recovers(Fault(TlpRole.QUERY_LOAD, 5, FaultKind.LINK_DOWN, delay_ps=5_000_000))
    assert retries == 1
    assert events["link down"] == 2  # both ends


def test_a_link_that_stays_down_is_an_error_everywhere(open_pcie):
    with open_pcie(faults=FaultPlan((Fault(TlpRole.DOORBELL, 0, FaultKind.LINK_DOWN),))) as transport:
        access = RetryingAccess(transport)
        with pytest.raises(DeviceError, match="failed twice"):
            access.write_memory(transport.memory_base, DATA)
        with pytest.raises(TransferError, match="completion timeout"):
            transport.read_register(0)
        transport.write_register(0, 0)
        with pytest.raises(DeviceTimeout):
            transport.wait_interrupt(10**9)
    with open_pcie() as transport:  # power cycles the link, too
        transport.write_memory(transport.memory_base, DATA)
        assert np.array_equal(transport.read_memory(transport.memory_base, len(DATA)), DATA)

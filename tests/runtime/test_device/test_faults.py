"""What fails is repeated once, then reported by its cause; the next job finds a clean device."""

import numpy as np
import pytest

from nearkv.device.cold_store import ColdStore
from nearkv.device.driver import ScorerDriver
from nearkv.device.errors import DeviceError, DeviceTimeout, JobError
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.card import SimulatedCard
from nearkv_sim.engines import GoldenEngine
from nearkv_sim.hardware.pcie import PRESETS, PcieLink

TIMEOUT_PS = 10**9


@pytest.fixture
def store(faulty):
    return ColdStore(ScorerDriver(faulty, TIMEOUT_PS))


@pytest.fixture
def driver(store):
    return store.driver


@pytest.fixture
def work(store, rng):
    """Score and fetch on a sealed stream, checked against the first, undisturbed run."""
    stream = store.open_stream("s", 64)
    keys, values = rng.standard_normal((2, 64, 64)).astype(np.float16)
    stream.seal(keys, values)
    query = rng.standard_normal((5, 64)).astype(np.float16)
    expected = stream.score(query, [2, 0]).scores
    assert store.driver.job_retries == store.driver.access.retries == 0

    def run():
        assert np.array_equal(stream.score(query, [2, 0]).scores, expected)
        fetched_keys, fetched_values = stream.fetch([63, 5])
        assert np.array_equal(fetched_keys, keys[[63, 5]])
        assert np.array_equal(fetched_values, values[[63, 5]])

    return run


OPERATIONS = {
    "read_register": "read of STATUS",
    "write_register": "write of DESCRIPTOR_ADDRESS",
    "write_memory": "write to memory at 0x",
    "read_memory": "read of memory at 0x",
    "read_gather": "gather of 2 rows",
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_failed_transfer_is_repeated(faulty, driver, work, operation):
    faulty.failures[operation] = 1
    work()
    assert driver.access.retries == 1
    assert driver.job_retries == 0


@pytest.mark.parametrize(("operation", "what"), OPERATIONS.items())
def test_a_second_failure_names_the_transfer(faulty, work, operation, what):
    faulty.failures[operation] = 2
    with pytest.raises(
        DeviceError, match=f"transport tlm: {what}.* failed twice: {operation} was told to fail"
    ):
        work()
    work()


def damage(**bits):
    """Flip bits of the first descriptor: by byte offset."""

    def apply(data):
        for at, mask in bits.items():
            data[int(at[1:])] ^= mask

    return apply


def test_a_job_damaged_in_transit_is_repeated(faulty, driver, work):
    def once(data):
        damage(_3=0x80)(data)
        faulty.damage = None

    faulty.damage = once
    work()
    assert driver.job_retries == 1


@pytest.mark.parametrize(
    ("bits", "code"),
    [
        ({"_0": 1}, reg.ErrorCode.KEY_ADDRESS),
        ({"_7": 0xFF}, reg.ErrorCode.KEY_ADDRESS),
        ({"_12": 1}, reg.ErrorCode.HEAD_DIM),
        ({"_14": 2}, reg.ErrorCode.KEY_FORMAT),
        ({"_15": 8}, reg.ErrorCode.HEADS),
        ({"_23": 0x40}, reg.ErrorCode.QUERY_ADDRESS),
        ({"_56": 0x08}, reg.ErrorCode.SHIFT),
        ({"_60": 1}, reg.ErrorCode.HEADER_IDENTITY),
    ],
)
def test_a_job_damaged_twice_is_an_error(faulty, driver, work, bits, code):
    faulty.damage = damage(**bits)
    # Block 2, token 32, comes first in the list.
    with pytest.raises(
        JobError, match=f"stream 's', block 2: job .* state FAILED, error {code.name} at .*, tokens 32 to 47"
    ) as e:
        work()
    assert (e.value.code, e.value.token, e.value.tokens) == (code, 32, 16)
    assert driver.job_retries == 1
    faulty.damage = None
    work()
    assert driver.job_retries == 1


def damaged_block(store):
    """Address of the planes of block 2, which `work` scores first."""
    return int(store.streams["s"]._stored.key_addresses[2])


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        (0, reg.ErrorCode.KEY_CRC),
        (16 * 64, reg.ErrorCode.HEADER_CRC),
        (16 * 64 + 60, reg.ErrorCode.HEADER_CRC),
    ],
)
def test_a_block_damaged_in_memory_is_an_error_each_time(faulty, store, driver, work, offset, code):
    """What a re-read does not cure does not hang either, and other blocks go on."""
    address = damaged_block(store) + offset
    good = faulty.read_memory(address, 1)
    faulty.write_memory(address, good ^ 4)
    for repeats in (1, 2):
        with pytest.raises(JobError, match=rf"stream 's', block 2: .*{code.name} .*, tokens 32 to 47") as e:
            work()
        assert (e.value.code, e.value.token, e.value.tokens) == (code, 32, 16)
        assert driver.job_retries == repeats
    query = np.ones((1, 64), np.float16)
    assert len(store.streams["s"].score(query, [0, 1, 3]).scores) == 48
    faulty.write_memory(address, good)
    work()


def test_a_block_damaged_once_is_read_again(faulty, store, driver, work):
    """The bit is right again when the job is repeated."""
    address = damaged_block(store)
    good = faulty.read_memory(address, 1)
    faulty.write_memory(address, good ^ 4)
    reset = driver._reset

    def cure():
        faulty.write_memory(address, good)
        reset()

    driver._reset = cure
    work()
    assert driver.job_retries == 1


def test_a_job_that_hangs_once_is_repeated(bad_engine, driver, work):
    bad_engine.hangs = 1
    work()
    assert driver.job_retries == 1


def test_a_job_that_hangs_is_a_timeout_with_its_state(bad_engine, faulty, driver, work):
    bad_engine.hangs = 2
    start_ps = faulty.now_ps
    with pytest.raises(
        DeviceTimeout, match=r"job of 2 blocks, 3 heads, head_dim 64 did not finish within 1000000000 ps"
    ) as caught:
        work()
    assert caught.value.state is reg.JobState.RUNNING
    # 1 ms at 100 MHz, give or take the flight of the start and of the question.
    assert abs(caught.value.cycles - 100_000) < 200
    assert 2 * TIMEOUT_PS <= faulty.now_ps - start_ps < 3 * TIMEOUT_PS
    assert isinstance(caught.value, OSError)
    work()
    assert driver.job_retries == 1  # the job that followed found a clean kernel


def test_endless_interrupts_do_not_keep_the_deadline_away(bad_engine, faulty, driver, work):
    bad_engine.hangs = 1
    faulty.stale_interrupts = 10**9
    start_ps = faulty.now_ps
    work()
    assert driver.job_retries == 1
    assert TIMEOUT_PS <= faulty.now_ps - start_ps < 2 * TIMEOUT_PS


def test_a_job_beyond_the_deadline_is_a_timeout_too(bad_engine, work):
    bad_engine.extra_cycles = 200_000
    with pytest.raises(DeviceTimeout, match="state RUNNING"):
        work()
    bad_engine.extra_cycles = 0
    work()


def test_a_lost_interrupt_loses_no_job(faulty, driver, work):
    faulty.lost_interrupts = 1
    work()
    assert driver.job_retries == 0


def test_a_stale_interrupt_ends_no_job(faulty, driver, bad_engine, work):
    bad_engine.extra_cycles = 10_000
    faulty.stale_interrupts = 3
    work()
    assert driver.job_retries == 0
    assert faulty.stale_interrupts == 0


def test_a_dead_link_is_an_error(faulty, work):
    faulty.all_ones = True
    with pytest.raises(DeviceError, match="STATUS is 0xffffffff, no job state"):
        work()
    faulty.all_ones = False
    work()


def test_a_failed_seal_leaves_the_stream_as_it_was(faulty, store, work):
    stream = store.streams["s"]
    rows = np.ones((16, 64), np.float16)
    faulty.failures["write_memory"] = 2
    with pytest.raises(DeviceError, match="failed twice"):
        stream.seal(rows, rows)
    assert stream.sealed_tokens == 64
    work()
    stream.seal(rows, rows)
    assert stream.sealed_tokens == 80
    assert np.array_equal(stream.fetch([79])[0], rows[:1])


def test_another_kernel_is_refused(faulty):
    tiny = get_design("tiny")
    link = PcieLink(PRESETS["smartssd"])

    class Mislabelled(SimulatedCard):
        design = property(lambda _: faulty.design)

    with pytest.raises(DeviceError, match=r"SCORER is 0x10802 .*'query_group': 2.*design small has"):
        ScorerDriver(Mislabelled("tlm", tiny, link, GoldenEngine(tiny), 1 << 20))
    faulty.all_ones = True
    with pytest.raises(DeviceError, match="IDENTITY is 0xffffffff"):
        ScorerDriver(faulty)


def test_a_job_that_was_left_behind_is_dropped_by_the_next(faulty, driver, work):
    """The link is down while the job runs, so that nobody resets the kernel."""
    faulty.failures["read_register"] = 2
    with pytest.raises(DeviceError, match="read of STATUS failed twice"):
        work()
    work()
    assert driver.job_retries == 0

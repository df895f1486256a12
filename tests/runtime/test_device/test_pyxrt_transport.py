"""The transport for XRT over a stand-in for its Python module; the driver's tests run over it, too."""

import numpy as np
import pytest

from nearkv.device.cold_store import ColdStore
from nearkv.device.driver import ScorerDriver
from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv.device.pyxrt_memory import PyxrtMemory, runs
from nearkv.device.transport import TransportCounters
from nearkv_hdl.spec import registers as reg

UNIT = 64
MEMORY_BYTES = 1 << 20


@pytest.fixture
def card(open_card):
    return open_card("tlm", memory_bytes=MEMORY_BYTES)


@pytest.fixture
def transport(open_pyxrt, card):
    with open_pyxrt(card) as transport:
        yield transport


@pytest.fixture
def to_device(transport):
    return transport.module.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE


def test_it_opens_one_exclusive_unit_and_one_buffer(transport, card):
    assert (transport.name, transport.design) == ("pyxrt", card.design)
    assert (transport.memory_base, transport.memory_bytes) == (card.memory_base, MEMORY_BYTES)
    assert transport.counters == TransportCounters()
    assert transport.now_ps == 0
    assert transport.module.live() == ["Device", "KernelWithRegisters", "Bo"]


def test_memory_at_every_alignment(transport, rng, to_device):
    base = transport.memory_base
    expected = rng.integers(0, 256, 4 * UNIT, dtype=np.uint8)
    transport.write_memory(base, expected)
    for start in (0, 1, UNIT - 1, UNIT, UNIT + 5):
        for nbytes in (1, 2, UNIT - 1, UNIT, UNIT + 1, 2 * UNIT + 3):
            data = rng.integers(0, 256, nbytes, dtype=np.uint8)
            transport.write_memory(base + start, data)
            expected[start : start + nbytes] = data
            assert np.array_equal(transport.read_memory(base, 4 * UNIT), expected)
            assert np.array_equal(transport.read_memory(base + start, nbytes), data)
    # No write moved more than its units.
    assert max(size for direction, _, size in transport.module.syncs if direction is to_device) == 4 * UNIT


def test_a_ragged_write_keeps_what_the_card_wrote_around_it(transport, card):
    base = transport.memory_base
    transport.write_memory(base, np.zeros(2 * UNIT, np.uint8))
    card.write_memory(base, np.full(2 * UNIT, 9, np.uint8))  # as the kernel does, behind the mirror's back
    transport.write_memory(base + 10, np.full(UNIT, 7, np.uint8))
    expected = np.full(2 * UNIT, 9)
    expected[10 : 10 + UNIT] = 7
    assert np.array_equal(card.read_memory(base, 2 * UNIT), expected)


@pytest.mark.parametrize(("start", "end"), [(10, UNIT), (0, 54), (10, 54), (UNIT, 2 * UNIT - 1)])
def test_a_write_within_one_unit_keeps_the_rest_of_it(transport, card, start, end):
    base = transport.memory_base
    transport.write_memory(base, np.zeros(2 * UNIT, np.uint8))
    card.write_memory(base, np.full(2 * UNIT, 9, np.uint8))
    transport.write_memory(base + start, np.full(end - start, 7, np.uint8))
    expected = np.full(2 * UNIT, 9)
    expected[start:end] = 7
    assert np.array_equal(card.read_memory(base, 2 * UNIT), expected)


def test_a_gather_joins_neighbours(transport, rng):
    base = transport.memory_base
    data = rng.integers(0, 256, (64, 48), dtype=np.uint8)
    transport.write_memory(base, data.reshape(-1))
    transport.module.syncs.clear()
    rows = np.array([40, 3, 41, 3, 2, 63])
    assert np.array_equal(transport.read_gather(base + rows * 48, 48), data[rows])
    # Rows 2 and 3 lie in bytes 96 to 192, 40 and 41 in 1920 to 2016, 63 in 3024 to 3072.
    assert [(offset, size) for _, offset, size in transport.module.syncs] == [
        (64, 128),
        (1920, 128),
        (3008, 64),
    ]


def test_runs_cover_the_rows_and_nothing_is_moved_twice(rng):
    assert list(runs(np.array([64, 0, 256]), 64)) == [(0, 128), (256, 320)]  # those that touch join
    for row_bytes in (1, 63, 64, 65, 300):
        starts = rng.integers(0, 20_000, 50)
        found = list(runs(starts, row_bytes))
        covered = np.zeros(21_000, np.int64)
        for low, high in found:
            assert low % UNIT == high % UNIT == 0
            covered[low:high] += 1
        assert covered.max() == 1
        wanted = np.zeros(21_000, np.bool_)
        for start in starts:
            wanted[start : start + row_bytes] = True
        assert covered[wanted].all()
        touched = np.add.reduceat(wanted, np.arange(0, 21_000, UNIT)) > 0
        assert sum(high - low for low, high in found) == UNIT * touched.sum()


def test_counters_are_registers_and_transfers(transport):
    transport.write_register(reg.GIER.offset, 1)
    assert transport.read_register(reg.GIER.offset) == 1
    transport.write_memory(transport.memory_base, np.zeros(10, np.uint8))
    assert transport.counters == TransportCounters(
        payload_bytes_to_device=4 + UNIT, payload_bytes_from_device=4 + UNIT
    )


def test_waiting_polls_until_the_deadline(transport):
    with pytest.raises(DeviceTimeout, match="pyxrt: no interrupt within 5000000 ps"):
        transport.wait_interrupt(5_000_000)
    assert transport.now_ps >= 5_000_000
    polls = transport.counters.payload_bytes_from_device // 4
    assert polls > 1
    with pytest.raises(DeviceTimeout):
        transport.wait_interrupt(1)
    assert transport.counters.payload_bytes_from_device // 4 > polls
    with pytest.raises(ValueError, match="timeout_ps is 0; allowed: from 1"):
        transport.wait_interrupt(0)


def test_a_failed_poll_is_repeated_once(transport):
    transport.module.failures = 1
    with pytest.raises(DeviceTimeout):
        transport.wait_interrupt(1)
    assert transport.module.failures == 0
    transport.module.failures = 2
    with pytest.raises(DeviceError, match="read of EVENTS failed twice"):
        transport.wait_interrupt(1)


def test_a_dead_link_is_no_event(transport, card, monkeypatch):
    monkeypatch.setattr(card, "read_register", lambda _: 0xFFFF_FFFF)
    with pytest.raises(DeviceError, match="EVENTS is 0xffffffff, no events"):
        transport.wait_interrupt(1)
    assert transport.counters.jobs == 0


def test_a_cold_store_works_through_it_and_repeats_what_fails(transport, rng):
    store = ColdStore(ScorerDriver(transport))
    stream = store.open_stream("s", 64)
    keys, values = rng.standard_normal((2, 64, 64)).astype(np.float16)
    stream.seal(keys, values)
    query = rng.standard_normal((5, 64)).astype(np.float16)
    expected = stream.score(query, [2, 0]).scores
    transport.module.failures = 1
    assert np.array_equal(stream.score(query, [2, 0]).scores, expected)
    assert store.driver.access.retries == 1
    transport.module.failures = 2
    with pytest.raises(DeviceError, match=r"failed twice: transport pyxrt: .*: Input/output error"):
        stream.fetch([63])
    assert np.array_equal(stream.fetch([63, 5])[0], keys[[63, 5]])


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda t: t.write_memory(0, np.zeros(4, np.uint8)), "range of 4 bytes at 0x0; allowed"),
        (lambda t: t.write_memory(t.memory_base + MEMORY_BYTES - 3, np.zeros(4, np.uint8)), "range of 4"),
        (lambda t: t.write_memory(t.memory_base, np.zeros(0, np.uint8)), "range of 0 bytes"),
        (lambda t: t.write_memory(t.memory_base, np.zeros(4, np.int32)), "data is int32 with shape"),
        (lambda t: t.read_memory(t.memory_base + MEMORY_BYTES, 1), "range of 1 bytes"),
        (lambda t: t.read_gather(np.array([t.memory_base - 1]), 1), "range of 1 bytes"),
        (lambda t: t.read_gather(np.array([], np.int64), 1), "gather of 0 rows"),
        (lambda t: t.read_gather(np.array([t.memory_base]), 0), "rows of 0 bytes"),
        (lambda t: t.write_register(0x10, 1 << 32), "register value is 0x100000000"),
        (lambda t: t.write_register(0x1000, 0), "register offset is 0x1000"),
        (lambda t: t.read_register(0x11), "register offset is 0x11"),
    ],
)
def test_bad_accesses_never_reach_xrt(transport, use, reason):
    transport.module.failures = 1
    with pytest.raises(ValueError, match=reason):
        use(transport)
    assert transport.module.failures == 1
    assert transport.module.syncs == []


def test_close_gives_everything_back(transport):
    before = transport.counters
    transport.close()
    transport.close()
    assert transport.module.live() == []
    for use in (
        lambda: transport.read_register(0),
        lambda: transport.write_register(0, 0),
        lambda: transport.write_memory(transport.memory_base, np.zeros(1, np.uint8)),
        lambda: transport.read_memory(transport.memory_base, 1),
        lambda: transport.read_gather(np.array([transport.memory_base]), 1),
        lambda: transport.wait_interrupt(1),
    ):
        with pytest.raises(DeviceError, match="pyxrt is closed"):
            use()
    assert transport.counters == before


def test_the_stand_in_refuses_what_xrt_refuses(transport, xclbin):
    module = transport.module
    device = module.device(0)
    uuid = device.load_xclbin(xclbin)
    shared = module.kernel(device, uuid, "nearkv_kernel")
    with pytest.raises(RuntimeError, match="shared access"):
        shared.read_register(0)
    exclusive = module.kernel(device, uuid, "nearkv_kernel", module.kernel.cu_access_mode.exclusive)
    with pytest.raises(IndexError, match="outside kernel register space"):
        exclusive.write_register(0x1000, 0)
    with pytest.raises(RuntimeError, match="not loaded"):
        module.kernel(device, object(), "nearkv_kernel")
    with pytest.raises(RuntimeError, match="no memory connection"):
        exclusive.group_id(reg.ARGUMENTS.index(reg.HEADS))
    with pytest.raises(RuntimeError, match="no memory bank with index 3"):
        PyxrtMemory(module, device, 3, 4096)
    buffer = module.bo(device, 4096, module.bo.flags.normal, exclusive.group_id(0))
    to_device = module.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE
    for size, offset in ((32, 0), (64, 32)):
        with pytest.raises(RuntimeError, match="unaligned"):
            buffer.sync(to_device, size, offset)
    with pytest.raises(RuntimeError, match="Invalid argument"):
        buffer.sync(to_device, 64, 4096)
    with pytest.raises(RuntimeError, match="past buffer size"):
        buffer.write(np.zeros(2, np.uint8), 4095)
    device_only = module.bo(device, 4096, module.bo.flags.device_only, exclusive.group_id(0))
    with pytest.raises(RuntimeError, match="Invalid argument"):
        device_only.sync(to_device, 64, 0)

"""Opening transports by name, their counters and their refusals."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.device.errors import DeviceError, DeviceTimeout
from nearkv.device.memory import BankAllocator, BumpAllocator
from nearkv.device.transport import TransportCounters, open_transport
from nearkv_hdl.spec.designs import get_design
from nearkv_sim.hardware.pcie import PcieLinkConfig

TINY = get_design("tiny")


def test_open_by_name(transport_name):
    with open_transport(transport_name, TINY, memory_bytes=1 << 20) as transport:
        assert (transport.name, transport.design, transport.memory_bytes) == (transport_name, TINY, 1 << 20)
        assert transport.now_ps == 0
        assert transport.counters == TransportCounters()


def test_link_option_changes_the_time():
    times = []
    for link in ("smartssd", "gen4_x16", PcieLinkConfig(generation=1, lanes=1)):
        with open_transport("tlm", TINY, link=link) as transport:
            transport.write_memory(transport.memory_base, np.zeros(1 << 16, np.uint8))
            times.append(transport.now_ps)
    assert times[1] < times[0] < times[2]


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("pigeon", {}, "transport is 'pigeon'; allowed: .*rtl, tlm"),
        ("tlm", {"lnik": "smartssd"}, "option 'lnik' of transport tlm; allowed: link, memory_bytes"),
        ("tlm", {"link": "isa"}, "link is 'isa'; allowed: smartssd"),
        ("tlm", {"memory_bytes": 0}, "memory_bytes is 0; allowed: from 1"),
    ],
)
def test_bad_names_and_options(name, options, reason):
    with pytest.raises(ValueError, match=reason):
        open_transport(name, TINY, **options)


def test_counters_subtract():
    later = TransportCounters(payload_bytes_to_device=7, jobs=3)
    assert later - TransportCounters(payload_bytes_to_device=2, jobs=1) == TransportCounters(
        payload_bytes_to_device=5, jobs=2
    )


def test_memory_round_trip_and_traffic(card, rng):
    data = rng.integers(0, 256, 10_000, dtype=np.uint8)
    card.write_memory(card.memory_base + 5, data)
    before = card.counters
    assert np.array_equal(card.read_memory(card.memory_base + 6, 9_000), data[1:9_001])
    spent = card.counters - before
    # The data and a completion word come back; a doorbell goes out.
    assert spent.payload_bytes_from_device == 9_000 + 4
    assert spent.payload_bytes_to_device == 32
    assert spent.wire_bytes_from_device > spent.payload_bytes_from_device
    assert spent.tlps_to_device == 1


def test_gather_keeps_the_order_and_is_one_transfer(card, rng):
    data = rng.integers(0, 256, (100, 32), dtype=np.uint8)
    card.write_memory(card.memory_base, data.reshape(-1))
    rows = rng.permutation(100)[:80]
    before, start_ps = card.counters, card.now_ps
    assert np.array_equal(card.read_gather(card.memory_base + rows * 32, 32), data[rows])
    assert (card.counters - before).payload_bytes_from_device == 80 * 32 + 4
    gather_ps, start_ps = card.now_ps - start_ps, card.now_ps
    for row in rows:
        card.read_memory(card.memory_base + int(row) * 32, 32)
    assert 10 * gather_ps < card.now_ps - start_ps


def test_bad_accesses_are_refused_and_cost_nothing(card):
    before = card.counters, card.now_ps
    end = card.memory_base + card.memory_bytes
    for refused, reason in [
        (lambda: card.write_memory(0, np.zeros(4, np.uint8)), "4 bytes at 0x0; allowed"),
        (lambda: card.write_memory(end - 3, np.zeros(4, np.uint8)), "allowed: at least 1 byte within"),
        (lambda: card.write_memory(card.memory_base, np.zeros(0, np.uint8)), "range of 0 bytes"),
        (lambda: card.read_memory(end, 1), "1 bytes at"),
        (lambda: card.read_gather(np.array([end]), 1), "1 bytes at"),
        (lambda: card.read_gather(np.array([], np.int64), 1), "gather of 0 rows"),
        (lambda: card.read_gather(np.array([card.memory_base]), 0), "rows of 0 bytes"),
        (lambda: card.write_register(0x10, 1 << 32), "register value is 0x100000000"),
        (lambda: card.write_register(0x1000, 0), "register offset is 0x1000"),
        (lambda: card.read_register(0x11), "register offset is 0x11"),
        (lambda: card.wait_interrupt(0), "timeout_ps is 0"),
    ]:
        with pytest.raises(ValueError, match=reason):
            refused()
    assert (card.counters, card.now_ps) == before


def test_reading_what_was_never_written(card):
    card.write_memory(card.memory_base, np.zeros(16, np.uint8))
    with pytest.raises(DeviceError, match="never written"):
        card.read_memory(card.memory_base, 17)
    with pytest.raises(DeviceError, match="never written"):
        card.read_gather(card.memory_base + np.array([0, 16]), 8)


def test_waiting_has_a_deadline(card):
    with pytest.raises(DeviceTimeout, match="no interrupt within 123 ps"):
        card.wait_interrupt(123)
    assert card.now_ps == 123


def test_nothing_works_after_close(card):
    card.close()
    card.close()
    for use in (
        lambda: card.read_register(0),
        lambda: card.write_register(0, 0),
        lambda: card.write_memory(card.memory_base, np.zeros(1, np.uint8)),
        lambda: card.read_memory(card.memory_base, 1),
        lambda: card.read_gather(np.array([card.memory_base]), 1),
        lambda: card.wait_interrupt(1),
    ):
        with pytest.raises(DeviceError, match="is closed"):
            use()


def test_allocator():
    allocator = BumpAllocator(base=100, nbytes=1000)
    assert allocator.allocate(10, 64, "a") == 128
    assert allocator.allocate(10, 64, "b") == 192
    with pytest.raises(ValueError, match="c needs 900 bytes of device memory; 844 are free"):
        allocator.allocate(900, 64, "c")
    assert allocator.allocate(844, 64, "d") == 256
    assert allocator.free_bytes == 0


def test_allocator_of_banks():
    """Banks of 8 KiB from 20,480 to 53,248: 4 KiB of bank 2, banks 3 to 5, 4 KiB of bank 6."""
    two = replace(get_design("tiny"), key_masters=2, key_bank_bytes=8192)
    allocator = BankAllocator(20_480, 32_768, two)
    assert allocator.free_bytes == 8192
    assert allocator.allocate_units([1, 1], 4096, 4096, "a") == [[(20_480, 1)], [(24_576, 1)]]
    assert allocator.allocate(100, 64, "no key") == 49_152
    # Master 0 has bank 4 left and the rest of 6, in which no unit fits; master 1 the half of 3 and all of 5.
    refusal = "b needs 24576 bytes of device memory, in pieces of 4096; 20480 are free, at most 8192 in one"
    with pytest.raises(ValueError, match=refusal):
        allocator.allocate_units([1, 5], 4096, 4096, "b")
    # What was refused has taken nothing. Units go on in the next bank, at last in one of the other master.
    assert allocator.allocate_units([0, 4], 4096, 4096, "c") == [
        *([], [(28_672, 1), (40_960, 2), (32_768, 1)])
    ]
    assert allocator.allocate_units([1, 0], 4096, 4096, "d") == [[(36_864, 1)], []]
    assert allocator.free_bytes == 4096 - 100
    with pytest.raises(ValueError, match="e needs 4096 bytes of device memory; 3968 are free"):
        allocator.allocate(4096, 64, "e")
    one = BankAllocator(100, 1000, get_design("tiny"))
    assert one.allocate(10, 64, "a") == 128
    assert one.allocate_units([3], 10, 64, "b") == [[(192, 3)]]

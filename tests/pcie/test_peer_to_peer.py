"""Key blocks between drive and card: through the switch, never through the root complex."""

import numpy as np

from nearkv.device.driver import ScorerDriver
from nearkv_sim.pcie.tlp_log import read_log, totals

HOST_ID = "00:00.0"


def test_key_blocks_come_from_the_drive_and_are_scored(open_logged, key_job):
    transport, path = open_logged("pcie")
    with transport:
        driver = ScorerDriver(transport)
        job = key_job(driver, 2)
        before = transport.counters
        for index, (address, block) in enumerate(zip(job.stored.key_addresses, job.image, strict=True)):
            transport.fill_drive(1 << 20 + index, block)
            transport.drive_to_card(1 << 20 + index, int(address), len(block))
        peer = transport.counters - before
        # Nothing comes from the host but descriptors and codes.
        job.check()
    assert peer.payload_bytes_to_device == job.image.nbytes
    log = list(read_log(path))
    (drive_id,) = {r.requester for r in log if r.port == "drive" and r.direction == "from_device"} - {HOST_ID}
    on_card = [r for r in log if r.port == "card" and r.requester == drive_id and r.type == "MWr"]
    assert sum(record.bytes for record in on_card) == job.image.nbytes
    # The drive's completion words are all of its that the root complex sees.
    on_root = [r for r in log if r.port == "root" and r.requester == drive_id]
    assert [(record.type, record.bytes) for record in on_root] == [("MWr", 4)] * 2


def test_the_way_back_to_the_drive(open_logged, rng):
    transport, path = open_logged("pcie")
    data = rng.integers(0, 256, 5000, dtype=np.uint8)
    with transport:
        transport.write_memory(transport.memory_base, data)
        around = (77 - 8, 77 + 4000)  # what the drive holds outlasts its power
        before = [transport.drive_content(offset, 8) for offset in around]
        transport.card_to_drive(transport.memory_base + 3, 77, 4000)
        assert np.array_equal(transport.drive_content(77, 4000), data[3:4003])
        after = [transport.drive_content(offset, 8) for offset in around]
        assert np.array_equal(before, after)
        counts = transport.link_report().counts
        assert counts["drive tags"] == counts["card unanswered"] == 0
    log = list(read_log(path))
    assert totals(log, "drive")["to_device", "CplD"][1] == 4000
    requesters = {record.requester for record in log if record.port == "drive" and record.type == "MRd"}
    assert not [r for r in log if r.port == "root" and r.type == "CplD" and r.requester in requesters]

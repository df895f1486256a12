"""The log of the analytic link, and logs that are none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nearkv.experiments.config import ExperimentConfig, PolicyConfig
from nearkv.experiments.runner import open_device
from nearkv_sim.hardware.pcie import PcieLink, PcieLinkConfig
from nearkv_sim.pcie.tlp_log import TlpLog, read_log, totals


def test_a_log_of_tlm_adds_up_to_its_counters(open_logged):
    transport, path = open_logged("tlm")
    with transport:
        transport.write_memory(transport.memory_base, np.zeros(5000, np.uint8))
        transport.read_gather(transport.memory_base + np.arange(9) * 7, 33)
        transport.read_register(0)
        counters = transport.counters
    log = list(read_log(path))
    assert [record.time_ps for record in log if record.direction == "from_device"] == sorted(
        record.time_ps for record in log if record.direction == "from_device"
    )
    for direction in ("to_device", "from_device"):
        mine = [record for record in log if record.direction == direction]
        assert len(mine) == getattr(counters, f"tlps_{direction}")
        assert sum(record.bytes for record in mine) == getattr(counters, f"payload_bytes_{direction}")
        dllp_bytes = getattr(counters, f"wire_bytes_{direction}") - sum(r.wire_bytes for r in mine)
        assert dllp_bytes > 0
        assert dllp_bytes % 8 == 0


def test_a_single_load_by_hand(tmp_path):
    log = TlpLog(tmp_path / "log")
    link = PcieLink(PcieLinkConfig(), observer=log.write_analytic)
    end_ps = link.mmio_read(0, 0xA000_0104, 4)
    log.close()
    log.close()
    request, completion = read_log(tmp_path / "log")
    assert (request.type, request.direction, request.address, request.bytes) == (
        "MRd",
        "to_device",
        0xA000_0104,
        0,
    )
    assert (completion.type, completion.direction, completion.address, completion.bytes) == (
        "CplD",
        "from_device",
        4,
        4,
    )
    assert (request.wire_bytes, completion.wire_bytes) == (20, 24)
    assert request.time_ps < completion.time_ps == end_ps - 150_000
    assert totals(read_log(tmp_path / "log")) == {
        ("from_device", "CplD"): (1, 4, 24),
        ("to_device", "MRd"): (1, 0, 20),
    }


@pytest.mark.parametrize("line", ["{", "[]", '{"time_ps": 1}', '{"when": 1}'])
def test_what_is_no_log_is_refused(tmp_path, line):
    path = tmp_path / "log"
    path.write_text(f"{line}\n")
    with pytest.raises(ValueError, match=r"log, line 1: .*allowed: a TLP record"):
        list(read_log(path))


def test_a_run_logs_where_its_transport_can(tmp_path):
    config = ExperimentConfig(trace=Path("a"), policy=PolicyConfig("hill"), design="tiny")
    with open_device(config, tmp_path / "tlps"):
        pass
    assert list(read_log(tmp_path / "tlps" / "tlm.jsonl"))
    other = replace(config, transport="pyxrt", link=None)
    with pytest.raises(ValueError, match="transport is pyxrt with a TLP log"), open_device(other, tmp_path):
        pass

"""The bounds that the models assert fire when a model is made too fast."""

import pytest

from nearkv_sim.hardware import machine_devices, machine_drives, pim_units
from nearkv_sim.hardware.dram import stream
from nearkv_sim.hardware.dram.config import dram_profile
from nearkv_sim.hardware.pim.attention import stack_attention
from nearkv_sim.hardware.pim.channel import PimChannel
from nearkv_sim.hardware.pim.config import pim_profile
from nearkv_sim.hardware.pim.macs import MacStream


def test_dram_interface(monkeypatch):
    real = stream._stream

    def faster(*arguments):
        cycles, counters = real(*arguments)
        return cycles * 9 // 10, counters

    monkeypatch.setattr(stream, "_stream", faster)
    with pytest.raises(AssertionError, match="faster than the interface"):
        stream.scan(dram_profile("ddr4_3200").config, 1 << 24)


def test_mac_command_rate(monkeypatch):
    real = PimChannel.run
    monkeypatch.setattr(PimChannel, "run", lambda self, tiles: real(self, tiles) // 3)
    with pytest.raises(AssertionError, match=r"parts longer than the whole|faster than MAC commands"):
        stack_attention(pim_profile("attacc_bank").config, 2049, 64)


def test_mac_interval(monkeypatch):
    real = MacStream._note

    def earlier(self, index, cycle, count, stretches):
        real(self, index, cycle - 1 if self.issued else cycle, count, stretches)

    monkeypatch.setattr(MacStream, "_note", earlier)
    with pytest.raises(AssertionError, match="MACs closer than their interval"):
        stack_attention(pim_profile("attacc_bank").config, 2051, 64)


def test_published_units(monkeypatch):
    real = pim_units._ps
    monkeypatch.setattr(pim_units, "_ps", lambda work, per_second: real(work, per_second) // 2)
    with pytest.raises(AssertionError, match="faster than a roof"):
        pim_units.published_attention(pim_units.pam_profile("hbm_pim").config, 2048, 8)


@pytest.mark.parametrize(
    "remembering",
    [
        machine_devices._packets_ps,
        machine_drives.sequential_ps,
        machine_drives._peer_ps,
        stream._simulate,
        stack_attention,
    ],
)
def test_results_of_ever_new_sizes_do_not_pile_up(remembering):
    assert remembering.cache_info().maxsize <= 4096

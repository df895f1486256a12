"""Published figures of drives, and the packet-level link under a drive."""

import pytest
import simpy

from nearkv_sim.hardware.link import PcieRate, PcieTransfers
from nearkv_sim.hardware.pcie import PcieLink
from nearkv_sim.hardware.profile import PROFILE_FOLDER, named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.controller import Ssd
from nearkv_sim.hardware.ssd.ftl import Ftl
from nearkv_sim.validation import ssd
from nearkv_sim.validation.check import run_check


def test_every_check_is_within_tolerance():
    outcomes = [run_check(check) for check in ssd.checks()]
    assert [outcome.check.name for outcome in outcomes if not outcome.ok] == []
    assert sum(outcome.check.held_out for outcome in outcomes) > 35


@pytest.mark.parametrize("name", sorted(path.stem for path in (PROFILE_FOLDER / "ssd").glob("*.yaml")))
def test_every_profile_names_its_sources(name):
    profile = named_profile("ssd", name, SsdConfig)
    assert all(len(source) > 6 for source in profile.sources.values())
    config = profile.config
    assert 0.01 < config.nand_bytes / config.logical_bytes - 1 < 0.3


def test_packets_and_steady_state_give_a_drive_the_same_time():
    config = named_profile("ssd", "pm983", SsdConfig).config
    ends_ps = []
    for link in (PcieRate(config.link_config()), PcieTransfers(PcieLink(config.link_config()))):
        env = simpy.Environment()
        drive = Ssd(env, config, link, Ftl(config, 1 << 30))
        env.run(drive.read(0, 1 << 20))
        env.run(drive.write(0, 1 << 20))
        ends_ps.append(env.now)
    assert ends_ps[0] == pytest.approx(ends_ps[1], rel=0.01)

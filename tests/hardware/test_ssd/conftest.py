"""A drive small enough to calculate by hand, and ways to run it."""

import pytest
import simpy

from nearkv_sim.hardware.link import Direction
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.controller import Ssd
from nearkv_sim.hardware.ssd.ftl import Ftl

US = 10**6  # in ps

# 2 channels x 2 dies x 1 plane; a program unit is two pages of 8 KiB, 4 units of 4 KiB; a superblock is
# 4 dies x 16 pages x 8 KiB = 512 KiB.
SMALL = SsdConfig(
    channels=2,
    dies_per_channel=2,
    planes_per_die=1,
    blocks_per_plane=16,
    pages_per_block=16,
    page_bytes=8192,
    read_latency_ps=(40 * US, 60 * US),
    program_latency_ps=400 * US,
    erase_latency_ps=3000 * US,
    channel_bytes_per_s=4_096_000_000 // 8,  # 4 KiB in 8 us
    command_ps=0,
    mapping_unit_bytes=4096,
    logical_bytes=9 * 512 * 1024,
    read_firmware_ps=10 * US,
    write_firmware_ps=5 * US,
    command_interval_ps=2 * US,
    write_buffer_bytes=128 * 1024,
    power_loss_protection=False,
    pcie_generation=3,
    pcie_lanes=4,
    max_payload_bytes=256,
    max_transfer_bytes=1 << 20,
)


class StepLink:
    """A link that takes 1 us for a transfer of any size, and any number at once."""

    def __init__(self):
        self.nbytes = dict.fromkeys(Direction, 0)

    def transfer(self, start_ps, nbytes, direction):
        self.nbytes[direction] += nbytes
        return start_ps + US

    def bound_bytes_per_s(self, _):
        return 10**15


@pytest.fixture
def small():
    return SMALL


@pytest.fixture
def drive():
    """Build environment, drive and link: full, empty or from a given state."""

    def build(config=SMALL, *, filled=False, ftl=None):
        env, link = simpy.Environment(), StepLink()
        return env, Ssd(env, config, link, ftl or Ftl(config, config.logical_bytes if filled else 0)), link

    return build


@pytest.fixture
def finish():
    """Run until all commands have ended; the time in ps."""

    def run(env, *commands):
        env.run(env.all_of(list(commands)))
        return env.now

    return run

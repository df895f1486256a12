"""Links at their limits: bounds that fire after any pause, monotony of one transfer, huge sizes."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
import simpy

from nearkv_sim.hardware.link import Direction
from nearkv_sim.hardware.link_open import link_names, open_link
from nearkv_sim.hardware.link_pipe import PS_PER_S, Pipe
from nearkv_sim.hardware.pcie import PcieLink
from nearkv_sim.hardware.pcie_config import PRESETS, PcieLinkConfig
from nearkv_sim.hardware.pcie_switch import PcieSwitch


@pytest.mark.parametrize("start_ps", [0, PS_PER_S])
def test_a_pipe_that_loses_time_is_noticed_even_after_a_pause(start_ps):
    pipe = Pipe(10**9)
    pipe.send(0, 1)
    pipe.send(start_ps, 1000)
    pipe._free_ticks -= 500 * PS_PER_S
    with pytest.raises(AssertionError, match="more bytes than the rate allows"):
        pipe.send(start_ps, 1000)


@pytest.mark.parametrize("start_ps", [0, PS_PER_S])
def test_a_wire_that_loses_time_is_noticed_even_after_a_pause(start_ps):
    link = PcieLink(PRESETS["smartssd"])
    link.device_write(0, 0, 1)
    link.device_write(start_ps, 0, 1 << 16)
    link._up.free_ticks -= 20_000 * link._byte_ticks
    with pytest.raises(AssertionError, match="more packets than the wire has had time for"):
        link.device_write(start_ps, 0, 128)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("name", link_names())
def test_more_bytes_never_arrive_earlier(name, direction):
    sizes = sorted({*range(1, 600), *(1 << power for power in range(10, 40)), 10**15})
    ends_ps = [open_link(name).transfer(7, nbytes, direction) for nbytes in sizes]
    assert all(type(end_ps) is int for end_ps in ends_ps)
    assert all(early <= late for early, late in pairwise(ends_ps))


@pytest.mark.parametrize("seed", range(20))
def test_one_transfer_of_packets_is_monotone(seed):
    """In bytes, and in latency, width, tags and cap; any address and size."""
    rng = random.Random(seed)
    config = PcieLinkConfig(
        generation=rng.randrange(1, 6),
        lanes=rng.choice((1, 4, 16)),
        max_payload_bytes=rng.choice((128, 512)),
        tags=rng.choice((2, 8, 256)),
        one_way_latency_ps=rng.choice((0, 150_000)),
    )
    changes = [
        {"one_way_latency_ps": config.one_way_latency_ps + 10_000},
        {"root_complex_read_latency_ps": 400_000},
        {"link_cap_percent": 60},
        {"tags": 1},
        {"generation": 1, "lanes": 1},
    ]
    address, nbytes = rng.randrange(1 << 33), rng.randrange(1, 20_000)
    for method in ("device_write", "device_read"):
        end_ps = getattr(PcieLink(config), method)(0, address, nbytes)
        assert end_ps <= getattr(PcieLink(config), method)(0, address, nbytes + 1)
        # Where acknowledgements fall between packets may change: one pair of them, 16 bytes.
        slack_ps = 16 * config.byte_time_ps
        for change in changes:
            slower_ps = getattr(PcieLink(replace(config, **change)), method)(0, address, nbytes)
            assert end_ps - slack_ps <= slower_ps


def test_a_read_of_any_size_starts_at_once():
    """A petabyte through the switch needs no list of its packets."""
    env = simpy.Environment()
    switch = PcieSwitch(env, dict.fromkeys("ab", PRESETS["smartssd"]), hop_ps=1000)
    switch.read("a", "b", 2**50)
    env.run(10**8)
    assert 0 < switch.payload_bytes_into("a") < 10**6

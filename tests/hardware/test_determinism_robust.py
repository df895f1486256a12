"""Models give the same bytes whatever the seed of Python's hashes."""

import os
import subprocess
import sys

RUN = """
import random
import simpy
from nearkv_sim.hardware.dram.config import dram_profile
from nearkv_sim.hardware.dram.stream import gather
from nearkv_sim.hardware.pcie_config import PRESETS
from nearkv_sim.hardware.pcie_switch import PcieSwitch
from nearkv_sim.hardware.pim.attention import stack_attention
from nearkv_sim.hardware.pim.config import pim_profile
from nearkv_sim.hardware.link import PcieRate
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.controller import Ssd
from nearkv_sim.hardware.ssd.workloads import random_read
config = named_profile("ssd", "pm983", SsdConfig).config
print(random_read(config, 32, 200))
env, rng = simpy.Environment(), random.Random(1)
ssd = Ssd(env, config, PcieRate(config.link_config()))
env.run(env.all_of([ssd.write(rng.randrange(64) * 4096, 4096, tag=n, fua=n % 3 == 0) for n in range(200)]))
print(env.now, vars(ssd.nand.counters), sorted(vars(ssd.power_cut())["saved"].items()))
switch = PcieSwitch(env, {name: PRESETS["smartssd"] for name in "abc"}, hop_ps=1000)
env.run(env.all_of([switch.write("a", "b", 9000), switch.read("c", "b", 7001)]))
print(env.now, gather(dram_profile("ddr4_3200").config, 500, 256, seed=1))
print(stack_attention(pim_profile("attacc_buffer_die").config, 300, 20))
"""


def output(hash_seed):
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", RUN]
    return subprocess.run(command, env=environment, capture_output=True, check=True).stdout


def test_two_processes_agree():
    first = output("1")
    assert first.count(b"\n") == 4
    assert output("2") == first

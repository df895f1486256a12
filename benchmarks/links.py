"""Simulated packets per CPU-second of the PCIe models, and drive commands per CPU-second."""

from __future__ import annotations

import time
from collections.abc import Callable

import simpy

from benchmarks.registry import Table
from nearkv_sim.hardware.pcie import PcieLink
from nearkv_sim.hardware.pcie_config import PcieLinkConfig
from nearkv_sim.hardware.pcie_credits import CreditConfig
from nearkv_sim.hardware.pcie_switch import PcieSwitch
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.ssd.config import SsdConfig
from nearkv_sim.hardware.ssd.workloads import random_read

_RUN_BYTES = 8 << 20
_ADDRESS = 1 << 32
_COMMANDS = 10_000
_REPEATS = 3


def measure() -> Table:
    """Gen3 x4, 256-byte payloads, 512-byte read requests; TLPs of a read: its request and completions."""
    config = PcieLinkConfig(generation=3, lanes=4)
    writes = _RUN_BYTES // config.max_payload_bytes
    reads = writes + _RUN_BYTES // config.max_read_request_bytes

    def link(method: str, credits: CreditConfig | None = None) -> Callable[[], object]:
        return lambda: getattr(PcieLink(config, credits=credits), method)(0, _ADDRESS, _RUN_BYTES)

    def switch(method: str) -> Callable[[], object]:
        def run() -> None:
            env = simpy.Environment()
            fabric = PcieSwitch(env, {"a": config, "b": config}, hop_ps=130_000)
            env.run(getattr(fabric, method)("a", "b", _RUN_BYTES))

        return run

    drive = named_profile("ssd", "pm983", SsdConfig).config
    cases = [
        ("PcieLink, writes", "TLP", writes, link("device_write")),
        ("PcieLink, writes with credits", "TLP", writes, link("device_write", CreditConfig())),
        ("PcieLink, reads", "TLP", reads, link("device_read")),
        ("PcieSwitch, writes", "TLP", writes, switch("write")),
        ("PcieSwitch, reads", "TLP", reads, switch("read")),
        ("Ssd, random 4 KiB reads", "command", _COMMANDS, lambda: random_read(drive, 64, _COMMANDS)),
    ]
    rows = []
    for name, unit, count, run in cases:
        seconds = []
        for _ in range(_REPEATS):
            started = time.process_time()
            run()
            seconds.append(time.process_time() - started)
        rows.append({"model": name, "unit": unit, "count": count, "count / CPU-s": count / min(seconds)})
    return Table("Hardware models, best of three", rows)

"""Entries and outcomes that benches of QueueUnit draw, and how they begin."""

from __future__ import annotations

import random
from typing import Any

from nearkv.device.errors import DeviceError
from nearkv_hdl.spec.queue_entries import ARGUMENT_FIELDS, SUBMISSION, SUBMISSION_BYTES
from nearkv_hdl.spec.register_map import Register
from nearkv_sim.benches.pcie_queues_harness import QueuesBench
from nearkv_sim.benches.pcie_queues_model import Fault

TIMEOUT_US = 2000
WAIT_PS = 200 * 10**6
FINE: Fault = (0, 0, 0)


async def bench_of(dut: Any, entries: int = 4) -> QueuesBench:
    """A bench whose device is enumerated, its queues enabled."""
    bench = QueuesBench(dut, entries)
    await bench.start()
    await bench.call(bench.driver.enable)
    return bench


async def error_of_wait(bench: QueuesBench) -> str:
    """What the driver says of a device that has stopped."""
    try:
        await bench.call(bench.driver.wait, 20 * 10**6)
    except DeviceError as error:
        return str(error)
    raise AssertionError("a completion came")


def random_arguments() -> dict[Register, int]:
    """Arguments that an entry can hold, all of its bits in use."""
    arguments = {}
    for argument, name in ARGUMENT_FIELDS.items():
        field = SUBMISSION[name]
        value = random.getrandbits(8 * field.size_bytes) & argument.used_mask or 1
        arguments[argument] = value * field.unit if not name.endswith("_address") else value & ~63
    return arguments


def random_fault() -> Fault:
    """How a job ends: well, or in any other way."""
    if random.random() < 0.5:
        return FINE
    return random.randrange(1, 15), random.getrandbits(64), random.getrandbits(32)


def spoilt(entry: bytes) -> bytes:
    """The entry with a random byte replaced: an error, or another good one."""
    at = random.choice([0, *range(2, SUBMISSION_BYTES)])
    return entry[:at] + bytes([random.choice((0, random.getrandbits(8)))]) + entry[at + 1 :]

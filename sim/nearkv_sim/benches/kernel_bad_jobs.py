"""Ways to make a good job bad, for the kernel's bench. The card model says what each must lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearkv.device.descriptors import query_code_dtype
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES
from nearkv_hdl.spec.register_map import Register
from nearkv_sim.benches.kernel_jobs import Job

Bend = Callable[[Job, DesignConfig], None]
_TOP_LINE = (1 << 64) - 64  # the last aligned address there is


def _argument(register: Register, value: int | None = None, *, add: int = 0) -> Bend:
    def bend(job: Job, _design: DesignConfig) -> None:
        job.arguments[register] = (job.arguments[register] if value is None else value) + add

    return bend


def _descriptor(block: int, **changes: Any) -> Bend:
    def bend(job: Job, _design: DesignConfig) -> None:
        for name, value in changes.items():
            job.descriptors[block][name] = value

    return bend


def _moved(block: int, name: str, add: int) -> Bend:
    def bend(job: Job, _design: DesignConfig) -> None:
        old = int(job.descriptors[block][name])
        job.descriptors[block][name] = (old + add) % (1 << 64)

    return bend


def _shift(block: int, head: int, value: int) -> Bend:
    def bend(job: Job, _design: DesignConfig) -> None:
        job.descriptors["shift"][block, head] = value

    return bend


def _too_many_heads(job: Job, design: DesignConfig) -> None:
    job.arguments[reg.HEADS] = design.query_group + 1


def _both(first: Bend, second: Bend) -> Bend:
    def bend(job: Job, design: DesignConfig) -> None:
        first(job, design)
        second(job, design)

    return bend


# Found before a key is read, so that all registers but CYCLES must agree. Jobs have 5 blocks and 2 heads.
BEFORE_STREAMING: tuple[Bend, ...] = (
    _argument(reg.BLOCK_COUNT, 0),
    _argument(reg.HEADS, 0),
    _too_many_heads,
    _argument(reg.HEADS, (1 << 31) + 2),
    _argument(reg.HEADS, 1),
    _argument(reg.HEAD_DIM, 65),
    _argument(reg.HEAD_DIM, (1 << 20) + 64),
    _argument(reg.HEAD_DIM, 128),
    _argument(reg.RESULT_ADDRESS, add=4),
    _argument(reg.RESULT_ADDRESS, _TOP_LINE),
    _argument(reg.RESULT_BYTES, add=-1),
    _argument(reg.DESCRIPTOR_ADDRESS, add=32),
    _argument(reg.DESCRIPTOR_ADDRESS, _TOP_LINE),
    _argument(reg.KEY_BYTES, add=-1),
    _argument(reg.KEY_ADDRESS, add=1),
    _argument(reg.QUERY_BYTES, add=-1),
    _argument(reg.QUERY_ADDRESS, add=1),
    _descriptor(0, head_dim=128),
    _descriptor(4, head_dim=0),
    _descriptor(2, heads=1),
    _descriptor(2, heads=130),
    _descriptor(1, key_format=2),
    _descriptor(1, key_format=129),
    _shift(1, 0, 8),
    _shift(4, 1, 255),
    _moved(1, "key_address", 64),
    _moved(1, "key_address", 64 * 4096),
    _moved(3, "key_address", -64 * 4096),
    _moved(3, "key_address", 1 << 63),
    _moved(1, "query_address", 32),
    _moved(1, "query_address", 1 << 20),
    _moved(3, "query_address", -(1 << 20)),
    _moved(3, "query_address", 1 << 63),
    _both(_descriptor(3, key_format=2), _descriptor(2, heads=1, key_format=3)),
    _both(_shift(2, 1, 9), _moved(2, "query_address", 1)),
    _both(_descriptor(4, heads=0), _argument(reg.RESULT_BYTES, 0)),
)


def _bad_code(job: Job, design: DesignConfig) -> None:
    """The last code of block 1."""
    dtype = query_code_dtype(design.query_bits)
    codes = job.image[job.arguments[reg.BLOCK_COUNT] * DESCRIPTOR_BYTES :].view(dtype)
    per_block = job.arguments[reg.HEADS] * job.arguments[reg.HEAD_DIM]
    codes[2 * per_block - 1] = -design.query_code.max - 1


def _first_bad_code(job: Job, design: DesignConfig) -> None:
    dtype = query_code_dtype(design.query_bits)
    codes = job.image[job.arguments[reg.BLOCK_COUNT] * DESCRIPTOR_BYTES :].view(dtype)
    codes[0] = -design.query_code.max - 1


def _overflow(job: Job, _design: DesignConfig) -> None:
    job.descriptors["bias"][0] = (1 << 31) - 1


# Found while scores are on their way.
WHILE_STREAMING: tuple[Bend, ...] = (
    _bad_code,
    _first_bad_code,
    _overflow,
    _both(_overflow, _bad_code),
    _both(_bad_code, _first_bad_code),
)

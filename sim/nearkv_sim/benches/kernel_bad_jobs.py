"""Ways to make a good job bad, for the kernel's bench. The card model says what each must lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearkv.device.descriptors import pack_shifts, query_code_dtype, unpack_shifts
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import DESCRIPTOR_BYTES
from nearkv_hdl.spec.register_map import Register
from nearkv_sim.benches.kernel_jobs import Job

Bend = Callable[[Job, DesignConfig], None]
_TOP_LINE = (1 << 64) - 64  # the last aligned address there is


def argument(register: Register, value: int | None = None, *, add: int = 0) -> Bend:
    """An argument set to a value, or moved from its own."""

    def bend(job: Job, _design: DesignConfig) -> None:
        job.arguments[register] = (job.arguments[register] if value is None else value) + add

    return bend


def _descriptor(block: int, **changes: Any) -> Bend:
    def bend(job: Job, _design: DesignConfig) -> None:
        for name, value in changes.items():
            job.descriptors[block][name] = value

    return bend


def moved(block: int, name: str, add: int) -> Bend:
    """A number of a descriptor moved from its own, modulo its range."""

    def bend(job: Job, _design: DesignConfig) -> None:
        old = int(job.descriptors[block][name])
        job.descriptors[block][name] = (old + add) % (1 << 8 * job.descriptors.dtype[name].itemsize)

    return bend


def _shift(block: int, head: int, value: int) -> Bend:
    def bend(job: Job, _design: DesignConfig) -> None:
        shifts = unpack_shifts(job.descriptors["shifts"], job.arguments[reg.HEADS])
        shifts[block, head] = value
        job.descriptors["shifts"] = pack_shifts(shifts)

    return bend


def _too_many_heads(job: Job, design: DesignConfig) -> None:
    job.arguments[reg.HEADS] = design.query_group + 1


def _selects(k: int | None, tokens: tuple[int, ...] = ()) -> Bend:
    """A selection of k scores, None for one more than the design allows, from blocks of these tokens."""

    def bend(job: Job, design: DesignConfig) -> None:
        job.arguments |= {reg.FLAGS: 1, reg.K: design.topk_capacity + 1 if k is None else k}
        if tokens:
            job.descriptors["first_token"] = tokens

    return bend


def _too_many_tokens(job: Job, design: DesignConfig) -> None:
    job.arguments |= {reg.FLAGS: 1, reg.K: 1}
    job.arguments[reg.BLOCK_COUNT] = design.topk_capacity // design.block_tokens + 1


def both(first: Bend, second: Bend) -> Bend:
    """One after the other."""

    def bend(job: Job, design: DesignConfig) -> None:
        first(job, design)
        second(job, design)

    return bend


# Found before a key is read, so that all registers but CYCLES must agree. Jobs have 5 blocks and 2 heads.
BEFORE_STREAMING: tuple[Bend, ...] = (
    argument(reg.BLOCK_COUNT, 0),
    argument(reg.HEADS, 0),
    _too_many_heads,
    argument(reg.HEADS, (1 << 31) + 2),
    argument(reg.HEADS, 1),
    argument(reg.HEAD_DIM, 65),
    argument(reg.HEAD_DIM, (1 << 20) + 64),
    argument(reg.HEAD_DIM, 128),
    argument(reg.RESULT_ADDRESS, add=4),
    argument(reg.RESULT_ADDRESS, _TOP_LINE),
    argument(reg.RESULT_BYTES, add=-1),
    argument(reg.DESCRIPTOR_ADDRESS, add=32),
    argument(reg.DESCRIPTOR_ADDRESS, _TOP_LINE),
    argument(reg.KEY_BYTES, add=-1),
    argument(reg.KEY_ADDRESS, add=1),
    argument(reg.QUERY_BYTES, add=-1),
    argument(reg.QUERY_ADDRESS, add=1),
    _descriptor(0, head_dim=128),
    _descriptor(4, head_dim=0),
    _descriptor(2, heads=1),
    _descriptor(2, heads=130),
    _descriptor(1, key_format=2),
    _descriptor(1, key_format=129),
    _shift(1, 0, 8),
    _shift(4, 1, 15),
    moved(1, "key_address", 64),
    moved(1, "key_address", 64 * 4096),
    moved(3, "key_address", -64 * 4096),
    moved(3, "key_address", 1 << 63),
    moved(1, "query_address", 32),
    moved(1, "query_address", 1 << 20),
    moved(3, "query_address", -(1 << 20)),
    moved(3, "query_address", 1 << 63),
    argument(reg.K, 1),
    _selects(0),
    _selects(None),
    _selects((1 << 32) - 1),
    _too_many_tokens,
    both(_selects(4, (0, 100, 200, 300, 400)), argument(reg.RESULT_BYTES, 127)),
    _selects(4, (0, 100, 200, 150, 400)),
    _selects(4, (0, 100, 200, 215, 100)),
    _selects(4, (0, 100, 200, 300, 300)),
    _selects(4, (0, 100, 200, 300, (1 << 32) - 1)),
    both(_selects(4, (100, 0, 200, 300, 400)), moved(1, "query_address", 32)),
    both(_descriptor(3, key_format=2), _descriptor(2, heads=1, key_format=3)),
    both(_shift(2, 1, 9), moved(2, "query_address", 1)),
    both(_descriptor(4, heads=0), argument(reg.RESULT_BYTES, 0)),
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
    both(_overflow, _bad_code),
    both(_bad_code, _first_bad_code),
)

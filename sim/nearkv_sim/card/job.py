"""From the arguments in the registers to a checked job, or to the first thing that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nearkv.device.descriptors import DESCRIPTOR_DTYPE, query_code_dtype, unpack_shifts
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import SHIFT, TOKEN_INDEX
from nearkv_hdl.spec.layout import (
    BLOCK_ALIGN_BYTES,
    DESCRIPTOR_BYTES,
    SCORE_BYTES,
    KeyFormat,
    selection_bytes,
)
from nearkv_hdl.spec.register_map import Register
from nearkv_sim.card.block_headers import read_headers
from nearkv_sim.card.memory import DeviceMemory, UnwrittenMemory
from nearkv_sim.card.register_file import RegisterFile
from nearkv_sim.engines import ScoringJob

ADDRESS_ALIGN_BYTES = 64  # descriptors, query codes and results: one beat of a 512-bit memory port
_FAR_ADDRESS = 1 << 62  # outside every memory; larger addresses are folded to it, so that sums fit int64
Bools = NDArray[np.bool_]
Int64 = NDArray[np.int64]


class JobFault(Exception):
    """What stops a job, as it appears in the error registers."""

    def __init__(self, code: reg.ErrorCode, address: int = 0, token: int = 0, tokens: int = 0) -> None:
        super().__init__(f"{code.name} at {address:#x}, token {token}")
        self.code = code
        self.address = address
        self.token = token
        self.tokens = tokens


@dataclass(frozen=True)
class _Window:
    """Addresses a job may touch: a programmed window, as far as it lies in the memory."""

    low: int
    high: int

    def excludes(self, addresses: Int64, nbytes: Int64 | int, align_bytes: int) -> Bools:
        """Which of the ranges are misaligned or not wholly inside."""
        misaligned: Bools = addresses % align_bytes != 0
        return misaligned | (addresses < self.low) | (addresses + nbytes > self.high)


def load_job(
    registers: RegisterFile, memory: DeviceMemory, design: DesignConfig
) -> tuple[ScoringJob, NDArray[np.uint32]]:
    """Read and check the job that the argument registers describe.

    Nothing outside the windows is read. Returns the job, and what the CRC32C of its blocks' planes must be,
    uint32 [blocks, 2]. Raises JobFault for the first block that is wrong.
    """
    blocks, heads = registers[reg.BLOCK_COUNT], registers[reg.HEADS]
    head_dim = registers[reg.HEAD_DIM]
    if blocks == 0:
        raise JobFault(reg.ErrorCode.BLOCK_COUNT)
    if not 1 <= heads <= design.query_group:
        raise JobFault(reg.ErrorCode.HEADS)
    if head_dim not in design.head_dims:
        raise JobFault(reg.ErrorCode.HEAD_DIM)
    tokens_of_job = blocks * design.block_tokens
    k, is_selection = registers[reg.K], bool(registers[reg.FLAGS])
    result_bytes = tokens_of_job * heads * SCORE_BYTES
    if is_selection:
        if not 1 <= k <= design.topk_capacity or tokens_of_job > design.topk_capacity:
            raise JobFault(reg.ErrorCode.TOP_K)
        result_bytes = heads * selection_bytes(min(k, tokens_of_job))
    elif k:
        raise JobFault(reg.ErrorCode.TOP_K)
    _check_result(registers, memory, result_bytes)
    descriptors = _read_descriptors(registers, memory, blocks)
    tokens = descriptors["first_token"].astype(np.int64)
    key_address, query_address = _signed(descriptors["key_address"]), _signed(descriptors["query_address"])
    layout = design.layout(head_dim)
    int4 = descriptors["key_format"] == KeyFormat.INT4
    streamed_bytes = np.where(int4, layout.plane_bytes, layout.block_bytes)
    shift = unpack_shifts(descriptors["shifts"], heads)
    code_dtype = query_code_dtype(design.query_bits)
    query_bytes = heads * head_dim * code_dtype.itemsize
    keys = _window(registers, memory, reg.KEY_ADDRESS, reg.KEY_BYTES)
    queries = _window(registers, memory, reg.QUERY_ADDRESS, reg.QUERY_BYTES)
    raise_first(
        tokens,
        design.block_tokens,
        [
            (reg.ErrorCode.HEAD_DIM, descriptors["head_dim"] != head_dim, None),
            (reg.ErrorCode.HEADS, descriptors["heads"] != heads, None),
            (reg.ErrorCode.KEY_FORMAT, descriptors["key_format"] > max(KeyFormat), None),
            (reg.ErrorCode.SHIFT, shift.max(axis=1) > SHIFT.max, None),
            (
                reg.ErrorCode.KEY_ADDRESS,
                keys.excludes(key_address, layout.block_bytes + HEADER_BYTES, BLOCK_ALIGN_BYTES),
                descriptors["key_address"],
            ),
            (
                reg.ErrorCode.QUERY_ADDRESS,
                queries.excludes(query_address, query_bytes, ADDRESS_ALIGN_BYTES),
                descriptors["query_address"],
            ),
            (reg.ErrorCode.TOKEN_ORDER, _out_of_order(tokens, design.block_tokens) & is_selection, None),
        ],
    )
    header_address = key_address + layout.block_bytes
    try:
        at = [(int(address), int(size)) for address, size in zip(key_address, streamed_bytes, strict=True)]
        planes = tuple(memory.read(*place) for place in at)
        headers, damaged, differ = read_headers(registers, memory, layout, header_address, descriptors)
        rows = memory.gather(query_address, query_bytes)
    except UnwrittenMemory as error:
        places = np.stack([key_address, header_address, query_address])
        block = int(np.argmax((places == error.address).any(axis=0)))
        raise JobFault(
            reg.ErrorCode.UNWRITTEN, error.address, int(tokens[block]), design.block_tokens
        ) from None
    codes = rows.view(code_dtype).reshape(blocks, heads, head_dim).astype(np.int16)
    outside = np.abs(codes.astype(np.int32)).max(axis=(1, 2)) > design.query_code.max
    raise_first(
        tokens,
        design.block_tokens,
        [
            (reg.ErrorCode.HEADER_CRC, damaged, header_address),
            (reg.ErrorCode.HEADER_IDENTITY, differ, header_address),
            (reg.ErrorCode.QUERY_CODE, outside, descriptors["query_address"]),
        ],
    )
    job = ScoringJob(
        head_dim=head_dim,
        planes=planes,
        sources=tuple((address, memory.generation(address, size)) for address, size in at),
        key_formats=tuple(KeyFormat(value) for value in descriptors["key_format"].tolist()),
        first_tokens=tokens,
        query_codes=codes,
        shift=shift,
        bias=descriptors["bias"][:, :heads].astype(np.int64),
    )
    return job, headers["plane_crc32c"]


def _out_of_order(tokens: Int64, block_tokens: int) -> Bools:
    """Which blocks do not begin behind the one before, or pass the last token there is."""
    wrong: Bools = tokens + block_tokens > TOKEN_INDEX.max + 1
    wrong[1:] |= tokens[1:] < tokens[:-1] + block_tokens
    return wrong


def _signed(addresses: NDArray[np.uint64]) -> Int64:
    return np.minimum(addresses, np.uint64(_FAR_ADDRESS)).astype(np.int64)


def _window(registers: RegisterFile, memory: DeviceMemory, address: Register, size: Register) -> _Window:
    low = registers[address]
    return _Window(max(low, memory.base), min(low + registers[size], memory.end))


def _check_result(registers: RegisterFile, memory: DeviceMemory, nbytes: int) -> None:
    address = registers[reg.RESULT_ADDRESS]
    fits = memory.base <= address and address + nbytes <= memory.end
    if address % ADDRESS_ALIGN_BYTES or not fits or registers[reg.RESULT_BYTES] < nbytes:
        raise JobFault(reg.ErrorCode.RESULT_ADDRESS, address)


def _read_descriptors(registers: RegisterFile, memory: DeviceMemory, blocks: int) -> NDArray[np.void]:
    address, nbytes = registers[reg.DESCRIPTOR_ADDRESS], blocks * DESCRIPTOR_BYTES
    if address % ADDRESS_ALIGN_BYTES or not memory.base <= address <= memory.end - nbytes:
        raise JobFault(reg.ErrorCode.DESCRIPTOR_ADDRESS, address)
    try:
        return memory.read(address, nbytes).view(DESCRIPTOR_DTYPE)
    except UnwrittenMemory:
        raise JobFault(reg.ErrorCode.UNWRITTEN, address) from None


def raise_first(
    tokens: Int64,
    block_tokens: int,
    checks: list[tuple[reg.ErrorCode, Bools, NDArray[np.uint64] | Int64 | None]],
) -> None:
    """Raise JobFault for the first block that fails a check, by the first check that it fails.

    Args:
        tokens: int64 [blocks], the first of each block.
        block_tokens: tokens of a block.
        checks: code, bool [blocks] that tells which fail, addresses of the blocks if the error has one.

    """
    failed = np.stack([bad for _, bad, _ in checks])
    if not failed.any():
        return
    block = int(np.argmax(failed.any(axis=0)))
    code, _, addresses = checks[int(np.argmax(failed[:, block]))]
    address = 0 if addresses is None else int(addresses[block])
    raise JobFault(code, address, int(tokens[block]), block_tokens)

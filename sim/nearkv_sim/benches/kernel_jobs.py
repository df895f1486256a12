"""Jobs for the kernel's bench, laid out as the driver does, and the card model that answers for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nearkv.codec.block_header import HEADER_DTYPE, header_crcs, stream_crc, with_headers
from nearkv.codec.crc import crc32c_rows
from nearkv.codec.query import FoldedQuery
from nearkv.device.descriptors import DESCRIPTOR_DTYPE, StoredBlocks, job_image, query_code_dtype
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES, StreamIdentity
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.layout import (
    BLOCK_ALIGN_BYTES,
    DESCRIPTOR_BYTES,
    SCORE_BYTES,
    KeyFormat,
    selection_bytes,
)
from nearkv_hdl.spec.register_map import Register
from nearkv_sim.benches.kernel_designs import DESIGNS
from nearkv_sim.card.card import MEMORY_BASE
from nearkv_sim.card.kernel import Kernel as KernelModel
from nearkv_sim.card.memory import DeviceMemory
from nearkv_sim.engines import GoldenEngine

MEMORY_BYTES = 1 << 18
RESULTS, IMAGE, KEYS = 0x1000, 0x8000, 0x10000  # offsets of a job's parts
KEY_SLOTS = (MEMORY_BYTES - KEYS) // BLOCK_ALIGN_BYTES
_FAR_PS = 1 << 60


@dataclass
class Job:
    """A job; tests bend it.

    Attributes:
        arguments: by register.
        image: descriptors and codes, uint8, to be written to DESCRIPTOR_ADDRESS.
        keys: blocks with their headers, uint8 [blocks, bytes].
        key_addresses: where they are to be written.
        formats: of each block.

    """

    arguments: dict[Register, int]
    image: NDArray[np.uint8]
    keys: NDArray[np.uint8]
    key_addresses: list[int]
    formats: tuple[KeyFormat, ...] = field(default=())

    @property
    def descriptors(self) -> NDArray[np.void]:
        """View of the image's descriptors."""
        end = self.arguments[reg.BLOCK_COUNT] * DESCRIPTOR_BYTES
        return self.image[:end].view(DESCRIPTOR_DTYPE)

    @property
    def parts(self) -> list[tuple[int, NDArray[np.uint8]]]:
        """What must be in memory before the job: addresses and bytes."""
        blocks = zip(self.key_addresses, self.keys, strict=True)
        return [(self.arguments[reg.DESCRIPTOR_ADDRESS], self.image), *blocks]

    @property
    def windows(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, int]]:
        """Addresses (first, end) that the arguments let be read, and those that they let be written."""
        given = self.arguments
        starts = (reg.DESCRIPTOR_ADDRESS, reg.KEY_ADDRESS, reg.QUERY_ADDRESS, reg.RESULT_ADDRESS)
        sizes = (
            given[reg.BLOCK_COUNT] * DESCRIPTOR_BYTES,
            *(given[size] for size in (reg.KEY_BYTES, reg.QUERY_BYTES, reg.RESULT_BYTES)),
        )
        *reads, writes = [(given[at], given[at] + size) for at, size in zip(starts, sizes, strict=True)]
        return tuple(reads), writes

    def renew_headers(self, design: DesignConfig) -> None:
        """Make the CRCs those of the planes as they are."""
        planes = self.keys[:, :-HEADER_BYTES]
        header = np.ascontiguousarray(self.keys[:, -HEADER_BYTES:]).view(HEADER_DTYPE).reshape(-1)
        layout = design.layout(self.arguments[reg.HEAD_DIM])
        header["plane_crc32c"] = crc32c_rows(planes.reshape(-1, layout.plane_bytes)).reshape(-1, 2)
        header["header_crc32c"] = header_crcs(header)
        self.keys[:, -HEADER_BYTES:] = header.view(np.uint8).reshape(-1, HEADER_BYTES)

    def range_of(self, what: str, design: DesignConfig) -> tuple[int, int, int]:
        """Address, bytes, block of "list", "selection", or of a block's "header", "query", "keys", "results".

        The block is the first of those whose keys lie highest, so that nobody else reads them before.
        """
        if what == "list":
            return self.arguments[reg.DESCRIPTOR_ADDRESS], len(self.descriptors) * DESCRIPTOR_BYTES, 0
        keys = self.descriptors["key_address"]
        block = int(keys.argmax())
        heads, head_dim = self.arguments[reg.HEADS], self.arguments[reg.HEAD_DIM]
        if what == "keys":
            return int(keys[block]), design.layout(head_dim).streamed_bytes(self.formats[block]), block
        if what == "selection":
            return self.arguments[reg.RESULT_ADDRESS], self.arguments[reg.RESULT_BYTES], 0
        if what == "header":
            return int(keys[block]) + design.layout(head_dim).block_bytes, HEADER_BYTES, block
        if what == "query":
            nbytes = heads * head_dim * query_code_dtype(design.query_bits).itemsize
            return int(self.descriptors["query_address"][block]), nbytes, block
        nbytes = design.block_tokens * heads * SCORE_BYTES
        return self.arguments[reg.RESULT_ADDRESS] + block * nbytes, nbytes, block


def random_job(
    design_name: str,
    rng: np.random.Generator,
    blocks: int,
    heads: int,
    head_dim: int,
    formats: Sequence[KeyFormat] = tuple(KeyFormat),
    k: int = 0,
    masters: Sequence[int] = (),
) -> Job:
    """A good job over random blocks, windows exact to the byte.


    With k it selects; otherwise a block may come more than once. Some heads of a selection have no query, so
    that all tokens of a block have equal scores, and some of those have one bias for all blocks. Without k,
    `masters` says which key masters read the blocks, in turn; by default any.
    """
    design = DESIGNS[design_name]
    limit = design.query_code.max
    chosen = tuple(KeyFormat(value) for value in rng.choice(formats, blocks))
    codes = rng.integers(-limit, limit + 1, (blocks, heads, head_dim)).astype(np.int16)
    bias = rng.integers(-(1 << 29), 1 << 29, (blocks, heads))
    if k:
        codes[:, rng.random(heads) < 0.4] = 0
        bias[:, rng.random(heads) < 0.5] = -5
    folded = FoldedQuery(
        codes=codes,
        shift=rng.integers(0, 8, (blocks, heads)),
        bias=bias,
        score_fraction_bits=np.zeros(heads, np.int64),
        key_format=chosen,
    )
    layout = design.layout(head_dim)
    slots = -(-(layout.block_bytes + HEADER_BYTES) // BLOCK_ALIGN_BYTES)
    place = rng.choice(KEY_SLOTS // slots, blocks, replace=not k)
    addresses_of_slots = MEMORY_BASE + KEYS + BLOCK_ALIGN_BYTES * slots * np.arange(KEY_SLOTS // slots)
    if masters:
        read_by = np.array([design.key_master(address) for address in addresses_of_slots.tolist()])
        place = np.array(
            [rng.choice(np.flatnonzero(read_by == masters[i % len(masters)])) for i in range(blocks)]
        )
    # A block has one first token, however often it is listed.
    tokens_of, generations_of = rng.integers(0, 1 << 32, (2, KEY_SLOTS))
    if k:  # ascending, up to the last token there is
        tokens_of[place[::-1]] = (1 << 32) - np.cumsum(design.block_tokens + rng.integers(0, 99, blocks))
    wide, narrow = rng.integers(0, 1 << 32, 2).tolist(), rng.integers(0, 1 << 16, 2).tolist()
    stored = StoredBlocks(
        StreamIdentity(*wide, *narrow),
        addresses_of_slots[place],
        tokens_of[place],
        generations_of[place],
    )
    planes = rng.integers(0, 256, (KEY_SLOTS, layout.block_bytes)).astype(np.uint8)[place]
    keys = with_headers(planes, layout, stored.identity, stored.first_tokens, stored.generations)
    tokens = blocks * design.block_tokens
    result_bytes = heads * selection_bytes(min(k, tokens)) if k else tokens * heads * SCORE_BYTES
    image_address = MEMORY_BASE + IMAGE + 64 * int(rng.integers(64))
    image = job_image(
        image_address,
        stored,
        folded,
        slice(0, heads),
        design.query_bits,
    )
    addresses = stored.key_addresses
    arguments = {
        reg.DESCRIPTOR_ADDRESS: image_address,
        reg.KEY_ADDRESS: int(addresses.min()),
        reg.KEY_BYTES: int(np.ptp(addresses)) + layout.block_bytes + HEADER_BYTES,
        reg.QUERY_ADDRESS: image_address + blocks * DESCRIPTOR_BYTES,
        reg.QUERY_BYTES: len(image) - blocks * DESCRIPTOR_BYTES,
        reg.RESULT_ADDRESS: MEMORY_BASE + RESULTS + 64 * int(rng.integers(64)),
        reg.RESULT_BYTES: result_bytes,
        reg.BLOCK_COUNT: blocks,
        reg.HEAD_DIM: head_dim,
        reg.HEADS: heads,
        reg.STREAM_CRC32C: stream_crc(stored.identity),
        reg.K: k,
        reg.FLAGS: int(k > 0),
    }
    assert IMAGE + 64 * 64 + len(image) <= KEYS
    assert RESULTS + 64 * 64 + result_bytes <= IMAGE
    return Job(arguments, image, keys, addresses.tolist(), chosen)


class CardModel:
    """The card's kernel and memory, told what the bench tells the RTL; time does not matter."""

    def __init__(self, design_name: str, content: bytes) -> None:
        design = DESIGNS[design_name]
        self.memory = DeviceMemory(MEMORY_BASE, MEMORY_BYTES)
        self.kernel = KernelModel(design, self.memory, GoldenEngine(design), lambda _at_ps: None)
        self.load(content)

    def load(self, content: bytes) -> None:
        """Make the memory hold these MEMORY_BYTES bytes."""
        self.memory.write(MEMORY_BASE, np.frombuffer(content, np.uint8))

    @property
    def content(self) -> bytes:
        """All of the memory, when the job in flight has ended."""
        self.kernel.finish_until(_FAR_PS)
        return self.memory.read(MEMORY_BASE, MEMORY_BYTES).tobytes()

    def write(self, register: Register, value: int) -> None:
        """All words of a register."""
        for index in range(register.words):
            self.kernel.write_word(register.offset + 4 * index, value >> 32 * index & 0xFFFF_FFFF, 0)

    def read(self, register: Register) -> int:
        """All words of a register, when the job in flight has ended."""
        words = [
            self.kernel.read_word(register.offset + 4 * index, _FAR_PS) for index in range(register.words)
        ]
        return sum(word << 32 * index for index, word in enumerate(words))

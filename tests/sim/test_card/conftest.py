"""Small builds, their engines, random jobs for them, and a card with a good job laid out."""

from dataclasses import replace

import numpy as np
import pytest

from nearkv.codec.block_header import stream_crc, with_headers
from nearkv.codec.key_block import split_planes
from nearkv_hdl.spec import registers as reg
from nearkv_hdl.spec.block_header import HEADER_BYTES, StreamIdentity
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import BlockDescriptor, KeyFormat
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_sim.card import SimulatedCard
from nearkv_sim.engines import EngineStalled, GoldenEngine, ScoringJob
from nearkv_sim.engines_rtl import RtlEngine
from nearkv_sim.hardware.pcie import PRESETS, PcieLink

# As in tests/runtime/test_device, so that its compiled scorer is shared through the cache.
TINY = get_design("tiny")
SMALL = replace(
    TINY,
    name="small",
    query_group=3,
    head_dims=(64, 128, 256),
    clock_hz=100_000_000,
    query_bits=10,
    block_tokens=16,
    topk=TopKConfig(capacity=64, lanes=2, token_run=16, candidate_rows=8),
)
DESIGNS = {"tiny": TINY, "small": SMALL}


@pytest.fixture(params=DESIGNS)
def design(request):
    return DESIGNS[request.param]


@pytest.fixture(scope="session")
def rtl_engines():
    return {name: RtlEngine(design) for name, design in DESIGNS.items()}


@pytest.fixture
def rtl(rtl_engines, design):
    return rtl_engines[design.name]


@pytest.fixture
def golden(design):
    return GoldenEngine(design)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def random_job(rng):
    """A job of random operands; every block has an address and generation of its own."""

    def make(design, blocks, heads, head_dim, formats=tuple(KeyFormat), address=0, generation=1):
        codes = rng.integers(-128, 128, (blocks, design.block_tokens, head_dim)).astype(np.int8)
        chosen = tuple(KeyFormat(f) for f in rng.choice(formats, blocks))
        planes = []
        for block, key_format in enumerate(chosen):
            high, low = split_planes(codes[block])
            planes.append(np.concatenate([high, low]) if key_format is KeyFormat.INT8 else high)
        limit = design.query_code.max
        return ScoringJob(
            head_dim=head_dim,
            planes=tuple(planes),
            sources=tuple((address + 65536 * block, generation) for block in range(blocks)),
            key_formats=chosen,
            first_tokens=rng.permutation(blocks).astype(np.int64) * design.block_tokens,
            query_codes=rng.integers(-limit, limit + 1, (blocks, heads, head_dim)).astype(np.int16),
            shift=rng.integers(0, 5, (blocks, heads)),
            bias=rng.integers(-(1 << 29), 1 << 29, (blocks, heads)),
        )

    return make


class Bench:
    """A card with one good job laid out in memory; tests bend it."""

    heads, head_dim, blocks, guard = 2, 64, 3, 0xA5
    row_bytes = heads * head_dim * 2  # 10-bit codes take 16 bits

    def __init__(self, design, engine=None):
        self.design = design
        self.card = SimulatedCard(
            "tlm", design, PcieLink(PRESETS["smartssd"]), engine or GoldenEngine(design), 1 << 20
        )
        base = self.card.memory_base
        self.block_bytes = design.layout(self.head_dim).block_bytes
        self.result_bytes = self.blocks * design.block_tokens * self.heads * 4
        self.keys, self.queries = base + 0x10000, base + 0x20000
        self.list, self.result = base + 0x30000, base + 0x40000
        rng = np.random.default_rng(7)
        self.identity = StreamIdentity(model=1 << 31, sequence=5, layer=40, kv_head=3)
        self.planes = rng.integers(0, 256, (self.blocks, self.block_bytes)).astype(np.uint8)
        self.write_blocks()
        self.codes = rng.integers(-511, 512, (self.blocks, self.heads, self.head_dim)).astype("<i2")
        self.write(self.queries, self.codes.view(np.uint8).reshape(-1))
        self.write(self.result - 64, np.full(self.result_bytes + 128, self.guard))
        self.descriptors = [
            BlockDescriptor(
                key_address=self.keys + 4096 * block,
                query_address=self.queries + self.row_bytes * block,
                first_token=100 + 16 * block,
                head_dim=self.head_dim,
                key_format=KeyFormat(block % 2),
                bias=(7, -9),
                shift=(0, 3),
                generation=9 + block,
            )
            for block in range(self.blocks)
        ]
        self.arguments = {
            reg.DESCRIPTOR_ADDRESS: self.list,
            reg.KEY_ADDRESS: self.keys,
            reg.KEY_BYTES: 4096 * (self.blocks - 1) + self.block_bytes + HEADER_BYTES,
            reg.QUERY_ADDRESS: self.queries,
            reg.QUERY_BYTES: self.row_bytes * self.blocks,
            reg.RESULT_ADDRESS: self.result,
            reg.RESULT_BYTES: self.result_bytes,
            reg.BLOCK_COUNT: self.blocks,
            reg.HEAD_DIM: self.head_dim,
            reg.HEADS: self.heads,
            reg.STREAM_CRC32C: stream_crc(self.identity),
        }
        self.enable_interrupts()

    def write_blocks(self):
        """Planes with their headers."""
        index = np.arange(self.blocks)
        layout = self.design.layout(self.head_dim)
        stored = with_headers(self.planes, layout, self.identity, 100 + 16 * index, 9 + index)
        for block in range(self.blocks):
            self.write(self.keys + 4096 * block, stored[block])

    def enable_interrupts(self):
        self.set(reg.GIER, 1)
        self.set(reg.IER, 1)

    def write(self, address, values):
        self.card.write_memory(address, np.asarray(values).astype(np.uint8))

    def set(self, register, value):
        for at in range(0, register.size_bytes, 4):
            self.card.write_register(register.offset + at, value >> 8 * at & 0xFFFF_FFFF)

    def get(self, register):
        words = [self.card.read_register(register.offset + at) for at in range(0, register.size_bytes, 4)]
        return sum(word << 32 * index for index, word in enumerate(words))

    def start(self):
        self.write(self.list, np.frombuffer(b"".join(d.pack() for d in self.descriptors), np.uint8))
        for register, value in self.arguments.items():
            self.set(register, value)
        self.set(reg.CTRL, 1)

    def run(self):
        self.start()
        self.card.wait_interrupt(10**9)
        return self.get(reg.STATUS)

    @property
    def error(self):
        return reg.ErrorCode(self.get(reg.ERROR_CODE)), self.get(reg.ERROR_ADDRESS), self.get(reg.ERROR_TOKEN)

    def flip(self, address, bit):
        """One bit of the card's memory."""
        self.write(address, self.card.read_memory(address, 1) ^ (1 << bit))

    def acknowledge(self):
        self.set(reg.ISR, 1)
        self.set(reg.CTRL, reg.CTRL.mask("ap_continue"))

    def untouched(self):
        around = self.card.read_memory(self.result - 64, self.result_bytes + 128)
        return bool((around == self.guard).all())


class HangingEngine:
    def run(self, job):
        raise EngineStalled(f"{len(job.planes)} blocks were too many")


@pytest.fixture
def bench():
    return Bench(SMALL)


@pytest.fixture
def hanging_bench():
    return Bench(SMALL, HangingEngine())

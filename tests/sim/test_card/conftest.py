"""Small builds, their engines, and random jobs for them."""

import numpy as np
import pytest

from nearkv.codec.key_block import split_planes
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import LFE5U_85F, get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_sim.engines import GoldenEngine, ScoringJob
from nearkv_sim.engines_rtl import RtlEngine

# As in tests/runtime/test_device, so that its compiled scorer is shared through the cache.
SMALL = DesignConfig(
    name="small",
    device=LFE5U_85F,
    bus_bytes=8,
    lanes=8,
    query_group=3,
    head_dims=(64, 128, 256),
    clock_hz=100_000_000,
    query_bits=10,
    block_tokens=16,
)
DESIGNS = {"tiny": get_design("tiny"), "small": SMALL}


@pytest.fixture(params=DESIGNS)
def design(request):
    return DESIGNS[request.param]


@pytest.fixture
def small_design():
    return SMALL


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

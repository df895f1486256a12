"""Machines that ship, and one of plain rates that answers at once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from nearkv.machine import (
    LinkDescription,
    Machine,
    MachineDescription,
    ProcessorDescription,
    TierDescription,
    TierKind,
    Timing,
)
from nearkv_sim.hardware.machine import ModelMachine, open_machine

GB = 10**9
PS_PER_S = 10**12
TIERS = ("hbm", "ddr", "ssd")
ATTEND_BYTES_PER_S = {"hbm_units": 1000 * GB, "ddr_units": 100 * GB, "ssd_units": 10 * GB}
LINK_BYTES_PER_S = {"hbm_link": 300 * GB, "ddr_link": 50 * GB, "ssd_link": 7 * GB}
GPU_FLOPS, GPU_BYTES_PER_S = 10**15, 3000 * GB


class RatePam(Machine):
    """A GPU and three PIM tiers: each link and unit is one rate without latency."""

    @property
    def name(self) -> str:
        return "rates"

    @property
    def description(self) -> MachineDescription:
        return MachineDescription(
            "rates",
            "test",
            (
                TierDescription("vram", TierKind.GPU_MEMORY, "x/x", 80 * GB),
                *(TierDescription(name, TierKind.PIM_MEMORY, "x/x", 10**13) for name in TIERS),
            ),
            (
                ProcessorDescription("gpu", "x/x", "vram"),
                *(ProcessorDescription(f"{name}_units", "x/x", name) for name in TIERS),
            ),
            (
                LinkDescription("hbm_link", "vram", "hbm", "x/x"),
                LinkDescription("ddr_link", "vram", "ddr", "x/x"),
                LinkDescription("ssd_link", "ddr", "ssd", "x/x"),
            ),
        )

    def transfer(self, source: str, target: str, nbytes: int) -> Timing:
        path = self.description.path(source, target)
        busy = {link.name: -(-nbytes * PS_PER_S // LINK_BYTES_PER_S[link.name]) for link in path}
        return Timing(max(busy.values()), nbytes, busy)

    def compute(self, processor: str, flops: int, nbytes: int) -> Timing:
        time_ps = max(-(-nbytes * PS_PER_S // GPU_BYTES_PER_S), -(-flops * PS_PER_S // GPU_FLOPS))
        return Timing(time_ps, nbytes, {processor: time_ps})

    def attend(self, processor: str, tokens: int, query_heads: int, kv_heads: int, head_dim: int) -> Timing:
        assert query_heads % kv_heads == 0
        nbytes = 4 * tokens * kv_heads * head_dim
        time_ps = -(-nbytes * PS_PER_S // ATTEND_BYTES_PER_S[processor])
        return Timing(time_ps, nbytes, {processor: time_ps})

    def gather(self, source: str, target: str, nbytes: int, piece_bytes: int, region_bytes: int) -> Timing:
        raise NotImplementedError

    def scan(self, processor: str, nbytes: int, *, code_bits: int = 8) -> Timing:
        raise NotImplementedError


@dataclass(frozen=True)
class Geometry:
    """A small transformer with grouped heads."""

    layers: int = 2
    query_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    hidden: int = 512
    bytes_per_value: int = 2
    qkv_parameters: int = 512 * 64 * 12
    output_parameters: int = 512 * 512
    ffn_parameters: int = 3 * 512 * 1536
    head_parameters: int = 512 * 32_000
    weight_bytes: int = 50_000_000


@pytest.fixture(scope="session")
def pam() -> ModelMachine:
    return open_machine("pam")


@pytest.fixture(scope="session")
def dgx() -> ModelMachine:
    return open_machine("dgx_h100")


@pytest.fixture
def rates() -> RatePam:
    return RatePam()


@pytest.fixture
def geometry() -> Geometry:
    return Geometry()

"""A machine of plain rates, to be computed by hand, and the paper's."""

from __future__ import annotations

from dataclasses import dataclass, field

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

GB = 10**9
PS_PER_S = 10**12


def ps(nbytes: int, bytes_per_s: float) -> int:
    return max(1, -int(-nbytes * PS_PER_S // bytes_per_s))


@dataclass
class RateMachine(Machine):
    """GPU, CPU and card with their memories and a drive; every part is one rate without latency."""

    gpu_link: float = 32 * GB
    drive_link: float = 3.2 * GB
    cpu: float = 120 * GB
    card: float = 19.2 * GB
    gpu_bytes: float = 1000 * GB
    gpu_flops: float = 100_000 * GB
    hot_capacity_bytes: int = 64 * GB
    card_capacity_bytes: int = 4 * GB
    gpu_capacity_bytes: int = 24 * GB
    asked: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "rates"

    @property
    def description(self) -> MachineDescription:
        return MachineDescription(
            "rates",
            "test",
            (
                TierDescription("vram", TierKind.GPU_MEMORY, "x/x", self.gpu_capacity_bytes),
                TierDescription("dram", TierKind.HOST_MEMORY, "x/x", self.hot_capacity_bytes),
                TierDescription("ddr", TierKind.CARD_MEMORY, "x/x", self.card_capacity_bytes),
                TierDescription("nand", TierKind.DRIVE, "x/x", 10**15),
            ),
            (
                ProcessorDescription("gpu", "x/x", "vram"),
                ProcessorDescription("cpu", "x/x", "dram"),
                ProcessorDescription("fpga", "x/x", "ddr"),
            ),
            (
                LinkDescription("gpu_link", "dram", "vram", "x/x"),
                LinkDescription("drive_link", "dram", "nand", "x/x"),
                LinkDescription("card_link", "dram", "ddr", "x/x"),
            ),
        )

    def transfer(self, source: str, target: str, nbytes: int) -> Timing:
        self.asked.append(("transfer", source, target))
        rates = {"gpu_link": self.gpu_link, "drive_link": self.drive_link, "card_link": self.drive_link}
        path = self.description.path(source, target)
        busy = {link.wires: ps(nbytes, rates[link.wires]) for link in path}
        if "nand" in (source, target):
            busy["nand"] = ps(nbytes, self.drive_link)
        return Timing(max(busy.values()), nbytes, busy)

    def gather(self, source: str, target: str, nbytes: int, piece_bytes: int, region_bytes: int) -> Timing:
        assert piece_bytes > 0
        assert nbytes <= region_bytes
        self.asked.append(("gather", source, target))
        return self.transfer(source, target, nbytes)

    def scan(self, processor: str, nbytes: int, *, code_bits: int = 8) -> Timing:
        # A scorer takes as long for INT4 codes of as many keys: its lanes work on whole products.
        time_ps = ps(nbytes * 8 // code_bits, {"cpu": self.cpu, "fpga": self.card}[processor])
        return Timing(time_ps, nbytes, {processor: time_ps})

    def compute(self, processor: str, flops: int, nbytes: int) -> Timing:
        assert processor == "gpu"
        time_ps = max(ps(flops, self.gpu_flops), ps(nbytes, self.gpu_bytes))
        return Timing(time_ps, nbytes, {"gpu": time_ps})

    def attend(self, processor: str, tokens: int, query_heads: int, kv_heads: int, head_dim: int) -> Timing:
        raise NotImplementedError


@dataclass(frozen=True)
class Geometry:
    """A small transformer."""

    layers: int = 8
    query_heads: int = 8
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 1024
    bytes_per_value: int = 2
    qkv_parameters: int = 3 * 1024 * 1024
    output_parameters: int = 1024 * 1024
    ffn_parameters: int = 8 * 1024 * 1024
    head_parameters: int = 1024 * 32_000

    @property
    def weight_bytes(self) -> int:
        layer = self.qkv_parameters + self.output_parameters + self.ffn_parameters
        return 2 * (self.layers * layer + self.head_parameters)


@pytest.fixture
def rates() -> type[RateMachine]:
    return RateMachine


@pytest.fixture
def geometry() -> Geometry:
    return Geometry()

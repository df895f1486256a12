"""Roofline of a processor: a kernel takes as long as the longer of its arithmetic and its memory traffic.

Formula (Williams et al., "Roofline", CACM 2009; occupancy as in the AttAcc simulator, ASPLOS 2024):
    time = max(flops / (peak · e_c · u), bytes / (bandwidth · e_m · u)) + overhead,
    u = blocks / (ceil(blocks / M) · M)
for `blocks` independent thread blocks on M multiprocessors: the last wave leaves some of them idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from nearkv_sim.hardware.link_pipe import PS_PER_S


@dataclass(frozen=True, kw_only=True)
class ProcessorConfig:
    """A GPU or CPU. ValueError for a rate, size or power below what makes sense.

    Attributes:
        peak_flops_per_s: dense rate in the precision that attention uses, per second.
        memory_bandwidth_bytes_per_s: of its own memory.
        multiprocessors: units that thread blocks are spread over; cores of a CPU.
        idle_power_w: of the board without load.
        compute_efficiency, memory_efficiency: share of the two rates that well-tuned kernels reach.
        norm_overhead_ps, activation_overhead_ps: fixed time of the two kinds of element-wise kernels.
        pj_per_flop: energy of one operation in the arithmetic unit.
        interconnect_bytes_per_s, hop_latency_ps: each way between equal processors; 0 without such a link.

    """

    peak_flops_per_s: int
    memory_bandwidth_bytes_per_s: int
    multiprocessors: int
    idle_power_w: int
    compute_efficiency: float
    memory_efficiency: float
    norm_overhead_ps: int
    activation_overhead_ps: int
    pj_per_flop: float
    interconnect_bytes_per_s: int = 0
    hop_latency_ps: int = 0

    def __post_init__(self) -> None:
        """Refuse what no processor can be."""
        for name in ("peak_flops_per_s", "memory_bandwidth_bytes_per_s", "multiprocessors"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 1")
        for name in ("compute_efficiency", "memory_efficiency"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: above 0, to 1")
        for name in (
            "idle_power_w",
            "norm_overhead_ps",
            "activation_overhead_ps",
            "pj_per_flop",
            "interconnect_bytes_per_s",
            "hop_latency_ps",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 0")


@dataclass(frozen=True)
class Kernel:
    """Work that is launched at once.

    Attributes:
        name: what it is.
        flops: operations; a multiply-add counts two.
        nbytes: bytes to and from memory.
        blocks: independent thread blocks; None where a tiling fills every multiprocessor.
        overhead_ps: fixed time beside the work.

    """

    name: str
    flops: int
    nbytes: int
    blocks: int | None = None
    overhead_ps: int = 0


@dataclass(frozen=True)
class KernelTime:
    """Time of a kernel and its parts, in ps.

    Attributes:
        kernel: the work.
        compute_ps, memory_ps: what either roof alone would take.
        time_ps: max of both plus the overhead.

    """

    kernel: Kernel
    compute_ps: int
    memory_ps: int
    time_ps: int

    @property
    def bound(self) -> str:
        """Which part is the longest: compute, memory or overhead."""
        parts = {
            "memory": self.memory_ps,
            "compute": self.compute_ps,
            "overhead": self.kernel.overhead_ps,
        }
        return max(parts, key=lambda name: parts[name])


def kernel_time(processor: ProcessorConfig, kernel: Kernel) -> KernelTime:
    """Time of one kernel.

    Raises:
        ValueError: negative work, or fewer than one block.

    """
    if min(kernel.flops, kernel.nbytes, kernel.overhead_ps) < 0:
        raise ValueError(f"kernel {kernel.name} is {kernel}; allowed: work from 0")
    occupancy = Fraction(1)
    if kernel.blocks is not None:
        if kernel.blocks < 1:
            raise ValueError(f"blocks of kernel {kernel.name} is {kernel.blocks}; allowed: from 1")
        waves = -(-kernel.blocks // processor.multiprocessors)
        occupancy = Fraction(kernel.blocks, waves * processor.multiprocessors)
    compute_ps = _time_ps(
        kernel.flops, processor.peak_flops_per_s, exact(processor.compute_efficiency) * occupancy
    )
    memory_ps = _time_ps(
        kernel.nbytes, processor.memory_bandwidth_bytes_per_s, exact(processor.memory_efficiency) * occupancy
    )
    time_ps = max(compute_ps, memory_ps) + kernel.overhead_ps
    # Whatever the efficiencies, no roof is ever exceeded.
    if (
        kernel.flops * PS_PER_S > processor.peak_flops_per_s * time_ps
        or kernel.nbytes * PS_PER_S > processor.memory_bandwidth_bytes_per_s * time_ps
    ):
        raise AssertionError(f"kernel {kernel.name} is faster than the roofline")
    return KernelTime(kernel, compute_ps, memory_ps, time_ps)


def exact(share: float) -> Fraction:
    """The decimal that a profile shows, not its binary neighbour."""
    return Fraction(str(share))


def _time_ps(work: int, rate_per_s: int, share: Fraction) -> int:
    return -(-work * PS_PER_S * share.denominator // (rate_per_s * share.numerator))

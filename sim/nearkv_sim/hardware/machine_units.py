"""Compute at a tier: how long using `nbytes` of keys or values takes, and whose figures say so.

Our own units are timed by cycle formulas that the RTL confirms, at the clock of their design; GPUs and CPUs
by published rooflines; the power cap of PIM devices is published by PAM.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nearkv.machine import Timing
from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.designs import get_design
from nearkv_hdl.spec.layout import KeyFormat
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.spec.pim_designs import get_pim_design
from nearkv_hdl.spec.topk_config import TopKConfig
from nearkv_sim.golden.reduction_timing import attention_timing
from nearkv_sim.golden.scorer_timing import job_cycles
from nearkv_sim.golden.topk_timing import TopKTiming
from nearkv_sim.hardware.link_pipe import PS_PER_S
from nearkv_sim.hardware.pim_units import pam_profile, published_attention, rtl_ps
from nearkv_sim.hardware.profile import named_profile
from nearkv_sim.hardware.roofline import Kernel, ProcessorConfig, exact, kernel_time
from nearkv_sim.hardware.thermal import FpgaThermal, ThermalConfig

FP16_BYTES = 2
# The scorer's recurrence is walked for so many blocks; beyond, every block adds its lane beats.
WALKED_BLOCKS = 64
_TOPK_LANES = 8
_TOPK_RUN = 128  # tokens of a key block share one stored index


@dataclass(frozen=True, kw_only=True)
class ScorerConfig:
    """Our scorer on a card.

    Attributes:
        design: name of the build; `nearkv designs` lists them.
        launch_latency_ps: from the host's call to the first beat.
        active_power_w, idle_power_w: of the FPGA.
        thermal: name of a profile of kind thermal.

    """

    design: str
    launch_latency_ps: int
    active_power_w: float
    idle_power_w: float
    thermal: str

    def __post_init__(self) -> None:
        """Refuse an unknown design and negative figures."""
        get_design(self.design)
        for name in ("launch_latency_ps", "active_power_w", "idle_power_w"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed: from 0")


@dataclass(frozen=True, kw_only=True)
class NearMemoryConfig:
    """Processing units inside a memory device, one device.

    Attributes:
        device: profile of kind pam: our design for the device and its published figures.
        pj_per_flop, pj_per_byte: energy of an operation, and of a byte from cell to unit.

    """

    device: str
    pj_per_flop: float
    pj_per_byte: float

    def __post_init__(self) -> None:
        """Refuse an unknown device and negative energies."""
        pam_profile(self.device)
        if self.pj_per_flop < 0 or self.pj_per_byte < 0:
            raise ValueError(
                f"pj_per_flop is {self.pj_per_flop} and pj_per_byte {self.pj_per_byte}; allowed: from 0"
            )


class Unit(ABC):
    """`count` equal processors that share the work evenly."""

    def __init__(self, name: str, count: int) -> None:
        """Name it as the machine does."""
        self.name, self.count = name, count

    @property
    @abstractmethod
    def origin(self) -> str:
        """Whose figures its time comes from: own or published, in a few words."""

    @property
    @abstractmethod
    def idle_power_w(self) -> float:
        """Power of one of them without work."""

    @abstractmethod
    def scan_ps(self, nbytes: int, code_bits: int = 8) -> Mapping[str, int]:
        """Times in ps of what happens side by side while `nbytes` of keys are scored; the longest counts."""

    def _require_rows(self, code_bits: int) -> None:
        if code_bits != 8:
            raise ValueError(f"code_bits of {self.name} is {code_bits}; allowed: 8, it reads no key codes")


class RooflineUnit(Unit):
    """A GPU or CPU: reads FP16 rows, a multiply-add per value."""

    def __init__(self, name: str, count: int, config: ProcessorConfig) -> None:
        """Take the processor's roofline."""
        super().__init__(name, count)
        self.config = config

    @property
    def origin(self) -> str:
        """Published."""
        return "published: data sheet roofline"

    @property
    def idle_power_w(self) -> float:
        """Of the board."""
        return self.config.idle_power_w

    def scan_ps(self, nbytes: int, code_bits: int = 8) -> Mapping[str, int]:
        """FP16 rows of one query head: one operation per byte."""
        self._require_rows(code_bits)
        return self.kernel_ps(nbytes, nbytes)

    def kernel_ps(self, flops: int, nbytes: int) -> Mapping[str, int]:
        """A kernel that tiles fill every multiprocessor with."""
        kernel = Kernel("kernel", -(-flops // self.count), -(-nbytes // self.count))
        return {self.name: kernel_time(self.config, kernel).time_ps}


class ScorerUnit(Unit):
    """Our scorer: INT8 key blocks at the design's clock, or a lower one while the FPGA is too hot.

    Attributes:
        thermal: temperature of the FPGA; a card that has shut down raises ValueError for any work.

    """

    def __init__(self, name: str, count: int, config: ScorerConfig) -> None:
        """Look the design up."""
        super().__init__(name, count)
        self.config = config
        self.design: DesignConfig = get_design(config.design)
        self.head_dim = self.design.head_dims[-1]
        self.thermal = FpgaThermal(named_profile("thermal", config.thermal, ThermalConfig).config)

    @property
    def origin(self) -> str:
        """Own."""
        return f"own: cycle formula confirmed by RTL, {self.design.clock_hz / 1e6:g} MHz"

    @property
    def idle_power_w(self) -> float:
        """Of the FPGA."""
        return self.config.idle_power_w

    def scan_ps(self, nbytes: int, code_bits: int = 8) -> Mapping[str, int]:
        """Whole key blocks of the largest head_dim, for as many query heads as the design groups."""
        if code_bits not in (4, 8):
            raise ValueError(f"code_bits of {self.name} is {code_bits}; allowed: 4 or 8")
        key_format = KeyFormat.INT8 if code_bits == 8 else KeyFormat.INT4
        blocks = -(-nbytes // (self.count * self.design.layout(self.head_dim).streamed_bytes(key_format)))
        return {self.name: self.config.launch_latency_ps + self.job_ps(blocks, key_format)}

    def power_w(self, timing: Timing) -> float:
        """Mean power of one card during some work: active while it is busy, idle otherwise."""
        share = min(1.0, timing.busy_ps.get(self.name, 0) / timing.time_ps)
        return self.config.idle_power_w + (self.config.active_power_w - self.config.idle_power_w) * share

    def steady_c(self, timing: Timing) -> float:
        """Temperature that repeating some work without end leads to."""
        return self.thermal.config.steady_c(self.power_w(timing))

    def job_ps(self, blocks: int, key_format: KeyFormat = KeyFormat.INT8) -> int:
        """One job of so many blocks, without the launch."""
        walked = min(blocks, WALKED_BLOCKS)
        cycles = job_cycles(self.design, [self.head_dim] * walked, [key_format] * walked)
        cycles += (blocks - walked) * self.design.lane_beats_per_block(self.head_dim)
        return self._ps(cycles)

    def select_ps(self, tokens: int, k: int) -> int:
        """Upper bound of the exact top-k over one head's scores, after the last score."""
        capacity = -(-max(tokens, 2 * _TOPK_RUN) // _TOPK_RUN) * _TOPK_RUN
        rows = capacity // _TOPK_LANES
        config = TopKConfig(
            capacity, _TOPK_LANES, token_run=_TOPK_RUN, candidate_rows=min(TopKConfig.candidate_rows, rows)
        )
        return self._ps(TopKTiming(config).worst_case_cycles(tokens, k))

    def _ps(self, cycles: int) -> int:
        share = exact(self.thermal.clock_share)
        if not share:
            raise ValueError(
                f"{self.name} has shut down at {self.thermal.temperature_c:.1f} °C; allowed: a card below"
                f" {self.thermal.config.shutdown_c:g} °C"
            )
        return -(-cycles * PS_PER_S * share.denominator // (self.design.clock_hz * share.numerator))


class NearMemoryUnit(Unit):
    """Our processing units in every device of a tier, or PAM's published units where those are slower."""

    def __init__(self, name: str, count: int, config: NearMemoryConfig) -> None:
        """Look the design up."""
        super().__init__(name, count)
        self.config = config
        self.device = pam_profile(config.device).config
        self.design: PimDesign = get_pim_design(self.device.design)

    @property
    def origin(self) -> str:
        """Both."""
        return (
            f"own: cycle formula confirmed by RTL, {self.design.clock_hz / 1e6:g} MHz;"
            " published: PAM's units under their power cap"
        )

    @property
    def idle_power_w(self) -> float:
        """None is published; the memory's own is not theirs."""
        return 0.0

    def scan_ps(self, nbytes: int, code_bits: int = 8) -> Mapping[str, int]:
        """Attention of one query head over `nbytes` of FP16 keys and values."""
        self._require_rows(code_bits)
        head_dim = self.design.head_dim
        return self.attention_ps(-(-nbytes // (2 * FP16_BYTES * head_dim)), 1, head_dim)

    def attention_ps(self, tokens: int, heads: int, head_dim: int) -> Mapping[str, int]:
        """Attention of `heads` query heads, each over `tokens` tokens on the device that holds its rows.

        With fewer heads than devices, a head's tokens are spread over several.
        """
        split = max(1, self.count // heads)
        tokens = -(-tokens // split)
        heads = -(-heads * split // self.count)
        design = replace(self.design, head_dim=head_dim)
        cycles = attention_timing(design, tokens, heads, Merge.EXACT).cycles
        published = published_attention(self.device, tokens, heads, head_dim)
        return {
            self.name: rtl_ps(design, cycles),
            f"{self.name}: {published.bound}": published.time_ps,
        }

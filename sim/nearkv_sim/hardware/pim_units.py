"""Time that PIM devices' units need for attention: our RTL's cycle formulas, or a published device's peaks.

The two are never mixed: every result names its origin. Our units: `golden.reduction_timing`, which tests hold
against the RTL, at the design's clock, with no other constant. Published units (PAM, arXiv 2602.11521): a
roofline of lanes, of the compute under the power cap and of what the memory behind them can deliver.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from nearkv_hdl.spec.attention import Merge
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.spec.pim_designs import get_pim_design
from nearkv_sim.golden.reduction_timing import attention_timing
from nearkv_sim.hardware.pcie_config import require_integer
from nearkv_sim.hardware.profile import Profile, named_profile

KIND = "pam"
FP16_BYTES = 2
FLOPS_PER_MAC = 2
MOST = 2**60


@dataclass(frozen=True, kw_only=True)
class PamUnits:
    """One PAM device. ValueError for a number below 1.

    Attributes:
        units: processing units.
        lanes: FP16 multiply-add lanes of each.
        clock_hz: of the units.
        device_flops: published compute of the device under its power cap.
        feed_bytes_per_s: what its memory can deliver to all units.
        design: our RTL design for such a device.

    """

    units: int
    lanes: int
    clock_hz: int
    device_flops: int
    feed_bytes_per_s: int
    design: str

    def __post_init__(self) -> None:
        """Check the numbers and the design's name."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "design":
                get_pim_design(value)
            else:
                require_integer(field.name, value, 1, MOST)

    @property
    def lane_flops(self) -> int:
        """All lanes busy in every cycle."""
        return self.units * self.lanes * FLOPS_PER_MAC * self.clock_hz


@dataclass(frozen=True)
class UnitTime:
    """Time of some heads' attention on one device.

    Attributes:
        time_ps: rounded up.
        origin: whose units: our RTL's formula, or the published figures.
        bound: what the time is limited by.

    """

    time_ps: int
    origin: str
    bound: str


def pam_profile(name: str) -> Profile[PamUnits]:
    """The shipped PAM device `name`: hbm_pim, ddr_pim or ssd_pim; ValueError lists them."""
    return named_profile(KIND, name, PamUnits)


def published_attention(device: PamUnits, tokens: int, heads: int, head_dim: int = 128) -> UnitTime:
    """Scores and weighted values of `heads` heads over `tokens` tokens each, on the published units.

    Reduction is not counted: PAM reports below 2 % of attention for it. ValueError for a number below 1.
    """
    _require(tokens=tokens, heads=heads, head_dim=head_dim)
    macs = 2 * tokens * heads * head_dim
    flops = macs * FLOPS_PER_MAC
    times = {
        "lanes": _ps(flops, device.lane_flops),
        "power cap": _ps(flops, device.device_flops),
        "memory": _ps(macs * FP16_BYTES, device.feed_bytes_per_s),
    }
    bound = max(times, key=lambda name: times[name])
    result = UnitTime(times[bound], "published: PAM, arXiv 2602.11521", bound)
    roof_flops = min(device.lane_flops, device.device_flops)
    assert flops * 10**12 <= result.time_ps * roof_flops, "faster than a roof"
    return result


def rtl_attention(device: PamUnits, tokens: int, heads: int, merge: Merge = Merge.EXACT) -> UnitTime:
    """The same on our units, tokens spread evenly over them, reduction and division included.

    The head dimension is the design's. ValueError for fewer than one token or head.
    """
    design = get_pim_design(device.design)
    cycles = attention_timing(design, tokens, heads, merge).cycles
    nbytes = 2 * tokens * heads * design.head_dim * FP16_BYTES
    units_ps, memory_ps = rtl_ps(design, cycles), _ps(nbytes, device.feed_bytes_per_s)
    origin = f"RTL cycle formula of design {design.name} at {design.clock_hz / 1e6:g} MHz"
    if memory_ps > units_ps:
        return UnitTime(memory_ps, origin, "memory")
    return UnitTime(units_ps, origin, "units")


def rtl_ps(design: PimDesign, cycles: int) -> int:
    """Cycles of a design in ps, rounded up."""
    return _ps(cycles, design.clock_hz)


def _ps(work: int, per_second: int) -> int:
    return -(-work * 10**12 // per_second)


def _require(**counts: int) -> None:
    for name, value in counts.items():
        require_integer(name, value, 1, MOST)

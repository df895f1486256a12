"""The named scorer designs: bus, lanes, query group and clock of every target, fixed here only."""

from __future__ import annotations

from nearkv_hdl.spec.design import DesignConfig, Device, Family
from nearkv_hdl.spec.layout import HEAD_DIMS
from nearkv_hdl.spec.pim_design import PimDesign
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_hdl.spec.topk_config import TOPK_DESIGNS

LFE5U_85F = Device("LFE5U-85F-6BG381C", Family.ECP5, luts=83_640, flip_flops=83_640, dsps=156, brams=208)
LFE5UM5G_85F = Device(
    "LFE5UM5G-85F-8BG381C", Family.ECP5, luts=83_640, flip_flops=83_640, dsps=156, brams=208
)
KU15P = Device(
    "xcku15p-ffva1156-2-e",
    Family.ULTRASCALE_PLUS,
    luts=522_720,
    flip_flops=1_045_440,
    dsps=1_968,
    brams=984,
    urams=128,
)
U50 = Device(
    "xcu50-fsvh2104-2-e",
    Family.ULTRASCALE_PLUS,
    luts=872_000,
    flip_flops=1_743_000,
    dsps=5_952,
    brams=1_344,
    urams=640,
)

DESIGNS: dict[str, DesignConfig] = {
    design.name: design
    for design in (
        # Small enough for Amaranth's Python simulator in block tests.
        DesignConfig(
            name="tiny",
            device=LFE5U_85F,
            bus_bytes=8,
            lanes=8,
            query_group=2,
            head_dims=(64,),
            clock_hz=50_000_000,
        ),
        # ULX3S board: 64 of the part's 156 multipliers; 16-bit SDRAM cannot feed more than one group.
        DesignConfig(
            name="ulx3s_85f",
            device=LFE5U_85F,
            bus_bytes=64,
            lanes=64,
            query_group=1,
            head_dims=(64, 128),
            clock_hz=100_000_000,
        ),
        DesignConfig(
            name="ecp5_5g_85f",
            device=LFE5UM5G_85F,
            bus_bytes=64,
            lanes=64,
            query_group=2,
            head_dims=(64, 128),
            clock_hz=150_000_000,
        ),
        # 64 B × 300 MHz = 19.2 GB/s, the rate of the SmartSSD's own DDR4-2400.
        DesignConfig(
            name="smartssd_ku15p",
            device=KU15P,
            bus_bytes=64,
            lanes=64,
            query_group=8,
            head_dims=HEAD_DIMS,
            clock_hz=300_000_000,
            topk=TOPK_DESIGNS["smartssd_ku15p"],
        ),
        # The same scorer behind the integrated block for PCIe 3.0 x16, whose streams are 64 B at 250 MHz.
        DesignConfig(
            name="native_pcie",
            device=KU15P,
            bus_bytes=64,
            lanes=64,
            query_group=8,
            head_dims=HEAD_DIMS,
            clock_hz=250_000_000,
        ),
        # The scorer takes 64 B × 300 MHz = 19.2 GB/s, an HBM port 32 B × 450 MHz = 14.4 GB/s; it belongs
        # to a pseudo-channel of 256 MiB (AMD PG276; 8 GB in 32, DS965): so keys come through two. A wider
        # query for models that need the half per cent.
        DesignConfig(
            name="alveo_u50",
            device=U50,
            bus_bytes=64,
            lanes=64,
            query_group=8,
            head_dims=HEAD_DIMS,
            clock_hz=300_000_000,
            query_bits=10,
            topk=TOPK_DESIGNS["alveo_u50"],
            key_masters=2,
            key_bank_bytes=256 << 20,
        ),
    )
}


def find_design(name: str) -> DesignConfig | PimDesign:
    """Look a scorer or PIM design up by name; ValueError lists both kinds."""
    design = DESIGNS.get(name) or PIM_DESIGNS.get(name)
    if design is None:
        raise ValueError(f"design is {name!r}; allowed: {', '.join([*DESIGNS, *PIM_DESIGNS])}")
    return design


def get_design(name: str) -> DesignConfig:
    """Look a scorer design up by name; ValueError lists the known ones."""
    try:
        return DESIGNS[name]
    except KeyError:
        raise ValueError(f"design is {name!r}; allowed: {', '.join(DESIGNS)}") from None

"""The named PIM designs: units, lanes, reduction tree and clock of every device, fixed here only."""

from __future__ import annotations

from nearkv_hdl.spec.pim_design import PimDesign, Published, ReductionLevel

# Unit counts, lanes, clocks and everything `published`: PAM (arXiv 2602.11521). The reduction units above a
# bank group share the logic die (HBM: 43 of the paper's 128) or the centre buffer, so their fan-in is ours to
# choose.
PIM_DESIGNS: dict[str, PimDesign] = {
    design.name: design
    for design in (
        # Small enough for Amaranth's Python simulator in block tests.
        PimDesign(
            name="tiny_pim",
            lanes=4,
            head_dim=16,
            block_tokens=8,
            partial_lanes=4,
            dividers=1,
            levels=(ReductionLevel("group", 2), ReductionLevel("device", 2)),
            rtl_levels=2,
            clock_hz=50_000_000,
        ),
        # One stack: 8 dies × 64 banks, one unit per bank. RTL: a bank group and the level above it.
        PimDesign(
            name="hbm_pim",
            lanes=16,
            head_dim=128,
            block_tokens=256,
            partial_lanes=16,
            dividers=4,
            levels=(
                ReductionLevel("bank group", 4),
                ReductionLevel("logic die 1", 4),
                ReductionLevel("logic die 2", 4),
                ReductionLevel("logic die 3", 4),
                ReductionLevel("logic die 4", 2),
            ),
            rtl_levels=1,
            clock_hz=666_000_000,
            published=Published(512, 0.13, 0.18, None, gflops=1_600),
        ),
        # One DIMM: 8 chips × 8 banks. RTL: a whole chip.
        PimDesign(
            name="ddr_pim",
            lanes=4,
            head_dim=128,
            block_tokens=512,
            partial_lanes=16,
            dividers=4,
            levels=(
                ReductionLevel("bank group", 4),
                ReductionLevel("chip", 2),
                ReductionLevel("centre buffer 1", 4),
                ReductionLevel("centre buffer 2", 2),
            ),
            rtl_levels=2,
            clock_hz=500_000_000,
            published=Published(128, 0.46, 0.68, None, gflops=204),
        ),
        # One controller: 8 channels × 8 units. RTL: one channel group.
        PimDesign(
            name="ssd_pim",
            lanes=16,
            head_dim=128,
            block_tokens=512,
            partial_lanes=16,
            dividers=4,
            levels=(
                ReductionLevel("channel 1", 4),
                ReductionLevel("channel 2", 2),
                ReductionLevel("controller 1", 4),
                ReductionLevel("controller 2", 2),
            ),
            rtl_levels=2,
            clock_hz=1_000_000_000,
            published=Published(512, None, None, 8.16, gflops=18),
        ),
    )
}


def get_pim_design(name: str) -> PimDesign:
    """Look a design up by name; ValueError lists the known ones."""
    try:
        return PIM_DESIGNS[name]
    except KeyError:
        raise ValueError(f"PIM design is {name!r}; allowed: {', '.join(PIM_DESIGNS)}") from None

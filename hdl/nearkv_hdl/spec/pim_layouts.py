"""The named PIM layouts: stripe, columns and address map of every device, fixed here only."""

from __future__ import annotations

from nearkv_hdl.spec.migration import Digit, PimLayout
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS

# Units, groups, banks, channels, dies and page: PAM (arXiv 2602.11521). HBM3 row and column: AttAcc
# simulator, organisation HBM3_8Gb_2R (1 KiB of 32 bytes). DDR4 ×8 page: JESD79-4, 1 KiB per chip. Rows fill
# the paper's capacities (16 GB a stack, 32 GB a DIMM, 256 GB a channel). Ours: the order of the digits. Chips
# of a DIMM act in lockstep, so they come first; two units share a die of the SSD, so each has a plane.
PIM_LAYOUTS: dict[str, PimLayout] = {
    layout.name: layout
    for layout in (
        PimLayout(
            PIM_DESIGNS["tiny_pim"],
            stripe=(Digit("group", 2), Digit("bank", 2)),
            columns=16,
            above=(Digit("row", 64),),
            block_tokens=16,
        ),
        PimLayout(
            PIM_DESIGNS["hbm_pim"],
            stripe=(Digit("group", 4), Digit("bank", 4)),
            columns=32,
            above=(Digit("row", 1 << 15), Digit("rank", 32)),
        ),
        PimLayout(
            PIM_DESIGNS["ddr_pim"],
            stripe=(Digit("chip", 8), Digit("group", 2)),
            columns=128,
            above=(Digit("bank", 4), Digit("row", 1 << 19)),
        ),
        PimLayout(
            PIM_DESIGNS["ssd_pim"],
            stripe=(Digit("channel", 8),),
            columns=512,
            above=(Digit("plane", 2), Digit("die", 4), Digit("row", 1 << 21)),
        ),
    )
}


def get_pim_layout(name: str) -> PimLayout:
    """Look a layout up by its design's name; ValueError lists the known ones."""
    try:
        return PIM_LAYOUTS[name]
    except KeyError:
        raise ValueError(f"PIM layout is {name!r}; allowed: {', '.join(PIM_LAYOUTS)}") from None

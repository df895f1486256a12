"""From primitive cells to the resources that a device's data sheet counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from nearkv_hdl.spec.design import DesignConfig, Device, Family


@dataclass(frozen=True)
class Resources:
    """Resources of a netlist, or of a device, in the units of the family's data sheet.

    Attributes:
        luts: LUT sites (6-input on UltraScale+, 4-input on ECP5), carry chains and distributed RAM included
            where they occupy LUT sites.
        flip_flops: registers outside DSP and RAM blocks.
        dsps: DSP48E2, or MULT18X18D.
        brams: RAMB36E2 (an RAMB18E2 is half of one), or 18 Kbit DP16KD.
        urams: URAM288.
        carries: CARRY4 (half of a CARRY8), or CCU2C.

    """

    luts: float = 0
    flip_flops: float = 0
    dsps: float = 0
    brams: float = 0
    urams: float = 0
    carries: float = 0

    def __add__(self, other: Resources) -> Resources:
        """Sum, field by field."""
        return Resources(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, count: int) -> Resources:
        """`count` of these."""
        return Resources(*(getattr(self, f.name) * count for f in fields(self)))


_FLIP_FLOP = Resources(flip_flops=1)
_FREE = Resources()  # multiplexers between neighbouring LUTs have sites of their own
# LUT sites of distributed RAM: UG574 (UltraScale CLB), table "Distributed RAM Configuration".
_ULTRASCALE_PLUS = {
    **{f"LUT{inputs}": Resources(luts=1) for inputs in range(1, 7)},
    "INV": Resources(luts=1),  # Vivado would fold most of them into what follows
    "SRL16E": Resources(luts=1),
    "SRLC32E": Resources(luts=1),
    "RAM32X1D": Resources(luts=2),
    "RAM64X1D": Resources(luts=2),
    "RAM32M": Resources(luts=4),
    "RAM64M": Resources(luts=4),
    "RAM32M16": Resources(luts=8),
    "RAM64M8": Resources(luts=8),
    **dict.fromkeys(("MUXF7", "MUXF8", "MUXF9"), _FREE),
    **dict.fromkeys(("FDRE", "FDSE", "FDCE", "FDPE"), _FLIP_FLOP),
    "CARRY4": Resources(carries=1),
    "DSP48E2": Resources(dsps=1),
    "RAMB18E2": Resources(brams=0.5),
    "RAMB36E2": Resources(brams=1),
    "URAM288": Resources(urams=1),
}
# FPGA-TN-02002 and -02204 (ECP5 slices): a CCU2C takes both LUTs of a slice; a 16×4 distributed RAM stores
# in the four LUTs of two slices and takes a third slice for its write port.
_ECP5 = {
    "LUT4": Resources(luts=1),
    "CCU2C": Resources(luts=2, carries=1),
    "TRELLIS_DPR16X4": Resources(luts=6),
    **dict.fromkeys(("PFUMX", "L6MUX21"), _FREE),
    "TRELLIS_FF": _FLIP_FLOP,
    "MULT18X18D": Resources(dsps=1),
    "DP16KD": Resources(brams=1),
    "PDPW16KD": Resources(brams=1),
}
_CELLS = {Family.ULTRASCALE_PLUS: _ULTRASCALE_PLUS, Family.ECP5: _ECP5}
# Both families build block RAM from 18 Kbit tiles: words by word width, with one write and one read port.
_TILE_SHAPES = ((512, 36), (1024, 18), (2048, 9))
_TILES_PER_BRAM = {Family.ULTRASCALE_PLUS: 2, Family.ECP5: 1}


def count_resources(cells: Mapping[str, int], family: Family) -> Resources:
    """Sum the resources of all cells; ValueError for a cell that the family's table does not know.

    An unknown cell is one that would be missing from the sum, such as a memory or a multiplier that Yosys
    left abstract.
    """
    known = _CELLS[family]
    unknown = sorted(set(cells) - set(known))
    if unknown:
        raise ValueError(
            f"cells of type {', '.join(unknown)} in the netlist; allowed for {family.value}:"
            f" {', '.join(known)}"
        )
    total = Resources()
    for name, count in cells.items():
        total += known[name].times(count)
    return total


def device_resources(device: Device) -> Resources:
    """What a device holds."""
    carries = {Family.ULTRASCALE_PLUS: device.luts / 4, Family.ECP5: device.luts / 2}[device.family]
    return Resources(device.luts, device.flip_flops, device.dsps, device.brams, device.urams, carries)


def _least_tiles(words: int, width: int) -> int:
    return min(-(-words // tile_words) * -(-width // tile_width) for tile_words, tile_width in _TILE_SHAPES)


def least_plane_brams(design: DesignConfig) -> float:
    """Block RAMs without which the key planes (two high planes, and the low queue) cannot be on chip."""
    width = 8 * design.bus_bytes
    tiles = _least_tiles(2 * design.plane_rows, width) + _least_tiles(design.low_queue_rows, width)
    return tiles / _TILES_PER_BRAM[design.device.family]


def mapping_problems(design: DesignConfig, used: Resources, dsps_beside: int | None = 0) -> list[str]:
    """What a netlist of the scorer got wrong, one line each; empty if it is as intended.

    `dsps_beside` counts the DSP blocks of other units in the netlist; None: any number.
    Every product must lie in a DSP block, as many in one as the design's variant packs, and the key planes in
    block RAM: either in LUTs would be an order of magnitude larger and slower.
    """
    problems = []
    expected = design.dsp_blocks + (dsps_beside or 0)
    least_alone = "from " if dsps_beside is None else ""
    if used.dsps < expected or (used.dsps > expected and not least_alone):
        beside = f", {dsps_beside} of them beside the scorer" if dsps_beside else ""
        problems.append(
            f"{used.dsps:g} DSP blocks for {design.macs} products; allowed: {least_alone}{expected} with"
            f" variant {design.mac_variant.value}{beside}"
        )
    least = least_plane_brams(design)
    if used.brams < least:
        problems.append(f"{used.brams:g} block RAMs; allowed: at least {least:g}, which the key planes fill")
    available = device_resources(design.device)
    problems += [
        f"{getattr(used, f.name):g} {f.name}; {design.device.part} has {getattr(available, f.name):g}"
        for f in fields(used)
        if getattr(used, f.name) > getattr(available, f.name)
    ]
    return problems

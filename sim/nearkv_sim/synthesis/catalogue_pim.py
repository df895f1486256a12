"""Components of PIM devices that can be used alone; see `nearkv_sim.synthesis.catalogue`."""

from __future__ import annotations

from nearkv_hdl.arith.fp16_divider import Fp16Divider
from nearkv_hdl.pim.aligned_product import AlignedProduct
from nearkv_hdl.pim.command_sequencer import CommandSequencer
from nearkv_hdl.pim.final_division import FinalDivision
from nearkv_hdl.pim.partial_packer import PartialPacker
from nearkv_hdl.pim.partial_unpacker import PartialUnpacker
from nearkv_hdl.pim.processing_unit import ProcessingUnit
from nearkv_hdl.pim.reduction_network import ReductionNetwork, ReductionTree
from nearkv_hdl.pim.reduction_unit import ReductionUnit
from nearkv_hdl.spec.attention import MAXIMUM, SUM, WEIGHT
from nearkv_hdl.spec.design import Family
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.pim_designs import PIM_DESIGNS
from nearkv_sim.golden.reduction_timing import score_latency
from nearkv_sim.synthesis.catalogue_entry import Entry

TINY, HBM = PIM_DESIGNS["tiny_pim"], PIM_DESIGNS["hbm_pim"]
LINK_BYTES = 16
LINK_INSTANCE = f"`hbm_pim`, {LINK_BYTES} byte, on UltraScale+"
PACKED_GOLDEN = "sim/nearkv_sim/golden/packed_partials.py"
PACKED_TESTS = "tests/rtl/test_packed_partials.py"
PACKED_PROOFS = "tests/formal/test_packed_partials_formal.py"
UNIT_GOLDEN = "sim/nearkv_sim/golden/pim_unit.py"
ATTENTION_GOLDEN = "sim/nearkv_sim/golden/attention.py"
REDUCTION_GOLDEN = "sim/nearkv_sim/golden/reduction.py"
REDUCTION_TESTS = "tests/rtl/test_reduction.py"
PROOFS = "tests/formal/test_pim_formal.py"
PARTIALS = f"{SUM.name} → {SUM.name}"

PIM_COMPONENTS = (
    Entry(
        AlignedProduct,
        "–",
        f"FP16 · FP16 or {WEIGHT.name} → {SUM.name}",
        ATTENTION_GOLDEN,
        "tests/rtl/test_pu_parts.py",
    ),
    Entry(
        lambda: CommandSequencer(TINY, score_latency(TINY)),
        "`tiny_pim`",
        MAXIMUM.name,
        UNIT_GOLDEN,
        "tests/rtl/test_pu.py",
    ),
    Entry(
        lambda: ProcessingUnit(TINY),
        "`tiny_pim`",
        "FP16 rows → sums of 48 bit",
        UNIT_GOLDEN,
        "tests/rtl/test_pu.py",
        PROOFS,
    ),
    Entry(
        lambda: ReductionUnit(TINY.fan_ins[0], TINY.partial_lanes),
        "`tiny_pim`, exact",
        PARTIALS,
        REDUCTION_GOLDEN,
        REDUCTION_TESTS,
        PROOFS,
        partial_beats=TINY.partial_beats,
    ),
    Entry(
        lambda: ReductionTree(TINY.fan_ins, TINY.partial_lanes),
        "`tiny_pim`, exact",
        PARTIALS,
        REDUCTION_GOLDEN,
        REDUCTION_TESTS,
        PROOFS,
        partial_beats=TINY.partial_beats,
    ),
    Entry(Fp16Divider, "–", f"{SUM.name} / {SUM.name} → FP16", REDUCTION_GOLDEN, REDUCTION_TESTS),
    Entry(
        lambda: FinalDivision(TINY.partial_lanes, TINY.dividers),
        "`tiny_pim`",
        f"{SUM.name} → FP16",
        REDUCTION_GOLDEN,
        REDUCTION_TESTS,
        PROOFS,
        partial_beats=TINY.partial_beats,
    ),
    Entry(
        lambda: ReductionNetwork(TINY.fan_ins, TINY.partial_lanes, TINY.dividers),
        "`tiny_pim`, exact",
        f"{SUM.name} → FP16",
        REDUCTION_GOLDEN,
        REDUCTION_TESTS,
        PROOFS,
        partial_beats=TINY.partial_beats,
    ),
    Entry(
        lambda: PartialPacker(HBM.head_dim, HBM.partial_lanes, LINK_BYTES),
        LINK_INSTANCE,
        f"{SUM.name} → {CODE.name} · 2^e",
        PACKED_GOLDEN,
        PACKED_TESTS,
        PACKED_PROOFS,
        family=Family.ULTRASCALE_PLUS,
    ),
    Entry(
        lambda: PartialUnpacker(HBM.head_dim, HBM.partial_lanes, LINK_BYTES),
        LINK_INSTANCE,
        f"{CODE.name} · 2^e → {SUM.name}",
        PACKED_GOLDEN,
        PACKED_TESTS,
        PACKED_PROOFS,
        family=Family.ULTRASCALE_PLUS,
    ),
)

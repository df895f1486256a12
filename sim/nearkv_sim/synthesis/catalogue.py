"""Components that can be used alone: an instance of each, its formats, and what checks it."""

from __future__ import annotations

from dataclasses import replace

from nearkv_hdl.arith.adder_tree import AdderTree
from nearkv_hdl.arith.exp_fp16 import ExpToFp16
from nearkv_hdl.arith.exp_unit import ExpUnit
from nearkv_hdl.arith.mult18x18d import Mult18x18d
from nearkv_hdl.attention.dot_product import DotProduct
from nearkv_hdl.attention.fold_codes import FoldCodes
from nearkv_hdl.attention.fold_config import TERM, half_units
from nearkv_hdl.attention.fold_first_pass import FoldFirstPass
from nearkv_hdl.attention.fold_product import FoldProduct
from nearkv_hdl.attention.fold_unit import FoldUnit
from nearkv_hdl.attention.key_pairs import KeyPairs
from nearkv_hdl.attention.key_planes import KeyPlanes
from nearkv_hdl.attention.key_scorer import KeyScorer
from nearkv_hdl.attention.lane_issue import LaneIssue
from nearkv_hdl.attention.mac_array import MacArray
from nearkv_hdl.attention.packed_dot_product import PackedDotProduct
from nearkv_hdl.attention.paired_mac_array import PairedMacArray
from nearkv_hdl.attention.query_buffer import QueryBuffer
from nearkv_hdl.attention.row_scorer import RowScorer
from nearkv_hdl.attention.score_output import ScoreOutput
from nearkv_hdl.attention.score_statistics import ScoreStatistics
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.attention.topk import TopK
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.pdpw16kd import Pdpw16kd
from nearkv_hdl.spec.attention import LOGIT
from nearkv_hdl.spec.design import Family
from nearkv_hdl.spec.designs import DESIGNS, KU15P
from nearkv_hdl.spec.exp_table import EXP_ARGUMENT, EXP_EXPONENT, EXP_MANTISSA
from nearkv_hdl.spec.formats import BIAS, CODE, CODE_HIGH_NIBBLE, CODE_LOW_NIBBLE, QUERY_MANTISSA, SCORE
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_hdl.spec.score_statistics import GROUP_SUM
from nearkv_hdl.spec.topk_config import TOPK_DESIGNS
from nearkv_hdl.stream.credit import CreditBuffer
from nearkv_hdl.stream.pipeline import PipelineControl
from nearkv_hdl.stream.skid import SkidBuffer
from nearkv_sim.synthesis.catalogue_bus import BUS_COMPONENTS
from nearkv_sim.synthesis.catalogue_entry import Entry
from nearkv_sim.synthesis.catalogue_links import LINK_COMPONENTS
from nearkv_sim.synthesis.catalogue_migrate import MIGRATION_COMPONENTS
from nearkv_sim.synthesis.catalogue_pim import PIM_COMPONENTS

TINY = DESIGNS["tiny"]
TINY_HEADS = replace(TINY, device=KU15P, variant=MacVariant.PACKED_HEADS)
TINY_KEYS = replace(TINY, device=KU15P, variant=MacVariant.PACKED_KEYS)
QUEUE_PLACES = 32


STREAM_TESTS = "tests/rtl/test_stream_pieces.py"
STREAM_PROOFS = "tests/formal/test_stream_contract.py"
ARITHMETIC_PROOFS = "tests/formal/test_arithmetic.py"
SCORER_PROOFS = "tests/formal/test_scorer_formal.py"
UNIT_PROOFS = "tests/formal/test_score_units.py"
SCORER_GOLDEN = "sim/nearkv_sim/golden/scorer.py"
FOLD_GOLDEN = "sim/nearkv_sim/golden/fold.py"
COMPONENTS = (
    Entry(lambda: SkidBuffer(32), "32 bit", "any", None, STREAM_TESTS, STREAM_PROOFS),
    Entry(lambda: PipelineControl(4), "4 ranks", "–", None, STREAM_TESTS, STREAM_PROOFS),
    Entry(lambda: CreditBuffer(32, 4), "32 bit, 4 ranks", "any", None, STREAM_TESTS, STREAM_PROOFS),
    Entry(lambda: SyncMemory(64, 512), "512 × 64 bit", "any", None, "tests/rtl/test_topk/test_parts.py"),
    Entry(
        lambda: Pdpw16kd(36, 512, primitive=True), "512 × 36 bit", "any", None, "tests/rtl/test_pdpw16kd.py"
    ),
    Entry(
        lambda: AdderTree(TINY.product, TINY.lanes),
        f"{TINY.lanes} terms",
        f"{TINY.product.name} → {TINY.lane_sum.name}",
        SCORER_GOLDEN,
        "tests/rtl/test_adder_tree.py",
        ARITHMETIC_PROOFS,
    ),
    Entry(
        lambda: Mult18x18d(CODE.width, TINY.query_code.width, primitive=True),
        f"{CODE.width} × {TINY.query_code.width} bit",
        f"{CODE.name} · {TINY.query_code.name} → {TINY.product.name}",
        None,
        "tests/rtl/test_mult18x18d.py",
        ARITHMETIC_PROOFS,
    ),
    Entry(
        lambda: DotProduct(TINY, primitives=True),
        "`tiny`",
        f"{CODE.name} · {TINY.query_code.name} → {TINY.dot.name}",
        SCORER_GOLDEN,
        "tests/rtl/test_dot_product.py",
        ARITHMETIC_PROOFS,
    ),
    Entry(
        lambda: PackedDotProduct(TINY_HEADS),
        "`tiny`, packed heads, on UltraScale+",
        f"2 × {TINY.query_code.name} · {CODE.name} → 2 × {TINY.dot.name}",
        SCORER_GOLDEN,
        "tests/rtl/test_dot_product.py",
        ARITHMETIC_PROOFS,
        family=Family.ULTRASCALE_PLUS,
    ),
    Entry(
        lambda: MacArray(TINY, primitives=True),
        "`tiny`",
        f"{CODE.name} · {TINY.query_code.name} → {TINY.dot.name}",
        SCORER_GOLDEN,
        "tests/rtl/test_scorer.py",
    ),
    Entry(
        lambda: KeyPairs(TINY_KEYS),
        "`tiny`, packed keys, on UltraScale+",
        CODE.name,
        None,
        "tests/rtl/test_key_pairs.py",
        family=Family.ULTRASCALE_PLUS,
    ),
    Entry(
        lambda: PairedMacArray(TINY_KEYS),
        "`tiny`, packed keys, on UltraScale+",
        f"2 × {CODE.name} · {TINY.query_code.name} → {TINY.dot.name}",
        SCORER_GOLDEN,
        "tests/rtl/test_scorer.py",
        family=Family.ULTRASCALE_PLUS,
    ),
    Entry(
        lambda: LaneIssue(TINY, QUEUE_PLACES), "`tiny`", "–", None, "tests/rtl/test_scorer.py", SCORER_PROOFS
    ),
    Entry(
        lambda: ScoreOutput(TINY, QUEUE_PLACES),
        "`tiny`",
        f"{TINY.dot.name} → {SCORE.name}",
        SCORER_GOLDEN,
        "tests/rtl/test_scorer.py",
        SCORER_PROOFS,
    ),
    Entry(
        lambda: KeyPlanes(TINY),
        "`tiny`",
        f"{CODE_HIGH_NIBBLE.name}, {CODE_LOW_NIBBLE.name} → {CODE.name}",
        SCORER_GOLDEN,
        "tests/rtl/test_key_planes.py",
        SCORER_PROOFS,
    ),
    Entry(
        lambda: QueryBuffer(TINY),
        "`tiny`",
        TINY.query_code.name,
        SCORER_GOLDEN,
        "tests/rtl/test_query_buffer.py",
        SCORER_PROOFS,
    ),
    Entry(
        lambda: Scorer(TINY, primitives=True),
        "`tiny`",
        f"{CODE.name} · {TINY.query_code.name} → {SCORE.name}",
        SCORER_GOLDEN,
        "tests/rtl/test_scorer.py",
        SCORER_PROOFS,
    ),
    Entry(
        lambda: FoldProduct(TINY),
        "`tiny`",
        f"{QUERY_MANTISSA.name}, FP16 → {half_units(TINY).name}, {TERM.name}",
        FOLD_GOLDEN,
        "tests/rtl/test_fold_parts.py",
    ),
    Entry(
        lambda: FoldFirstPass(TINY),
        "`tiny`",
        f"{QUERY_MANTISSA.name}, FP16 → {half_units(TINY).name}, e, anchor",
        FOLD_GOLDEN,
        "tests/rtl/test_fold.py",
    ),
    Entry(
        lambda: FoldCodes(TINY),
        "`tiny`",
        f"{half_units(TINY).name} → {TINY.query_code.name}, {BIAS.name}",
        FOLD_GOLDEN,
        "tests/rtl/test_fold.py",
    ),
    Entry(
        lambda: FoldUnit(TINY),
        "`tiny`",
        f"{QUERY_MANTISSA.name}, FP16 → {TINY.query_code.name}, {BIAS.name}",
        FOLD_GOLDEN,
        "tests/rtl/test_fold.py",
    ),
    Entry(
        lambda: KeyScorer(TINY, primitives=True),
        "`tiny`",
        f"{CODE.name}, FP16, {QUERY_MANTISSA.name} → {SCORE.name}",
        FOLD_GOLDEN,
        "tests/rtl/test_key_scorer.py",
    ),
    Entry(
        lambda: ScoreStatistics(TINY),
        "`tiny`, polynomial of degree 2",
        f"{SCORE.name} → {SCORE.name}, 2 × {GROUP_SUM.name}",
        "sim/nearkv_sim/golden/score_statistics.py",
        "tests/rtl/test_score_statistics.py",
        UNIT_PROOFS,
    ),
    Entry(
        lambda: RowScorer(TINY),
        "`tiny`",
        f"FP16 rows → {LOGIT.name}",
        "sim/nearkv_sim/golden/row_scorer.py",
        "tests/rtl/test_row_scorer.py",
        UNIT_PROOFS,
    ),
    Entry(
        lambda: TopK(TOPK_DESIGNS["tiny"]),
        "`tiny`",
        f"{SCORE.name} → token indices",
        "sim/nearkv_sim/golden/topk.py",
        "tests/rtl/test_topk",
    ),
    Entry(
        ExpUnit,
        "polynomial of degree 3",
        f"{EXP_ARGUMENT.name} → {EXP_MANTISSA.name} · 2^{EXP_EXPONENT.name}",
        "sim/nearkv_sim/golden/exp.py",
        "tests/rtl/test_exp_unit.py",
        "tests/formal/test_exp_formal.py",
    ),
    Entry(
        ExpToFp16,
        "–",
        f"{EXP_MANTISSA.name} · 2^{EXP_EXPONENT.name} → FP16",
        "sim/nearkv_sim/golden/exp.py",
        "tests/rtl/test_exp_unit.py",
        "tests/formal/test_exp_formal.py",
    ),
    *PIM_COMPONENTS,
    *BUS_COMPONENTS,
    *MIGRATION_COMPONENTS,
    *LINK_COMPONENTS,
)

"""Components of the migration interface that can be used alone; see `nearkv_sim.synthesis.catalogue`."""

from __future__ import annotations

from nearkv_hdl.migrate.block_translator import BlockTranslator
from nearkv_hdl.migrate.idle_gate import IdleGate
from nearkv_hdl.migrate.moves import MoveShapes
from nearkv_hdl.migrate.relayout import Relayout
from nearkv_hdl.migrate.row_expander import RowExpander
from nearkv_hdl.migrate.row_quantiser import RowQuantiser
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.pim_layouts import PIM_LAYOUTS
from nearkv_sim.synthesis.catalogue_entry import Entry

TINY = PIM_LAYOUTS["tiny_pim"]
SHAPES = MoveShapes(TINY, slot_bits=1, block_bits=7, address_bits=32)
BUS_BYTES = 8
INSTANCE = f"`tiny_pim`, {BUS_BYTES} byte"
PROOFS = "tests/migrate/test_proofs.py"
ROW_TESTS = "tests/migrate/test_rows.py"
ROW_GOLDEN = "sim/nearkv_sim/golden/migrate_rows.py"
RELAYOUT_TESTS = "tests/migrate/test_relayout.py"
ENGINE_GOLDEN = "sim/nearkv_sim/golden/migrate_engine.py"

MIGRATION_COMPONENTS = (
    Entry(
        lambda: Relayout(TINY, BUS_BYTES, BUS_BYTES),
        INSTANCE,
        "any",
        "sim/nearkv_sim/golden/migrate_layout.py",
        RELAYOUT_TESTS,
        RELAYOUT_TESTS,
    ),
    Entry(
        lambda: RowQuantiser(TINY, BUS_BYTES),
        INSTANCE,
        f"FP16 → {CODE.name}, FP16 scale",
        ROW_GOLDEN,
        ROW_TESTS,
        ROW_TESTS,
    ),
    Entry(
        lambda: RowExpander(TINY, BUS_BYTES),
        INSTANCE,
        f"{CODE.name}, FP16 scale → FP16",
        ROW_GOLDEN,
        ROW_TESTS,
        ROW_TESTS,
    ),
    Entry(
        lambda: BlockTranslator(SHAPES),
        "256 entries, 4 remembered",
        "block → address",
        ENGINE_GOLDEN,
        "tests/migrate/test_translator.py",
        PROOFS,
    ),
    Entry(lambda: IdleGate(8 * BUS_BYTES, 64), f"{BUS_BYTES} byte", "any", None, PROOFS, PROOFS),
)

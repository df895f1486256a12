"""Components that the table of components leaves out; see `nearkv_sim.synthesis.catalogue`."""

from __future__ import annotations

# Why the other components are not in the table, and which they are.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "Cores of ExpUnit, compared in [exp-unit.md](exp-unit.md)": (
        "Exp2Lookup",
        "Exp2Polynomial",
        "Exp2Segments",
        "Exp2ShiftAdd",
    ),
    "Parts of FoldUnit": ("FoldHeaders", "FoldOutput", "FoldQueries", "FoldShift"),
    "Parts of RowScorer and ScoreStatistics": ("HeadAccumulator", "RowProducts", "StatisticsReport"),
    "Parts of TopK": (
        "HistogramBank",
        "HistogramScan",
        "TopKControl",
        "TopKEmitter",
        "TopKLane",
        "TopKLoader",
        "TopKRows",
    ),
    "Parts of ProcessingUnit and ReductionUnit": (
        "Accumulators",
        "ProductPath",
        "ResultReader",
        "ScaledSum",
        "ScoreMemory",
        "ScorePath",
        "TotalSum",
        "WeightPath",
    ),
    "Parts of AxiReader, AxiWriter and ControlPort": (
        "BurstSplitter",
        "JobControl",
        "StatusQueue",
        "WindowCheck",
    ),
    "The migration engine and its parts, in [migration.md](migration.md)": (
        "ExpandLane",
        "MigrationEngine",
        "MigrationPath",
        "MoveBatcher",
        "MovePlanner",
        "Narrow",
        "QuantiseLane",
        "RowScale",
        "TileAddress",
        "TileCommands",
        "Widen",
    ),
    "Whole devices, in [designs.md](designs.md)": ("PimDevice",),
    "Harnesses of tests, of place and route, and of proofs ([formal.md](formal.md))": (
        "ArrayWithQueries",
        "FewPins",
        "OrderWatch",
        "ProgressWatch",
        "StreamContract",
        "TokenCount",
        "WithReset",
    ),
}

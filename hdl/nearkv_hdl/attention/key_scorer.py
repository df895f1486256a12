"""The scorer with folding and score statistics in hardware."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.fold_headers import descriptor_layout, header_layout
from nearkv_hdl.attention.fold_queries import mantissa_layout, query_set_layout
from nearkv_hdl.attention.fold_unit import FoldUnit
from nearkv_hdl.attention.key_planes import key_layout
from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.attention.score_statistics import ScoreStatistics, statistics_job_layout
from nearkv_hdl.attention.score_statistics_report import statistics_layout
from nearkv_hdl.attention.scorer import Scorer
from nearkv_hdl.spec.design import DesignConfig


class KeyScorer(wiring.Component):
    """Scores key blocks from prepared queries, headers and planes, and sums up each job's scores.

    Formula: that of Scorer with the codes, shifts and biases of FoldUnit, so that scores equal those of
    queries folded by the host; beside them the statistics of ScoreStatistics.

    Timing: a lane beat per cycle; with blocks of 128 tokens folding keeps up, since a block's passes take no
    longer than its lane beats and run one to two blocks ahead. `latency` as of Scorer. Header and key beats
    come on ports of their own and do not wait for each other; where one bus carries both, headers are wanted
    two blocks ahead.
    Stalls: as FoldUnit, Scorer and ScoreStatistics; any port may pause at any time. After a job's last token
    scores wait for the statistics (`ScoreStatistics.job_gap`), which the output queue absorbs where a token
    takes several lane beats.
    Numerics: exact integers; statistics as ScoreStatistics says.

    Args:
        design: what to build.
        primitives: instantiate vendor blocks instead of their behavioural twins: for synthesis.

    Members:
        i_job: L and active heads of a job, as ScoreStatistics.
        i_set, i_mantissas: its prepared queries, as FoldUnit.
        i_block, i_headers: its blocks, as FoldUnit.
        i_keys, o_scores, o_lanes_active: as Scorer.
        o_statistics: a beat per query head and job.
        o_overflow: a code, bias or score did not fit, or an L was not allowed, since reset.
        o_framing_error: a `last` stood in the wrong place since reset; counted lengths win.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        self.design = design
        self._fold = FoldUnit(design)
        self._scorer = Scorer(design, primitives=primitives)
        self._statistics = ScoreStatistics(design)
        super().__init__(
            {
                "i_job": In(stream.Signature(statistics_job_layout(design))),
                "i_set": In(stream.Signature(query_set_layout(design))),
                "i_mantissas": In(stream.Signature(mantissa_layout(design))),
                "i_block": In(stream.Signature(descriptor_layout())),
                "i_headers": In(stream.Signature(header_layout(design))),
                "i_keys": In(stream.Signature(key_layout(design))),
                "o_scores": Out(stream.Signature(score_layout(design))),
                "o_statistics": Out(stream.Signature(statistics_layout(design))),
                "o_lanes_active": Out(1),
                "o_overflow": Out(1),
                "o_framing_error": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a token's last lane beat to its score on an empty output."""
        return self._scorer.latency

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return self._scorer.interval

    def elaborate(self, platform):
        m = Module()
        m.submodules.fold = fold = self._fold
        m.submodules.scorer = scorer = self._scorer
        m.submodules.statistics = statistics = self._statistics
        for name in ("i_set", "i_mantissas", "i_block", "i_headers"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(fold, name))
        wiring.connect(m, fold.o_block, scorer.i_block)
        wiring.connect(m, fold.o_query, scorer.i_query)
        wiring.connect(m, wiring.flipped(self.i_keys), scorer.i_keys)
        wiring.connect(m, wiring.flipped(self.i_job), statistics.i_job)
        wiring.connect(m, scorer.o_scores, statistics.i)
        wiring.connect(m, statistics.o, wiring.flipped(self.o_scores))
        wiring.connect(m, statistics.o_statistics, wiring.flipped(self.o_statistics))
        m.d.comb += [
            self.o_lanes_active.eq(scorer.o_lanes_active),
            self.o_overflow.eq(scorer.o_overflow | fold.o_overflow | statistics.o_invalid),
            self.o_framing_error.eq(scorer.o_framing_error | fold.o_framing_error),
        ]
        return m

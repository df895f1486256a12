"""From scores to bus beats, without a gap between tokens."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.attention.score_output import score_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import SCORE, TOKEN_INDEX
from nearkv_hdl.spec.layout import SCORE_BYTES
from nearkv_hdl.top.job_check import HEADS_BITS


def packed_layout(bus_bytes: int) -> data.StructLayout:
    """A beat of results, the first token of the block it belongs to, whether it is the job's last."""
    return data.StructLayout({"data": 8 * bus_bytes, "first_token": TOKEN_INDEX.width, "last": 1})


class ScorePacker(wiring.Component):
    """Packs the scores of a job's heads, token by token, into whole beats; drops those of other heads.

    Formula: score h of the job's token t is word t·heads + h of the stream, first word lowest.
    Timing: a beat leaves the cycle after its last score came; interval 1 between tokens as long as
    heads·SCORE_BYTES <= bus_bytes, else the beats' own. `i.ready` follows `o.ready`.
    Numerics: none.
    Reset: fill level, flags; a reset job begins with an empty beat.

    Args:
        design: bus, query group, tokens of a block, whose scores of one head are whole beats.

    Members:
        heads: of the job, 1 to the query group, stable.
        i: scores.
        o: beats.

    Raises ValueError for blocks whose scores are not whole beats.

    """

    def __init__(self, design: DesignConfig) -> None:
        if design.block_tokens * SCORE_BYTES % design.bus_bytes:
            raise ValueError(
                f"block_tokens is {design.block_tokens} with bus_bytes {design.bus_bytes}; allowed: a"
                f" multiple of {design.bus_bytes // SCORE_BYTES}, so that a block's scores are whole beats"
            )
        self.design = design
        super().__init__(
            {
                "heads": In(HEADS_BITS),
                "i": In(stream.Signature(score_layout(design))),
                "o": Out(stream.Signature(packed_layout(design.bus_bytes))),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a beat's last score to the beat."""
        return 1

    @property
    def interval(self) -> int:
        """Cycles between two tokens whose scores fit a beat."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design = self.design
        beat_words, group = design.bus_bytes // SCORE_BYTES, design.query_group
        places = beat_words + group - 1
        words = Signal(SCORE.width * places, reset_less=True)
        level = Signal(range(places + 1))
        is_final = Signal()
        position = Signal(range(design.block_tokens))
        first_token = Signal(TOKEN_INDEX.width, reset_less=True)

        leaves, enters = Signal(), Signal()
        remaining = Signal.like(words)
        after = Signal.like(level)
        m.d.comb += [
            self.o.valid.eq(level >= beat_words),
            self.o.payload.data.eq(words),
            self.o.payload.first_token.eq(first_token),
            self.o.payload.last.eq(is_final & (level == beat_words)),
            leaves.eq(self.o.valid & self.o.ready),
            remaining.eq(Mux(leaves, words >> 8 * design.bus_bytes, words)),
            after.eq(level - Mux(leaves, beat_words, 0)),
            self.i.ready.eq(after < beat_words),
            enters.eq(self.i.valid & self.i.ready),
        ]
        # Shifted to its place bit by bit of the level; words from `after` on are 0.
        scores = Cat(
            Mux(self.heads > h, Value.cast(self.i.payload.scores[h]), 0)[: SCORE.width] for h in range(group)
        )
        placed = scores
        for bit in range((beat_words - 1).bit_length()):
            placed = Mux(after[bit], placed << (SCORE.width << bit), placed)
        with m.If(enters):
            m.d.sync += [words.eq(remaining | placed), level.eq(after + self.heads)]
            m.d.sync += [is_final.eq(self.i.payload.last), position.eq(position + 1)]
            with m.If(position == 0):
                m.d.sync += first_token.eq(self.i.payload.token)
        with m.Elif(leaves):
            m.d.sync += [words.eq(remaining), level.eq(after)]
        # Whatever `words` held before a reset is not of this job.
        with m.If(enters & (after == 0)):
            m.d.sync += words.eq(scores)
        return m

"""From dot products to the stream of scores."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.attention.query_buffer import BANKS, command_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import SCORE, TOKEN_INDEX
from nearkv_hdl.spec.scorer_pipeline import OUTPUT_QUEUE_RANKS, SCALE_RANKS

# A queue of two places has one behind its output register, and refuses a score right after the first.
_SHALLOWEST_QUEUE = 3


def score_layout(design: DesignConfig) -> data.StructLayout:
    """Payload of the score stream: one beat per token, one score per query head."""
    return data.StructLayout(
        {
            "token": TOKEN_INDEX.width,
            "scores": data.ArrayLayout(shape_of(SCORE), design.query_group),
            "last": 1,
        }
    )


class ScoreOutput(wiring.Component):
    """Shifts dot products, adds the bias, counts tokens, and queues the scores.

    Formula: scores[h] = bias[h] + (dot[h] << shift[h]); token = first_token + position in the block.
    Timing: latency 4 (shift, bias, queue of two ranks) on an empty output, interval 1. It cannot stall: who
    feeds it holds a place of the queue for every token. A block's constants are selected a cycle before they
    are used.
    Numerics: exact; a score that does not fit 32 bits wraps and raises `o_overflow`.

    Args:
        design: formats and query group.
        depth: places in the queue, from 3.

    Members:
        command: the block command of each bank.
        valid, dot: dot products of a token.
        bank, block_end: its bank, and whether it is the last of its block.
        next_bank: `bank` of the token that may come in the next cycle.
        release: per bank, a pulse with the write of its block's last score: its constants are done with.
        score_taken: a score has left, one cycle ago.
        o: scores.
        o_overflow: a score did not fit 32 bits since reset.

    Raises ValueError if `depth` is below 3.

    """

    def __init__(self, design: DesignConfig, depth: int) -> None:
        if depth < _SHALLOWEST_QUEUE:
            raise ValueError(f"depth is {depth}; allowed: from {_SHALLOWEST_QUEUE}")
        self.design = design
        self.depth = depth
        super().__init__(
            {
                "command": In(command_layout(design)).array(BANKS),
                "valid": In(1),
                "dot": In(shape_of(design.dot)).array(design.query_group),
                "bank": In(1),
                "block_end": In(1),
                "next_bank": In(1),
                "release": Out(BANKS),
                "score_taken": Out(1),
                "o": Out(stream.Signature(score_layout(design))),
                "o_overflow": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a token's dot products to its scores on an empty output."""
        return SCALE_RANKS + OUTPUT_QUEUE_RANKS

    @property
    def interval(self) -> int:
        """Cycles between two tokens."""
        return 1

    def elaborate(self, platform):
        m = Module()
        bank0, bank1 = self.command

        # Beside the data path: rank 1 with the shifted dot product, rank 2 with the score.
        valid1, valid2 = Signal(), Signal()
        m.d.sync += [valid1.eq(self.valid), valid2.eq(valid1)]
        bank1st = delayed(m, self.bank, "bank1")
        bank2nd = delayed(m, bank1st, "bank2")
        block_end = delayed(m, delayed(m, self.block_end, "block_end1"), "block_end2")
        first_token = delayed(m, Mux(self.bank, bank1.first_token, bank0.first_token), "first_token")
        last_block = delayed(m, Mux(bank1st, bank1.last, bank0.last), "last_block")
        position = Signal(range(self.design.block_tokens))
        with m.If(valid1):
            m.d.sync += position.eq(position + 1)
        token = delayed(m, (first_token + position)[: TOKEN_INDEX.width], "token")

        result = Signal(score_layout(self.design))
        m.d.comb += [result.token.eq(token), result.last.eq(last_block & block_end)]
        for h, dot in enumerate(self.dot):
            shift = delayed(m, Mux(self.next_bank, bank1.shift[h], bank0.shift[h]), f"shift{h}")
            bias = delayed(m, Mux(self.bank, bank1.bias[h], bank0.bias[h]), f"bias{h}")
            shifted = delayed(m, dot << shift, f"shifted{h}")
            score = delayed(m, shifted + bias, f"score{h}")
            m.d.comb += result.scores[h].eq(score)
            with m.If(valid2 & (score != result.scores[h])):
                m.d.sync += self.o_overflow.eq(1)

        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=result.shape().size, depth=self.depth)
        m.d.comb += [
            queue.w_data.eq(result),
            queue.w_en.eq(valid2),
            self.o.payload.eq(queue.r_data),
            self.o.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.o.ready),
        ]
        m.d.comb += [self.release[b].eq(valid2 & block_end & (bank2nd == b)) for b in range(BANKS)]
        m.d.sync += self.score_taken.eq(self.o.valid & self.o.ready)
        return m

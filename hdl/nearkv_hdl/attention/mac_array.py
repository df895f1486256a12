"""The scorer's multipliers, trees and accumulators for all query heads, in the design's variant."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import delayed, shape_of
from nearkv_hdl.attention.dot_product import DotProduct
from nearkv_hdl.attention.packed_dot_product import PackedDotProduct
from nearkv_hdl.attention.query_buffer import query_row_layout
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.multiplier import MacVariant
from nearkv_hdl.spec.scorer_pipeline import PLANE_RANKS, QUERY_READ_RANKS, mac_ranks


def beat_layout(design: DesignConfig) -> data.StructLayout:
    """What is known of a lane beat when it is issued."""
    return data.StructLayout(
        {
            "first": 1,  # of its token
            "last": 1,  # of its token
            "block_end": 1,  # the last of its block
            "bank": 1,  # where its block's queries and constants lie
            "chunk": range(design.lane_beats_per_token(design.head_dims[-1])),
            "head_dim_index": 2,
        }
    )


def array_members(design: DesignConfig) -> dict[str, wiring.Member]:
    """Members that every variant of the array has; MacArray explains them."""
    return {
        "i_valid": In(1),
        "i_beat": In(beat_layout(design)),
        "codes": In(shape_of(CODE)).array(design.lanes),
        "read_bank": Out(1),
        "read_chunk": Out(range(design.lane_beats_per_token(design.head_dims[-1]))),
        "query": In(query_row_layout(design)).array(design.query_group),
        "o_valid": Out(1),
        "o": Out(shape_of(design.dot)).array(design.query_group),
        "o_bank": Out(1),
        "o_block_end": Out(1),
        "o_next_bank": Out(1),
    }


class MacArray(wiring.Component):
    """Dot products of every token with every query head.

    Formula: o[h] = Σ_i q'[h, i]·code[t, i] over the lane beats of token t, tokens in order.
    Timing: `o_valid` comes `latency` cycles after the codes of the token's last lane beat, which come
    PLANE_RANKS cycles after the beat was issued; interval 1, free-running. Queries are addressed so that they
    meet the codes.
    Numerics: exact, the same in every variant; o has format `design.dot`.

    Variants: `plain` and `mult18x18d` have a DotProduct per head; `packed_heads` a PackedDotProduct per two
    heads, and a plain one, delayed to the same latency, for an odd last head. For `packed_keys` see
    PairedMacArray.

    Args:
        design: lanes, query group, formats and variant.
        primitives: instantiate vendor blocks instead of their behavioural twins.

    Members:
        i_valid, i_beat: a lane beat is issued.
        codes: its codes, PLANE_RANKS cycles later.
        read_bank, read_chunk: query row to read.
        query: that row of every head, QUERY_READ_RANKS cycles later.
        o_valid, o: a token's dot products.
        o_bank, o_block_end: the token's bank, and whether it is the block's last.
        o_next_bank: the bank of the token whose dot products come in the next cycle, if they do.

    """

    def __init__(self, design: DesignConfig, *, primitives: bool = False) -> None:
        self.design = design
        group = design.query_group
        packed = group // 2 if design.mac_variant is MacVariant.PACKED_HEADS else 0
        self._pairs = [PackedDotProduct(design) for _ in range(packed)]
        self._singles = [DotProduct(design, primitives=primitives) for _ in range(group - 2 * packed)]
        self._lead = self._pairs[0].lead if packed else 0
        super().__init__(array_members(design))

    @property
    def latency(self) -> int:
        """Cycles from the codes of a token's last lane beat to its dot products."""
        return (self._pairs or self._singles)[0].latency

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return 1

    def elaborate(self, platform):
        assert self.latency == mac_ranks(self.design)
        m = Module()

        # Validity and the bank travel beside the free-running data path.
        valid, beat = self.i_valid, self.i_beat
        first, done = beat.first, valid & beat.last
        bank, chunk, block_end = beat.bank, beat.chunk, beat.block_end
        address_ranks = PLANE_RANKS - QUERY_READ_RANKS - self._lead
        for rank in range(PLANE_RANKS + self.latency):
            if rank == address_ranks:
                m.d.comb += [self.read_bank.eq(bank), self.read_chunk.eq(chunk)]
            if rank < PLANE_RANKS:
                valid, first = delayed(m, valid, f"valid{rank}"), delayed(m, first, f"first{rank}")
                chunk = delayed(m, chunk, f"chunk{rank}")
            token_done = Signal(name=f"done{rank}")
            m.d.sync += token_done.eq(done)
            done = token_done
            next_bank, bank = bank, delayed(m, bank, f"bank{rank}")
            block_end = delayed(m, block_end, f"block_end{rank}")
        m.d.comb += [
            self.o_valid.eq(done),
            self.o_bank.eq(bank),
            self.o_block_end.eq(block_end),
            self.o_next_bank.eq(next_bank),
        ]

        heads = iter(range(self.design.query_group))
        for index, unit in enumerate(self._pairs):
            m.submodules[f"pair{index}"] = unit
            m.d.comb += [unit.valid.eq(valid), unit.first.eq(first)]
            m.d.comb += [n.eq(code) for n, code in zip(unit.narrow, self.codes, strict=True)]
            for row, result in zip(unit.wide, unit.o, strict=True):
                head = next(heads)
                m.d.comb += [w.eq(self.query[head][lane]) for lane, w in enumerate(row)]
                m.d.comb += self.o[head].eq(result)
        for index, unit in enumerate(self._singles):
            m.submodules[f"single{index}"] = unit
            head = next(heads)
            m.d.comb += [unit.valid.eq(valid), unit.first.eq(first)]
            for lane, query_code in enumerate(self.query[head]):
                for rank in range(self._lead):
                    query_code = delayed(m, query_code, f"query{index}_{lane}_{rank}")
                m.d.comb += [unit.codes[lane].eq(self.codes[lane]), unit.query[lane].eq(query_code)]
            result = unit.o
            for rank in range(self.latency - unit.latency):
                result = delayed(m, result, f"result{index}_{rank}")
            m.d.comb += self.o[head].eq(result)
        return m

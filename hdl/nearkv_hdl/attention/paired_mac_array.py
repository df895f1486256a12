"""The scorer's multipliers where two keys share a query code."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring

from nearkv_hdl.arith.adder_tree import delayed
from nearkv_hdl.attention.key_pairs import KeyPairs
from nearkv_hdl.attention.mac_array import array_members
from nearkv_hdl.attention.packed_dot_product import PackedDotProduct
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.scorer_pipeline import PLANE_RANKS, QUERY_READ_RANKS, mac_ranks, serial_ranks


class PairedMacArray(wiring.Component):
    """Dot products of every token with every query head, on lanes/2 multipliers a head.

    Formula: as MacArray.
    Timing: KeyPairs makes half beats of two keys; queries are read with them; both keys' dot products are
    ready together and leave one after the other. `o_valid` comes `latency` cycles after the codes of a pair's
    last lane beat for its second token, one less for its first; interval 1, free-running.
    Numerics: exact, the same as MacArray.

    Args:
        design: lanes, query group, formats; variant `packed_keys`.

    Members: as MacArray.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._pairs = KeyPairs(design)
        self._units = [PackedDotProduct(design) for _ in range(design.query_group)]
        super().__init__(array_members(design))

    @property
    def latency(self) -> int:
        """Cycles from the codes of a pair's last lane beat to the second token's dot products."""
        unit = self._units[0]
        return self._pairs.latency + unit.lead + unit.latency + serial_ranks(self.design)

    @property
    def interval(self) -> int:
        """Cycles between two lane beats."""
        return 1

    def elaborate(self, platform):
        assert self.latency == mac_ranks(self.design)
        m = Module()
        m.submodules.pairs = pairs = self._pairs
        valid, beat = self.i_valid, self.i_beat
        for rank in range(PLANE_RANKS):
            rank_valid, before = Signal(name=f"beat_valid{rank}"), beat
            beat = Signal(before.shape(), name=f"beat{rank}", reset_less=True)
            m.d.sync += [rank_valid.eq(valid), beat.eq(before)]
            valid = rank_valid
        m.d.comb += [pairs.i_valid.eq(valid), pairs.i_beat.eq(beat)]
        m.d.comb += [mine.eq(theirs) for mine, theirs in zip(pairs.codes, self.codes, strict=True)]

        # Queries are read together with the pair's codes; half of the row is kept in a register.
        half = pairs.o_beat
        m.d.comb += [self.read_bank.eq(half.bank), self.read_chunk.eq(half.chunk)]
        upper = delayed(m, half.upper, "upper")
        narrow_ranks = QUERY_READ_RANKS + 1
        unit_valid, unit_first = pairs.o_valid, half.first
        done, bank, block_end = pairs.o_valid & half.last, half.bank, half.block_end
        for rank in range(narrow_ranks + self._units[0].latency):
            if rank < narrow_ranks:
                unit_valid = delayed(m, unit_valid, f"valid{rank}")
                unit_first = delayed(m, unit_first, f"first{rank}")
            pair_done = Signal(name=f"done{rank}")
            m.d.sync += pair_done.eq(done)
            done, bank = pair_done, delayed(m, bank, f"bank{rank}")
            block_end = delayed(m, block_end, f"block_end{rank}")

        # Both tokens are there: the first leaves, the second waits a cycle.
        first_out, second_out = Signal(), Signal()
        m.d.sync += [first_out.eq(done), second_out.eq(first_out)]
        out_bank = delayed(m, bank, "out_bank")
        m.d.comb += [
            self.o_valid.eq(first_out | second_out),
            self.o_bank.eq(delayed(m, Mux(done, bank, out_bank), "held_bank")),
            self.o_next_bank.eq(Mux(done, bank, out_bank)),
            self.o_block_end.eq(second_out & delayed(m, delayed(m, block_end, "end1"), "end2")),
        ]
        for h, unit in enumerate(self._units):
            m.submodules[f"unit{h}"] = unit
            m.d.comb += [unit.valid.eq(unit_valid), unit.first.eq(unit_first)]
            for row, codes in zip(unit.wide, pairs.o_codes, strict=True):
                m.d.comb += [w.eq(code) for w, code in zip(row, codes, strict=True)]
            lanes = len(unit.narrow)
            for lane, narrow in enumerate(unit.narrow):
                query_code = Mux(upper, self.query[h][lane + lanes], self.query[h][lane])
                m.d.comb += narrow.eq(delayed(m, query_code, f"query{h}_{lane}"))
            second = delayed(m, unit.o[1], f"second{h}")
            m.d.comb += self.o[h].eq(delayed(m, Mux(done, unit.o[0], second), f"o{h}"))
        return m

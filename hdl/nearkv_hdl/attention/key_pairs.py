"""Puts the codes of two consecutive keys side by side, half a lane beat at a time."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.attention.mac_array import beat_layout
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.design import DesignConfig
from nearkv_hdl.spec.formats import CODE
from nearkv_hdl.spec.scorer_pipeline import PACK_RANKS, pair_ranks

# Lane beats of either key that are stored, in units of the longest token: one pair arrives, pairs of as many
# beats again wait for their turn, and one is read.
_STORED_TOKENS = 4


def half_beat_layout(design: DesignConfig) -> data.StructLayout:
    """What is known of a half beat when its codes and queries are read."""
    return data.StructLayout(
        {
            "first": 1,  # of its pair
            "last": 1,  # of its pair
            "block_end": 1,  # the pair is the last of its block
            "bank": 1,
            "chunk": range(design.lane_beats_per_token(design.head_dims[-1])),
            "upper": 1,  # which half of the lane beat
        }
    )


class KeyPairs(wiring.Component):
    """Takes lane beats (`lanes` channels of one key) and gives half beats (lanes/2 channels of two keys).

    Formula: keys 2j and 2j+1 of C lane beats each become 2·C half beats: the lower, then the upper half of
    lane beat 0 of both keys, then those of lane beat 1, and so on.
    Timing: a pair's half beats leave without a gap; the last one's codes come `latency` cycles after those of
    the pair's last lane beat, whatever C and whatever the gaps between lane beats: shorter pairs wait, so
    that pairs never meet on the way out. Interval 1, free-running. `o_valid` and `o_beat` come one cycle
    before their codes.
    Numerics: none, codes pass through.

    Args:
        design: lanes and head dimensions; blocks of an even number of tokens.

    Members:
        i_valid, i_beat, codes: a lane beat.
        o_valid, o_beat: a half beat is being read.
        o_codes: its codes of both keys, in the next cycle.

    """

    def __init__(self, design: DesignConfig) -> None:
        self.design = design
        self._longest = design.lane_beats_per_token(design.head_dims[-1])
        depth = _STORED_TOKENS * self._longest
        self._stores = [SyncMemory(design.lanes * CODE.width, depth, style="distributed") for _ in range(2)]
        super().__init__(
            {
                "i_valid": In(1),
                "i_beat": In(beat_layout(design)),
                "codes": In(shape_of(CODE)).array(design.lanes),
                "o_valid": Out(1),
                "o_beat": Out(half_beat_layout(design)),
                "o_codes": Out(shape_of(CODE)).array(design.lanes // 2).array(2),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from the codes of a pair's last lane beat to those of its last half beat."""
        return pair_ranks(self.design) - PACK_RANKS

    @property
    def interval(self) -> int:
        """Cycles between two half beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        design, longest = self.design, self._longest
        place = range(_STORED_TOKENS * longest)  # a ring; sums of places wrap with it
        beats = Array(design.lane_beats_per_token(d) for d in design.head_dims)

        # Write: both keys of a pair at the same places, even ones in store 0, odd ones in store 1.
        odd, base = Signal(), Signal(place)
        pair_end = self.i_valid & self.i_beat.last & odd
        with m.If(self.i_valid & self.i_beat.last):
            m.d.sync += odd.eq(~odd)
        with m.If(pair_end):
            m.d.sync += base.eq(base + beats[self.i_beat.head_dim_index])
        for parity, store in enumerate(self._stores):
            m.submodules[f"store{parity}"] = store
            m.d.comb += [
                store.write_row.eq(base + self.i_beat.chunk),
                store.write_data.eq(Cat(self.codes)),
                store.write_enable.eq(self.i_valid & (odd == parity)),
                store.read_enable.eq(1),
            ]

        # A complete pair waits for twice the beats that it is shorter than the longest.
        pair = data.StructLayout({"base": place, "head_dim_index": 2, "bank": 1, "block_end": 1})
        waits = [2 * (longest - design.lane_beats_per_token(d)) for d in design.head_dims]
        ended, waiting = pair_end, Signal(pair, name="pair0")
        m.d.comb += [
            waiting.base.eq(base),
            waiting.head_dim_index.eq(self.i_beat.head_dim_index),
            waiting.bank.eq(self.i_beat.bank),
            waiting.block_end.eq(self.i_beat.block_end),
        ]
        start, started = Signal(), Signal(pair)
        for rank in range(max(waits) + 1):
            if rank:
                still, before = Signal(name=f"ended{rank}"), waiting
                waiting = Signal(pair, name=f"pair{rank}", reset_less=True)
                m.d.sync += [still.eq(ended), waiting.eq(before)]
                ended = still
            if rank in waits:
                with m.If(ended & (waiting.head_dim_index == waits.index(rank))):
                    m.d.comb += [start.eq(1), started.eq(waiting)]

        # Read: two half beats from every place.
        busy, current = Signal(), Signal(pair, reset_less=True)
        chunk, upper = Signal.like(self.o_beat.chunk), Signal()
        last = upper & (chunk == (beats[current.head_dim_index] - 1)[: len(chunk)])
        with m.If(busy):
            m.d.sync += [upper.eq(~upper), chunk.eq(chunk + upper)]
        with m.If(last):
            m.d.sync += busy.eq(0)
        with m.If(start):
            m.d.sync += [busy.eq(1), current.eq(started), chunk.eq(0), upper.eq(0)]
        m.d.comb += [
            self.o_valid.eq(busy),
            self.o_beat.first.eq((chunk == 0) & ~upper),
            self.o_beat.last.eq(last),
            self.o_beat.block_end.eq(current.block_end),
            self.o_beat.bank.eq(current.bank),
            self.o_beat.chunk.eq(chunk),
            self.o_beat.upper.eq(upper),
        ]
        upper_read = Signal(reset_less=True)
        m.d.sync += upper_read.eq(upper)
        for store, codes in zip(self._stores, self.o_codes, strict=True):
            m.d.comb += store.read_row.eq(current.base + chunk)
            for lane, code in enumerate(codes):
                halves = [store.read_data.word_select(lane + h * len(codes), CODE.width) for h in range(2)]
                m.d.comb += code.eq(Mux(upper_read, halves[1], halves[0]).as_signed())
        return m

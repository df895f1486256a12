"""One lane of a pass over the score memory: compares a score with the interval that is still undecided."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.memory import SyncMemory
from nearkv_hdl.spec.topk_config import TopKConfig


def pass_layout(config: TopKConfig) -> data.StructLayout:
    """What a pass looks for; the same for all its scores."""
    return data.StructLayout(
        {
            "base": shape_of(config.score),  # lower end of the undecided interval, or the threshold
            "digits": config.residual_bits,  # what is known of the offset from base
            "known": config.score_bits + 1,  # mask of the offset's bits that are known
            "count": 1,  # matching digits go to the histogram
            "high": 1,  # the upper digit of the offset, not the lower
            "capture": 1,  # keep the matching offsets
            "replay": 1,  # read kept offsets, not the score memory
        }
    )


class TopKLane(wiring.Component):
    """Turns scores into offsets from a base, matches them, and keeps those that match.

    Formula: offset = score - base, or a kept offset (`replay`); a score matches if offset and digits agree
    in all known bits. above = offset > 0, equal = offset == 0.
    Timing: `o` follows `i` by 1, `o_digit` by `latency` cycles with `enable`; kept offsets follow
    `read_row` by 2 such cycles, as the score memory does. Without `enable` nothing moves; `search.count`
    asks for it in every cycle, else a digit would be counted twice.
    Numerics: the offset has one bit more than a score: exact for any two scores. Kept offsets have
    residual_bits, which a matching offset never exceeds.
    Reset: valid bits, number of kept offsets, `overflow`.

    Args:
        config: widths, candidate rows.

    Members:
        start: a pulse before a job's first pass: drops the kept offsets.
        enable: clock enable.
        search: constants of the pass.
        read_row: row of the kept offsets.
        i: score of the row; valid if the row has one here.
        o: offset, above, equal.
        o_digit: digit of a matching offset, for the histogram.
        candidates: kept offsets.
        overflow: more matched than could be kept.

    """

    def __init__(self, config: TopKConfig) -> None:
        self.config = config
        self._kept = SyncMemory(config.residual_bits, config.candidate_rows, latency=2)
        super().__init__(
            {
                "start": In(1),
                "enable": In(1),
                "search": In(pass_layout(config)),
                "read_row": In(range(config.candidate_rows)),
                "i": In(stream.Signature(shape_of(config.score), always_ready=True)),
                "o": Out(
                    stream.Signature(
                        data.StructLayout({"offset": config.score_bits, "above": 1, "equal": 1}),
                        always_ready=True,
                    )
                ),
                "o_digit": Out(stream.Signature(config.digit_bits, always_ready=True)),
                "candidates": Out(range(config.candidate_rows + 1)),
                "overflow": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a score to its digit: difference, match."""
        return 2

    @property
    def interval(self) -> int:
        """Cycles between two scores."""
        return 1

    def elaborate(self, platform):
        m = Module()
        config = self.config
        search = self.search
        m.submodules.kept = kept = self._kept
        m.d.comb += [kept.read_row.eq(self.read_row), kept.read_enable.eq(self.enable)]

        # Offset from the base, and its comparison with 0.
        offset = Signal(signed(config.score_bits + 1), reset_less=True)
        equal = Signal(reset_less=True)
        with m.If(self.enable):
            m.d.sync += [
                self.o.valid.eq(self.i.valid),
                offset.eq(Mux(search.replay, kept.read_data, self.i.payload - search.base)),
                equal.eq(self.i.payload == search.base),
            ]
        m.d.comb += [
            self.o.payload.offset.eq(offset),
            self.o.payload.above.eq((offset >= 0) & ~equal),
            self.o.payload.equal.eq(equal),
        ]

        # Match the known bits; the digit below them goes to the histogram.
        matches = Signal(reset_less=True)
        matching = Signal(config.residual_bits, reset_less=True)
        found = Signal()
        m.d.comb += matches.eq(((offset ^ search.digits) & search.known) == 0)
        with m.If(self.enable):
            m.d.sync += [found.eq(self.o.valid & matches), matching.eq(offset)]
        m.d.comb += [
            self.o_digit.valid.eq(found & search.count),
            self.o_digit.payload.eq(
                Mux(search.high, matching[config.digit_bits :], matching[: config.digit_bits])
            ),
        ]

        # Keep what matched, as long as there is room.
        full = self.candidates == config.candidate_rows
        m.d.comb += [
            kept.write_row.eq(self.candidates),
            kept.write_data.eq(matching),
            kept.write_enable.eq(self.o_digit.valid & search.capture & ~full),
        ]
        m.d.sync += self.candidates.eq(self.candidates + kept.write_enable)
        with m.If(self.o_digit.valid & search.capture & full):
            m.d.sync += self.overflow.eq(1)
        with m.If(self.start):
            m.d.sync += [self.candidates.eq(0), self.overflow.eq(0)]
        return m

"""Entry of the top-k unit: numbers the scores of a job, checks their tokens and takes their first digit."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from nearkv_hdl.arith.adder_tree import shape_of
from nearkv_hdl.spec.topk_config import JOB_K_BITS, TopKConfig


def item_layout(config: TopKConfig) -> data.StructLayout:
    """Payload of the score streams, in and out: one scored token a beat, one frame a job."""
    return data.StructLayout(
        {
            "token": config.token_bits,
            "score": shape_of(config.score),
            "keep": 1,  # 0: the beat carries no token; an empty frame is one such beat
            "last": 1,
        }
    )


def job_layout(config: TopKConfig) -> data.StructLayout:
    """Payload of the job stream: one beat a job."""
    return data.StructLayout(
        {
            "k": JOB_K_BITS,
            "window_base": shape_of(config.score),
            "window_shift": config.shift_bits,
        }
    )


def entry_layout(config: TopKConfig) -> data.StructLayout:
    """A numbered score on its way into the score memory."""
    return data.StructLayout(
        {"position": range(config.capacity), "token": config.token_bits, "score": shape_of(config.score)}
    )


class TopKLoader(wiring.Component):
    """Takes the items of one frame and sends each where a job needs it.

    Formula: kept items are numbered 0, 1, … (`position`). The window digit is
    clip((score - window_base) >> window_shift, 0, buckets - 1), the coarse digit (score - min) >>
    residual_bits. An item is refused if the job already holds `capacity` (`overrun`). `unordered` is set if
    a token is not above the one before, or, inside a run of token_run positions, not the next one.
    Timing: one beat per cycle while `enable`; `o_entry` and `o_coarse` follow 1, `o_window` `latency` cycles
    after the beat. `count` and `overrun` are final 1, `unordered` 2 cycles after the last beat.
    Numerics: the difference has one bit more than a score, so every digit is exact.
    Reset: valid bits, count, flags.

    Args:
        config: widths and capacity.

    Members:
        start: a pulse before a job: forgets the previous one.
        enable: beats may be taken.
        job: the job, stable from its first beat on.
        i: items.
        o_entry: scores and tokens to store.
        o_window, o_coarse: first digits.
        ended: the beat taken in this cycle is the frame's last.
        count: kept items so far.
        overrun, unordered: errors of this frame so far.

    """

    def __init__(self, config: TopKConfig) -> None:
        self.config = config
        digit = stream.Signature(config.digit_bits, always_ready=True)
        super().__init__(
            {
                "start": In(1),
                "enable": In(1),
                "job": In(job_layout(config)),
                "i": In(stream.Signature(item_layout(config))),
                "o_entry": Out(stream.Signature(entry_layout(config), always_ready=True)),
                "o_window": Out(digit),
                "o_coarse": Out(digit),
                "ended": Out(1),
                "count": Out(config.count_bits),
                "overrun": Out(1),
                "unordered": Out(1),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from a beat to its window digit: entry, difference, shift, clip."""
        return 4

    @property
    def interval(self) -> int:
        """Cycles between two beats."""
        return 1

    def elaborate(self, platform):
        m = Module()
        config = self.config
        full = self.count == config.capacity
        kept = Signal()
        m.d.comb += [
            self.i.ready.eq(self.enable),
            self.ended.eq(self.i.valid & self.enable & self.i.payload.last),
            kept.eq(self.i.valid & self.enable & self.i.payload.keep & ~full),
        ]

        # Number the items.
        entry = Signal(entry_layout(config), reset_less=True)
        m.d.sync += [
            self.o_entry.valid.eq(kept),
            entry.position.eq(self.count),
            entry.token.eq(self.i.payload.token),
            entry.score.eq(self.i.payload.score),
            self.count.eq(self.count + kept),
        ]
        with m.If(self.i.valid & self.enable & self.i.payload.keep & full):
            m.d.sync += self.overrun.eq(1)
        m.d.comb += self.o_entry.payload.eq(entry)
        entered = self.o_entry.valid

        # The coarse digit: the top bits, counted from the most negative score.
        m.d.comb += [
            self.o_coarse.valid.eq(entered),
            self.o_coarse.payload.eq(Cat(entry.score[config.residual_bits : -1], ~entry.score[-1])),
        ]

        # Tokens ascend, by one inside a run.
        previous = Signal(config.token_bits, reset_less=True)
        seen = Signal()
        with m.If(entered):
            m.d.sync += [previous.eq(entry.token), seen.eq(1)]
            with m.If(seen & (entry.token <= previous)):
                m.d.sync += self.unordered.eq(1)
            if config.token_run > 1:
                in_run = (entry.position & (config.token_run - 1)) != 0
                with m.If(in_run & (entry.token != previous + 1)):
                    m.d.sync += self.unordered.eq(1)

        # The window digit: subtract, shift, clip.
        difference = Signal(signed(config.score_bits + 1), reset_less=True)
        shifted = Signal(signed(config.score_bits + 1), reset_less=True)
        digit = Signal(config.digit_bits, reset_less=True)
        m.d.sync += [
            difference.eq(entry.score - self.job.window_base),
            shifted.eq(difference >> self.job.window_shift),
            digit.eq(shifted[: config.digit_bits]),
        ]
        with m.If(shifted < 0):
            m.d.sync += digit.eq(0)
        with m.Elif(shifted >= config.buckets):
            m.d.sync += digit.eq(config.buckets - 1)
        m.d.comb += self.o_window.payload.eq(digit)
        valid = entered
        for rank in range(3):
            later = Signal(name=f"digit_valid{rank}")
            m.d.sync += later.eq(valid)
            valid = later
        m.d.comb += self.o_window.valid.eq(valid)

        with m.If(self.start):
            m.d.sync += [self.count.eq(0), self.overrun.eq(0), self.unordered.eq(0), seen.eq(0)]
        return m

"""The stream contract as a checker: for formal proofs, and for simulation, where a breach raises.

A source that keeps the contract
1. holds `valid` until the token is taken (rule `valid held`),
2. keeps the payload unchanged meanwhile (rule `payload stable`),
3. does not wait for `ready` before it raises `valid`: neither by gates (shown structurally by
   `nearkv_sim.formal.prove_stream_contract`) nor over time (ProgressWatch).
"""

from __future__ import annotations

from amaranth.hdl import Assert, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In


class StreamContract(wiring.Component):
    """Watches one stream and checks rules 1 and 2.

    Formula: valid & ~ready in one cycle implies valid and the same payload in the next, unless a reset
    came between.
    Timing: none; it drives nothing.
    Numerics: none.

    Args:
        shape: payload shape.

    Members:
        valid, ready, payload: the watched stream.

    """

    def __init__(self, shape) -> None:
        super().__init__({"valid": In(1), "ready": In(1), "payload": In(shape)})

    def elaborate(self, platform):
        m = Module()
        payload = Value.cast(self.payload)
        waiting = Signal()
        offered = Signal(len(payload), reset_less=True)
        m.d.sync += [waiting.eq(self.valid & ~self.ready), offered.eq(payload)]
        with m.If(waiting):
            m.d.sync += Assert(self.valid, "valid held: withdrawn before the token was taken")
            m.d.sync += Assert(payload == offered, "payload stable: changed before the token was taken")
        return m


class ProgressWatch(wiring.Component):
    """Checks that something awaited happens in time.

    Formula: the cycles with `pending` and `counts` since the last one with `happens` (or without
    `pending`) are at most `within`; the cycle of `happens` itself is not counted.
    Timing: none; it drives nothing.
    Numerics: none.

    Args:
        within: cycles allowed, from 0.
        what: named in the message of a breach.

    Members:
        pending: something is awaited.
        counts: this cycle counts as waiting.
        happens: it has come.

    Raises ValueError if `within` is below 0.

    """

    def __init__(self, within: int, what: str) -> None:
        if within < 0:
            raise ValueError(f"within is {within}; allowed: from 0")
        self.within = within
        self.what = what
        super().__init__({"pending": In(1), "counts": In(1), "happens": In(1)})

    def elaborate(self, platform):
        m = Module()
        waited = Signal(range(self.within + 2))
        with m.If(self.happens | ~self.pending):
            m.d.sync += waited.eq(0)
        with m.Elif(self.counts):
            m.d.sync += Assert(waited < self.within, f"progress: {self.what} within {self.within} cycles")
            with m.If(waited <= self.within):
                m.d.sync += waited.eq(waited + 1)
        return m


class TokenCount(wiring.Component):
    """Counts tokens between an entry and an exit and checks that none is invented and none piles up.

    Formula: count = entered − left, 0 <= count <= capacity. A token may leave in the cycle it enters.
    Timing: `count` is the number before this cycle's transfers.
    Numerics: none.

    Args:
        capacity: most tokens that can be inside, from 1.

    Members:
        enters, leaves: a token passes in this cycle.
        count: tokens inside.

    Raises ValueError if `capacity` is below 1.

    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; allowed: from 1")
        self.capacity = capacity
        super().__init__({"enters": In(1), "leaves": In(1), "count": wiring.Out(range(capacity + 2))})

    def elaborate(self, platform):
        m = Module()
        with m.If(self.leaves):
            m.d.sync += Assert((self.count != 0) | self.enters, "tokens: one left that never entered")
        with m.If(self.enters & ~self.leaves):
            m.d.sync += Assert(self.count < self.capacity, f"tokens: more than {self.capacity} inside")
        m.d.sync += self.count.eq(self.count + self.enters - self.leaves)
        return m


class OrderWatch(wiring.Component):
    """Checks that a stream passes through unchanged and in order, by following one arbitrary token.

    Formula: if the token chosen by `chosen` has k tokens before it inside, the (k + 1)-th transfer from
    then on carries its payload. `chosen` is free in a proof, so this holds for every token.
    Timing: none; it drives nothing.
    Numerics: none.

    Args:
        shape: payload shape of both streams.
        capacity: most tokens that can be inside, from 1.

    Members:
        enters, entering: a token enters, its payload.
        leaves, leaving: a token leaves, its payload.
        chosen: follow the token that enters in this cycle (the first such cycle counts).

    """

    def __init__(self, shape, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; allowed: from 1")
        self.capacity = capacity
        super().__init__(
            {
                "enters": In(1),
                "entering": In(shape),
                "leaves": In(1),
                "leaving": In(shape),
                "chosen": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.tokens = tokens = TokenCount(self.capacity)
        m.d.comb += [tokens.enters.eq(self.enters), tokens.leaves.eq(self.leaves)]
        follow = Signal()
        done = Signal()
        ahead = Signal(range(self.capacity + 2))
        expected = Signal(len(Value.cast(self.entering)), reset_less=True)
        with m.If(~follow & self.chosen & self.enters):
            m.d.sync += [
                follow.eq(1),
                ahead.eq(tokens.count - self.leaves),
                expected.eq(Value.cast(self.entering)),
            ]
        with m.If(follow & ~done & self.leaves):
            m.d.sync += ahead.eq(ahead - 1)
            with m.If(ahead == 0):
                m.d.sync += done.eq(1)
                m.d.sync += Assert(Value.cast(self.leaving) == expected, "order: another token left")
        return m

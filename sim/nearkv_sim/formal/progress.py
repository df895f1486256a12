"""Proofs that nothing hangs, under any pattern of pauses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Cat

from nearkv_hdl.stream.contract import ProgressWatch, TokenCount
from nearkv_sim.formal.bench import Bench, Constrain
from nearkv_sim.formal.engine import DEFAULT_TIMEOUT_SECONDS, Proof, prove
from nearkv_sim.formal.properties import DATA_PATH_CELLS, STORED_DATA_CELLS, settle


def prove_progress(
    make: Callable[[], Any],
    *,
    within: int,
    capacity: int,
    output: str | None = None,
    input: str | None = None,
    pending: Callable[[Bench, Any], Any] | None = None,
    constrain: Constrain | None = None,
    bound: int | None = None,
    cut: Sequence[str] = DATA_PATH_CELLS,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
) -> Proof:
    """Prove that nothing hangs, whatever pattern source and sink pause in.

    1. While a token is inside or offered, `output.valid` comes within `within` cycles, even if `ready`
       never does: the stream does not wait for ready over time.
    2. A token offered is taken within `within` cycles in which the sink was ready (other cycles do not
       count).
    3. No token leaves that did not enter, and never are more than `capacity` inside.

    Together: a token offered leaves after a bounded number of cycles with a ready sink.

    Args:
        make: builds the component; called several times.
        within: cycles allowed.
        capacity: most tokens inside, for components with one output token per input token.
        output, input: names of the streams; None if there is one of each.
        pending: (bench, tokens inside) gives "output is due"; the default is right for one token out per
            token in. With another ratio give an expression over the component's ports; rule 3 is then
            left out and tokens inside is 0.
        constrain, bound, cut, timeout_seconds: as for `prove_stream_contract`.

    """

    def build() -> Bench:
        bench = Bench(make(), constrain)
        source, sink = bench.input(input), bench.output(output)
        inside: Any = 0
        if pending is None:
            tokens = TokenCount(capacity)
            inside = bench.add("tokens", tokens, enters=source.transfers, leaves=sink.transfers).count
            due = (inside != 0) | source.port.valid
        else:
            due = pending(bench, inside)
        bench.add(
            "valid_in_time",
            ProgressWatch(within, f"{sink.name}.valid"),
            pending=due,
            counts=1,
            happens=sink.port.valid,
        )
        bench.add(
            "taken_in_time",
            ProgressWatch(within, f"{source.name} taken"),
            pending=source.port.valid,
            counts=sink.port.ready,
            happens=source.transfers,
        )
        return bench

    bench = build()
    return settle(
        build, prove(bench.module, bench.free, bound=bound, cut=cut, timeout_seconds=timeout_seconds)
    )


def prove_no_deadlock(
    make: Callable[[], Any],
    *,
    within: int,
    constrain: Constrain | None = None,
    bound: int | None = None,
    cut: Sequence[str] = STORED_DATA_CELLS,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
) -> Proof:
    """Prove that a component with every neighbour willing does not stand still, whatever went before.

    Of the cycles in which every source offers a token and every sink is ready, at most `within` in succession
    pass without a transfer on any stream; cycles with a pause between them do not count, so that the pauses
    may come in any pattern, before and meanwhile. Where the number of tokens on each stream is bounded by the
    others, and a job has an end, this says that jobs end.

    Args:
        make: builds the component; called several times.
        within: cycles allowed.
        constrain, bound, timeout_seconds: as for `prove_stream_contract`.
        cut: by default multipliers and memories: what they give is free, so a proof covers any data.

    """

    def build() -> Bench:
        bench = Bench(make(), constrain)
        streams = bench.streams.values()
        willing = Cat(*(s.port.valid if s.is_input else s.port.ready for s in streams)).all()
        moves = Cat(*(s.transfers for s in streams)).any()
        watch = ProgressWatch(within, "a transfer on some stream")
        bench.add("moves_in_time", watch, pending=1, counts=willing, happens=moves)
        return bench

    bench = build()
    return settle(
        build, prove(bench.module, bench.free, bound=bound, cut=cut, timeout_seconds=timeout_seconds)
    )

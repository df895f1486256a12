"""The proofs that components have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Value

from nearkv_hdl.stream.contract import OrderWatch, ProgressWatch, StreamContract, TokenCount
from nearkv_sim.formal.bench import Bench, Constrain
from nearkv_sim.formal.engine import DEFAULT_TIMEOUT_SECONDS, Proof, Status, depends_on, prove

# Multipliers are hard for SAT and beside the point of flow control.
DATA_PATH_CELLS = ("$mul",)


def _settle(build: Callable[[], Bench], proof: Proof) -> Proof:
    """Name the rule that a counterexample breaks, by simulating it on a bench built afresh."""
    if proof.status is not Status.REFUTED:
        return proof
    broken = build().replay(proof)
    note = broken or f"{proof.message}; only with cut-away logic free, so perhaps an artefact of the cut"
    return Proof(proof.status, note, proof.cycles, proof.counterexample)


def prove_stream_contract(
    make: Callable[[], Any],
    *,
    constrain: Constrain | None = None,
    bound: int | None = None,
    cut: Sequence[str] = DATA_PATH_CELLS,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
) -> Proof:
    """Prove for every output stream: valid held, payload stable, valid independent of ready within a cycle.

    Sources and sinks pause in any pattern, resets come at any time. That valid does not wait for ready over
    time either is `prove_progress`.

    Args:
        make: builds the component; called several times.
        constrain: (module, component, bench) adds Assumes on the component's inputs.
        bound: None proves for all time; a number only the first so many cycles.
        cut: cell types whose outputs become free values; "$mem_v2" cuts memories away, which suffices
            where a register follows the memory.
        timeout_seconds: when ABC gives up; wall time, so generous for a loaded machine.

    """

    def build() -> Bench:
        bench = Bench(make(), constrain)
        for name, watched in bench.streams.items():
            if not watched.is_input:
                port = watched.port
                checker = StreamContract(len(Value.cast(port.payload)))
                bench.add(
                    f"{name}_contract", checker, valid=port.valid, ready=port.ready, payload=port.payload
                )
        return bench

    bench = build()
    proof = _settle(
        build, prove(bench.module, bench.free, bound=bound, cut=cut, timeout_seconds=timeout_seconds)
    )
    if not proof:
        return proof
    for name, watched in bench.streams.items():
        if watched.is_input or watched.port.signature.always_ready or watched.port.signature.always_valid:
            continue
        structure = Bench(make(), constrain)
        ports = [*structure.free.values(), *structure.observed.values()]
        if depends_on(structure.module, ports, f"{name}_valid", f"{name}_ready"):
            return Proof(Status.REFUTED, f"valid waits for ready: {name}.valid depends on {name}.ready")
    return proof


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
    return _settle(
        build, prove(bench.module, bench.free, bound=bound, cut=cut, timeout_seconds=timeout_seconds)
    )


def prove_order(
    make: Callable[[], Any],
    *,
    capacity: int,
    field: str | None = None,
    output: str | None = None,
    input: str | None = None,
    constrain: Constrain | None = None,
    bound: int | None = None,
    cut: Sequence[str] = DATA_PATH_CELLS,
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS,
) -> Proof:
    """Prove that a component passes its tokens on in order, each exactly once, payload unchanged.

    Args:
        make: builds the component; called several times.
        capacity: most tokens inside.
        field: compare only this field of both payloads, such as a tag; None compares payloads of one width.
        output, input, constrain, bound, cut, timeout_seconds: as for `prove_progress`.

    """

    def build() -> Bench:
        bench = Bench(make(), constrain)
        source, sink = bench.input(input), bench.output(output)
        entering, leaving = (
            Value.cast(port.payload if field is None else getattr(port.payload, field))
            for port in (source.port, sink.port)
        )
        bench.add(
            "order",
            OrderWatch(len(entering), capacity),
            enters=source.transfers,
            entering=entering,
            leaves=sink.transfers,
            leaving=leaving,
            chosen=bench.free_signal("chosen"),
        )
        return bench

    bench = build()
    return _settle(
        build, prove(bench.module, bench.free, bound=bound, cut=cut, timeout_seconds=timeout_seconds)
    )

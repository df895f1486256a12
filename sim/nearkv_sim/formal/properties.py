"""The proofs on streams that components have in common: contract, independence of ready, order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amaranth.hdl import Value

from nearkv_hdl.stream.contract import OrderWatch, StreamContract
from nearkv_sim.formal.bench import Bench, Constrain
from nearkv_sim.formal.engine import DEFAULT_TIMEOUT_SECONDS, Proof, Status, gate_paths, prove

# Multipliers are hard for SAT and beside the point of flow control.
DATA_PATH_CELLS = ("$mul",)
# What a memory gives matters no more, where a register follows it.
STORED_DATA_CELLS = (*DATA_PATH_CELLS, "$mem_v2")


def settle(build: Callable[[], Bench], proof: Proof) -> Proof:
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
    proof = settle(
        build, prove(bench.module, bench.free, bound=bound, cut=cut, timeout_seconds=timeout_seconds)
    )
    if not proof:
        return proof
    structure = Bench(make(), constrain)
    outputs = [
        name
        for name, watched in structure.streams.items()
        if not (
            watched.is_input or watched.port.signature.always_ready or watched.port.signature.always_valid
        )
    ]
    ports = [*structure.free.values(), *structure.observed.values()]
    valids, readies = [f"{name}_valid" for name in outputs], [f"{name}_ready" for name in outputs]
    paths = gate_paths(structure.module, ports, valids, readies)
    if paths:
        return Proof(Status.REFUTED, f"valid waits for ready: {_spell(paths)}")
    return proof


def _spell(paths: Iterable[tuple[str, str]]) -> str:
    """`o.valid depends on o.ready, …`: ports of the bench by the names of the streams' members."""
    members = [tuple(".".join(port.rsplit("_", 1)) for port in path) for path in sorted(paths)]
    return ", ".join(f"{target} depends on {source}" for target, source in members)


def prove_ready_independent(make: Callable[[], Any], *, constrain: Constrain | None = None) -> Proof:
    """Prove that no input's ready depends on any source's valid or payload within a cycle.

    Such a component neither waits for a token before it offers to take one, nor closes a loop of gates with
    a source that waits for ready. Structural (`gate_paths`), hence for all time and all payloads.

    Args:
        make, constrain: as for `prove_stream_contract`.

    """
    bench = Bench(make(), constrain)
    sources = [watched for watched in bench.streams.values() if watched.is_input]
    readies = [f"{watched.name}_ready" for watched in sources]
    causes = [
        name
        for watched in sources
        for name in (f"{watched.name}_valid", f"{watched.name}_payload")
        if name in bench.free
    ]
    paths = gate_paths(bench.module, [*bench.free.values(), *bench.observed.values()], readies, causes)
    if paths:
        return Proof(Status.REFUTED, f"ready waits for valid: {_spell(paths)}")
    return Proof(Status.PROVED, "proved for all time")


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
    return settle(
        build, prove(bench.module, bench.free, bound=bound, cut=cut, timeout_seconds=timeout_seconds)
    )

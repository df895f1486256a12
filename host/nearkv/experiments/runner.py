"""Runs an experiment: streams of a trace, step by step, on one opened device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nearkv.device.cold_store import ColdStore, ColdStream
from nearkv.device.driver import ScorerDriver
from nearkv.device.transport import Transport, TransportCounters, open_transport, transport_options
from nearkv.experiments.config import ExperimentConfig
from nearkv.experiments.decode import Device, Meter, StreamRun
from nearkv.experiments.group import selection_groups
from nearkv.experiments.records import Prefill, RunResult, StepRecord
from nearkv.trace.format import AttentionTrace
from nearkv_hdl.spec.block_header import StreamIdentity

Progress = Callable[[int, int], None]  # (steps done, steps planned)
Observer = Callable[[Sequence[StepRecord]], object]


class ScorerDevice:
    """A transport with the scorer's driver and a cold store on it."""

    def __init__(self, transport: Transport) -> None:
        """Check and reset the device behind an open transport."""
        self._transport = transport
        self._store = ColdStore(ScorerDriver(transport))

    @property
    def now_ps(self) -> int:
        """The transport's time."""
        return self._transport.now_ps

    @property
    def counters(self) -> TransportCounters:
        """The transport's totals."""
        return self._transport.counters

    def open_stream(self, name: str, head_dim: int, identity: StreamIdentity) -> ColdStream:
        """Start an empty stream of the cold store."""
        return self._store.open_stream(name, head_dim, identity)


@contextmanager
def open_device(config: ExperimentConfig, tlp_log: Path | None = None) -> Iterator[Device]:
    """Open the device that a configuration names.

    Args:
        config: names transport, link and design.
        tlp_log: folder, made if need be, for the log of a transport that sees its packets; None for none.

    Raises:
        ValueError: an unknown transport or link, no link for a transport that has one, a log of a transport
            that keeps none. DeviceError where it does not answer as its design says.

    """
    known = transport_options(config.transport)
    if config.link is None and "link" in known:
        raise ValueError(f"link is null; transport {config.transport} needs one, such as smartssd")
    options: dict[str, Any] = {} if config.link is None else {"link": config.link}
    if tlp_log is not None:
        if "tlp_log" not in known:
            raise ValueError(f"transport is {config.transport} with a TLP log; allowed: pcie, rtl, tlm")
        tlp_log.mkdir(parents=True, exist_ok=True)
        options["tlp_log"] = tlp_log / f"{config.transport}.jsonl"
    with open_transport(config.transport, config.design_config, **options) as transport:
        yield ScorerDevice(transport)


def run_experiment(
    config: ExperimentConfig,
    trace: AttentionTrace,
    device: Device,
    progress: Progress | None = None,
    observers: Sequence[Observer] = (),
) -> RunResult:
    """Run every step of every stream; observers get each finished step's records.

    A KeyboardInterrupt between or within decode steps ends the run; the result then holds the steps that
    every stream had finished, and is not `complete`.

    Raises:
        ValueError: a configuration that does not fit the trace, a policy that breaks the rules.
        DeviceError: the device failed beyond the driver's retry.

    """
    chosen = config.streams_of(trace)
    planned = trace.steps if config.steps is None else config.steps
    streams = [StreamRun(config, trace, stream, device, planned) for stream in chosen]
    groups = list(selection_groups(config, streams, trace.steps))
    order = {stream.name: place for place, stream in enumerate(chosen)}
    meter = Meter(device)
    sealed = sum(stream.prefill() for stream in streams)
    traffic = meter.traffic()
    prefill = Prefill(
        sealed_tokens=sealed,
        to_device_bytes=traffic.payload_bytes_to_device,
        from_device_bytes=traffic.payload_bytes_from_device,
        time_ps=meter.lap_ps(),
    )
    records: list[StepRecord] = []
    try:
        for step in range(planned):
            finished = sorted(
                (record for group in groups for record in group.step(step)), key=lambda one: order[one.stream]
            )
            records += finished
            for observe in observers:
                observe(finished)
            if progress is not None:
                progress(step + 1, planned)
    except KeyboardInterrupt:
        pass
    return RunResult(
        config=config,
        trace_sha256=trace.header.sha256,
        streams=tuple(stream.name for stream in chosen),
        planned_steps=planned,
        prefill=prefill,
        records=tuple(records),
    )

"""Metrics of a run for Prometheus, on this machine's loopback address alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from prometheus_client import Gauge

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535


@dataclass(frozen=True)
class RunSample:
    """What one decode step adds, and how things stand after it.

    Attributes:
        hits, misses: selected tokens that were hot, and that were not.
        moved_bytes: by link, in this step.
        promoted_tokens, demoted_tokens: of this step.
        failures: by what failed, in this step.
        time_ps: simulated time of this step.
        tier_occupancy: by tier, the share of its KV budget in use, 0 to 1.
        gpu_load: share of the step during which the GPU worked; None where no machine is described.
        ssd_wear: by drive tier, share of its rated life used.
        fpga_celsius: by scoring card, simulated.

    """

    hits: int
    misses: int
    moved_bytes: Mapping[str, int]
    promoted_tokens: int
    demoted_tokens: int
    time_ps: int
    failures: Mapping[str, int] = field(default_factory=dict)
    tier_occupancy: Mapping[str, float] = field(default_factory=dict)
    gpu_load: float | None = None
    ssd_wear: Mapping[str, float] = field(default_factory=dict)
    fpga_celsius: Mapping[str, float] = field(default_factory=dict)


class MetricsEndpoint:
    """Serves `http://127.0.0.1:PORT/metrics` until it is closed.

    Counters: `nearkv_steps_total`, `nearkv_hits_total`, `nearkv_misses_total`, `nearkv_moved_bytes_total`
    (label link), `nearkv_moved_tokens_total` (label direction), `nearkv_failures_total` (label kind),
    `nearkv_simulated_seconds_total`. Gauges: `nearkv_tier_occupancy_ratio` (label tier),
    `nearkv_gpu_load_ratio`, `nearkv_ssd_wear_ratio` (label tier), `nearkv_fpga_temperature_celsius` (label
    card). A gauge that a run cannot know is not there.

    Args:
        port: 0 lets the system choose; `port` then says which.

    Raises ValueError for a port out of range, OSError where it is taken.

    """

    def __init__(self, port: int) -> None:
        if not 0 <= port <= MAX_PORT:
            raise ValueError(f"metrics port is {port}; allowed: 0 to {MAX_PORT}")
        # 60 ms that a run without a monitor should not pay.
        from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

        registry = CollectorRegistry()
        self._steps = Counter("nearkv_steps", "decode steps finished", registry=registry)
        self._hits = Counter("nearkv_hits", "selected tokens that were hot", registry=registry)
        self._misses = Counter("nearkv_misses", "selected tokens that were not hot", registry=registry)
        self._bytes = Counter("nearkv_moved_bytes", "payload by link", ["link"], registry=registry)
        self._tokens = Counter("nearkv_moved_tokens", "tokens moved", ["direction"], registry=registry)
        self._failures = Counter("nearkv_failures", "failures by kind", ["kind"], registry=registry)
        self._seconds = Counter("nearkv_simulated_seconds", "simulated time", registry=registry)
        self._occupancy = Gauge(
            "nearkv_tier_occupancy_ratio", "share of a tier's KV budget in use", ["tier"], registry=registry
        )
        self._registry = registry
        self._gpu: Gauge | None = None
        self._wear = Gauge("nearkv_ssd_wear_ratio", "rated life used", ["tier"], registry=registry)
        self._celsius = Gauge(
            "nearkv_fpga_temperature_celsius", "simulated temperature", ["card"], registry=registry
        )
        self._server, self._thread = start_http_server(port, addr=LOOPBACK, registry=registry)
        self.port: int = self._server.server_port

    def observe(self, sample: RunSample) -> None:
        """Count one step."""
        self._steps.inc()
        self._hits.inc(sample.hits)
        self._misses.inc(sample.misses)
        self._seconds.inc(sample.time_ps / 1e12)
        for link, nbytes in sample.moved_bytes.items():
            self._bytes.labels(link).inc(nbytes)
        self._tokens.labels("promoted").inc(sample.promoted_tokens)
        self._tokens.labels("demoted").inc(sample.demoted_tokens)
        for kind, count in sample.failures.items():
            self._failures.labels(kind).inc(count)
        for gauge, values in (
            (self._occupancy, sample.tier_occupancy),
            (self._wear, sample.ssd_wear),
            (self._celsius, sample.fpga_celsius),
        ):
            for label, value in values.items():
                gauge.labels(label).set(value)
        if sample.gpu_load is not None:
            if self._gpu is None:
                from prometheus_client import Gauge

                self._gpu = Gauge(
                    "nearkv_gpu_load_ratio", "share of the step the GPU worked", registry=self._registry
                )
            self._gpu.set(sample.gpu_load)

    def close(self) -> None:
        """Stop serving; closing twice is allowed."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        """Return the open endpoint."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

"""A timeline of a simulated run, for Perfetto (ui.perfetto.dev) and Chrome's tracing page.

The file is the JSON object form of Google's "Trace Event Format": one complete event (`ph` X) per span, a
thread per resource, a flow arrow (`ph` s and f) from a span to each that waited for it, and a counter track
(`ph` C) per counter. Times are microseconds there; a picosecond is the sixth decimal place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PS_PER_US = 1_000_000
_PROCESS = 1


@dataclass(frozen=True)
class Span:
    """Work of one resource.

    Attributes:
        resource: what was busy: a processor, a link, a drive.
        name: what it did.
        start_ps, end_ps: when.
        waits_for: indices of earlier spans in the same list whose ends it had to wait for.
        details: shown when the span is selected.

    """

    resource: str
    name: str
    start_ps: int
    end_ps: int
    waits_for: tuple[int, ...] = ()
    details: Mapping[str, int | float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a span that ends before it starts."""
        if not 0 <= self.start_ps <= self.end_ps:
            raise ValueError(
                f"span {self.name!r} is {self.start_ps} to {self.end_ps} ps; allowed: 0 <= start <= end"
            )


@dataclass(frozen=True)
class Sample:
    """A counter's value from one moment on."""

    counter: str
    time_ps: int
    value: float


def chrome_trace(spans: Sequence[Span], samples: Iterable[Sample] = (), *, process: str = "nearkv") -> str:
    """The timeline as JSON text; the same spans give the same text.

    Args:
        spans: in any order; resources get threads in the order of their first span.
        samples: of counters, in any order.
        process: heading over the resources.

    Raises:
        ValueError: a span waits for one that is not in the list, or that ends after it starts.

    """
    threads: dict[str, int] = {}
    for span in spans:
        threads.setdefault(span.resource, len(threads) + 1)
    events: list[dict[str, Any]] = [_metadata("process_name", 0, process)]
    events += [_metadata("thread_name", thread, name) for name, thread in threads.items()]
    events += [_metadata("thread_sort_index", thread, thread) for thread in threads.values()]
    for index, span in enumerate(spans):
        event = {"ph": "X", "pid": _PROCESS, "tid": threads[span.resource], "name": span.name, "cat": "work"}
        event |= {"ts": _us(span.start_ps), "dur": _us(span.end_ps - span.start_ps)}
        if span.details:
            event["args"] = dict(span.details)
        events.append(event)
        for number, earlier in enumerate(span.waits_for):
            events += _arrow(spans, index, earlier, number, threads)
    for sample in samples:
        counter = {"ph": "C", "pid": _PROCESS, "name": sample.counter, "ts": _us(sample.time_ps)}
        events.append(counter | {"args": {"value": sample.value}})
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events)
    return '{"displayTimeUnit": "ns", "traceEvents": [\n' + lines + "\n]}\n"


def _arrow(
    spans: Sequence[Span], index: int, earlier: int, number: int, threads: Mapping[str, int]
) -> list[dict[str, Any]]:
    span = spans[index]
    if not 0 <= earlier < len(spans) or earlier == index:
        raise ValueError(f"span {span.name!r} waits for span {earlier}; allowed: another of the {len(spans)}")
    source = spans[earlier]
    if source.end_ps > span.start_ps:
        raise ValueError(
            f"span {span.name!r} starts at {span.start_ps} ps; allowed: not before {source.name!r}, which it"
            f" waits for, ends at {source.end_ps} ps"
        )
    arrow = {"pid": _PROCESS, "name": "waits for", "cat": "wait", "id": f"{index}.{number}"}
    return [
        arrow | {"ph": "s", "tid": threads[source.resource], "ts": _us(source.end_ps)},
        arrow | {"ph": "f", "bp": "e", "tid": threads[span.resource], "ts": _us(span.start_ps)},
    ]


def _metadata(name: str, thread: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if isinstance(value, int) else "name"
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": name, "args": {key: value}}


def _us(time_ps: int) -> float:
    return time_ps / PS_PER_US

"""A timeline of a simulated run, for Perfetto (ui.perfetto.dev) and Chrome's tracing page.

The file is the JSON object form of Google's "Trace Event Format": one complete event (`ph` X) per span, a
thread per resource, a flow arrow (`ph` s and f) from a span to each that waited for it, and a counter track
(`ph` C) per counter. Times are microseconds there; a picosecond is the sixth decimal place.

Events of a thread must not overlap unless one holds the other, else viewers drop them: a resource that
several share at once gets a thread for each. An arrow starts at the event that is open on its thread at that
time, and viewers keep whole nanoseconds, so that it starts `_ARROW_LEAD_PS` before the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PS_PER_US = 1_000_000
_PROCESS = 1
_ARROW_LEAD_PS = 2_000  # start and duration, each cut to nanoseconds, lose less than this together


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
        spans: in any order; resources get threads in the order of their first span, and further threads,
            `link (2)` and so on, for what overlaps.
        samples: of counters, in any order.
        process: heading over the resources.

    Raises:
        ValueError: a span waits for one that is not in the list, or that ends after it starts.

    """
    names, threads = _threads(spans)
    events: list[dict[str, Any]] = [_metadata("process_name", 0, process)]
    events += [_metadata("thread_name", thread, name) for thread, name in enumerate(names, 1)]
    events += [_metadata("thread_sort_index", thread, thread) for thread in range(1, len(names) + 1)]
    for index, span in enumerate(spans):
        event = {"ph": "X", "pid": _PROCESS, "tid": threads[index], "name": span.name, "cat": "work"}
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


def _threads(spans: Sequence[Span]) -> tuple[list[str], list[int]]:
    """Names of the threads, numbered from 1, and the thread of each span."""
    free_ps: dict[str, list[int]] = {span.resource: [] for span in spans}  # of each of a resource's threads
    lanes = [0] * len(spans)
    for index in sorted(range(len(spans)), key=lambda i: (spans[i].start_ps, spans[i].end_ps, i)):
        ends, span = free_ps[spans[index].resource], spans[index]
        lane = next((lane for lane, end_ps in enumerate(ends) if end_ps <= span.start_ps), len(ends))
        ends[lane : lane + 1] = [span.end_ps]
        lanes[index] = lane
    names: list[str] = []
    first: dict[str, int] = {}
    for resource, ends in free_ps.items():
        first[resource] = len(names) + 1
        names += [f"{resource} ({lane + 1})" if lane else resource for lane in range(len(ends))]
    return names, [first[span.resource] + lane for span, lane in zip(spans, lanes, strict=True)]


def _arrow(
    spans: Sequence[Span], index: int, earlier: int, number: int, threads: Sequence[int]
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
    from_ps = max(source.start_ps, source.end_ps - _ARROW_LEAD_PS)
    arrow = {"pid": _PROCESS, "name": "waits for", "cat": "wait", "id": f"{index}.{number}"}
    return [
        arrow | {"ph": "s", "tid": threads[earlier], "ts": _us(from_ps)},
        arrow | {"ph": "f", "bp": "e", "tid": threads[index], "ts": _us(span.start_ps)},
    ]


def _metadata(name: str, thread: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if isinstance(value, int) else "name"
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": name, "args": {key: value}}


def _us(time_ps: int) -> float:
    return time_ps / PS_PER_US

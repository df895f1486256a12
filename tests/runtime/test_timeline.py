"""The timeline file."""

from __future__ import annotations

import json

import pytest

from nearkv.timeline import Sample, Span, chrome_trace

SPANS = [
    Span("smartssd_link", "fetch layer 1", 0, 3_000_000, details={"bytes": 4096}),
    Span("gpu", "layer 0", 500_000, 2_000_001),
    Span("gpu", "layer 1", 3_000_000, 4_000_000, waits_for=(0, 1)),
]


def events(text, phase):
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == phase]


def test_spans_keep_their_times_to_the_picosecond():
    found = events(chrome_trace(SPANS), "X")
    assert [(e["name"], e["ts"], e["dur"]) for e in found] == [
        ("fetch layer 1", 0.0, 3.0),
        ("layer 0", 0.5, 1.500001),
        ("layer 1", 3.0, 1.0),
    ]
    assert found[0]["args"] == {"bytes": 4096}


def test_a_thread_per_resource_with_its_name():
    text = chrome_trace(SPANS, process="hillinfer")
    names = {e["tid"]: e["args"]["name"] for e in events(text, "M") if e["name"] == "thread_name"}
    assert list(names.values()) == ["smartssd_link", "gpu"]
    assert [names[e["tid"]] for e in events(text, "X")] == ["smartssd_link", "gpu", "gpu"]
    assert events(text, "M")[0]["args"] == {"name": "hillinfer"}


def test_arrows_lead_from_what_was_waited_for():
    starts, ends = (events(chrome_trace(SPANS), phase) for phase in "sf")
    assert [(e["id"], e["ts"]) for e in starts] == [("2.0", 2.998), ("2.1", 1.998001)]
    assert [(e["id"], e["ts"], e["tid"]) for e in ends] == [("2.0", 3.0, 2), ("2.1", 3.0, 2)]


def test_an_arrow_starts_within_the_span_that_was_waited_for():
    """At its very end the next one on the thread may be open; nanoseconds are all that viewers keep."""
    spans = [
        Span("gpu", "tiny", 999, 2_500),
        Span("gpu", "next", 2_500, 10_999),
        Span("link", "last", 10_999, 20_000, waits_for=(0, 1)),
    ]
    text = chrome_trace(spans)
    tiny, following = ((e["ts"], e["ts"] + e["dur"]) for e in events(text, "X")[:2])
    starts = [e["ts"] for e in events(text, "s")]
    assert tiny[0] == starts[0] < tiny[1]
    assert int(starts[1] * 1000) < int(following[0] * 1000) + int((following[1] - following[0]) * 1000)


def test_what_overlaps_on_a_resource_gets_a_thread_of_its_own():
    times = [(0, 10), (5, 15), (5, 10), (10, 20), (15, 16), (16, 16)]
    spans = [Span("link", f"move {i}", *each) for i, each in enumerate(times)] + [Span("gpu", "x", 0, 20)]
    text = chrome_trace([*spans, Span("nand", "read", 20, 30, waits_for=(1,))])
    names = {e["tid"]: e["args"]["name"] for e in events(text, "M") if e["name"] == "thread_name"}
    assert list(names.values()) == ["link", "link (2)", "link (3)", "gpu", "nand"]
    assert [names[e["tid"]] for e in events(text, "X")][:6] == [
        "link",
        "link (3)",
        "link (2)",
        "link",
        "link (2)",
        "link (2)",
    ]
    assert [names[e["tid"]] for phase in "sf" for e in events(text, phase)] == ["link (3)", "nand"]


def test_counters_and_repetition():
    samples = [Sample("hot tokens", 0, 1.0), Sample("hot tokens", 2_000_000, 7.5)]
    text = chrome_trace(SPANS, samples)
    assert [(e["ts"], e["args"]["value"]) for e in events(text, "C")] == [(0.0, 1.0), (2.0, 7.5)]
    assert text == chrome_trace(list(SPANS), list(samples))
    assert events(chrome_trace([]), "X") == []


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([Span("gpu", "a", 0, 1, waits_for=(1,))], "'a' waits for span 1; allowed: another of the 1"),
        ([Span("gpu", "a", 0, 1, waits_for=(0,))], "waits for span 0"),
        (
            [Span("gpu", "a", 0, 9), Span("gpu", "b", 5, 9, waits_for=(0,))],
            "'b' starts at 5 ps; allowed: not",
        ),
    ],
)
def test_a_wait_that_cannot_be_is_refused(spans, message):
    with pytest.raises(ValueError, match=message):
        chrome_trace(spans)


@pytest.mark.parametrize("times", [(2, 1), (-1, 0)])
def test_a_span_cannot_end_before_it_starts(times):
    with pytest.raises(ValueError, match="allowed: 0 <= start <= end"):
        Span("gpu", "x", *times)

"""One self-contained HTML page of a run: plots embedded, configuration, recall table, limits."""

from __future__ import annotations

import base64
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from nearkv.experiments.compare import Comparison
from nearkv.experiments.records import RunResult
from nearkv.experiments.summary import PS_PER_US

LIMITS = (
    "Time is that of the device and its link alone, as the transport simulates them: scoring jobs, rows read,"
    " blocks written. It is a serial sum; nothing overlaps in this version.",
    "On the device's clock the host takes no time: attention, softmax, selection and the scores of hot tokens"
    " are free, and so are reads of the hot pool. A run with everything hot therefore shows no time at all.",
    "The cold store lies in the device's own memory. Flash behind it is not modelled.",
    "Streams run one after the other on one device; a decoded token costs the sum of its streams.",
    "On a described machine, where one is given, everything has its time: every so many-th step is scheduled"
    " there with the shares that the trace's streams showed, as if all of the model's heads were like them."
    " The selection waits for the layer's own query; nothing is scored ahead.",
    "Quality is per layer, on the trace's own queries: an error in one layer does not reach the next.",
    "Prefill writes all full blocks once; its cost stands by itself and is in no per-token figure.",
    "Recall takes the device's score wherever it scored a token, and the host's exact one elsewhere: it tells"
    " about the scores, not about the policy, and is higher where more tokens are hot.",
    "No physical card was involved.",
)

COLUMNS = {
    "all": "quality: mean of the streams; the rest: their sum, which is what one decoded token costs",
    "hit rate": "share of the selected tokens that were in the hot pool",
    "mass kept": "true attention on the tokens attended, of 1",
    "output error": "relative L2 error of the attention output against full attention",
    "fetched tokens": "selected tokens that were not hot: their rows were read from the device for the step",
    "promoted, demoted": "tokens that became hot, or lost their hot copy, after the step",
    "KB": "1,000 bytes of payload",
    "device cycles": "clock cycles of the scoring jobs",
    "time": "simulated time of device and link; the host takes none",
}

PLOT_TITLES = {
    "quality.png": "Hit rate and attention mass",
    "recall.png": "Recall of the scores",
    "occupancy.png": "Tier occupancy",
    "traffic.png": "Traffic",
    "time.png": "Time of device and link",
    "machine.png": "Time on the machine",
}


def report(
    result: RunResult, summary: dict[str, Any], images: dict[str, bytes], comparison: Comparison | None
) -> str:
    """The page as HTML text.

    Args:
        result: the run.
        summary: `summarise(result)`, with `machine` where steps were timed on one.
        images: `plots(result)`.
        comparison: with a second transport, if there was one.

    """
    environment = Environment(
        loader=PackageLoader("nearkv.experiments"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.jinja").render(
        summary=summary,
        config=summary["config"],
        resolved=result.config.to_yaml(),
        heads=len(result.records[0].recall),
        images={
            PLOT_TITLES[name]: base64.b64encode(content).decode("ascii") for name, content in images.items()
        },
        comparison=comparison,
        limits=LIMITS,
        columns=COLUMNS,
        ps_per_us=PS_PER_US,
        machine=summary.get("machine"),
    )

"""Child process of `runner`: one stage of cocotb's own runner, which takes its settings from the process."""

from __future__ import annotations

import json
import sys

from cocotb_tools.runner import get_runner


def main() -> None:
    """Build or test, as the JSON object in the first argument says."""
    job = json.loads(sys.argv[1])
    runner = get_runner(job["simulator"])
    arguments = job["arguments"]
    arguments["timescale"] = tuple(arguments["timescale"])
    (runner.build if job["stage"] == "build" else runner.test)(**arguments)


if __name__ == "__main__":
    main()

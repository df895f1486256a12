"""Child process of `runner`: one stage of cocotb's own runner, which takes its settings from the process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time

from cocotb_tools.runner import get_runner

_WATCH_SECONDS = 1.0


def end_with(parent: int, orphan_dir: str | None = None) -> None:
    """End this process's group, with all it started, once its parent has gone: a build takes minutes.

    Args:
        parent: process that is watched.
        orphan_dir: folder of the parent's, which is removed then; None for none.

    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        remove_orphan(parent, orphan_dir)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def remove_orphan(parent: int, orphan_dir: str | None) -> None:
    """Remove the folder if the parent has gone."""
    if orphan_dir is not None and os.getppid() != parent:
        shutil.rmtree(orphan_dir, ignore_errors=True)


def main() -> None:
    """Build or test, as the JSON object in the first argument says."""
    job = json.loads(sys.argv[1])
    end_with(job["parent"], job["orphan_dir"])
    runner = get_runner(job["simulator"])
    arguments = job["arguments"]
    arguments["timescale"] = tuple(arguments["timescale"])
    try:
        (runner.build if job["stage"] == "build" else runner.test)(**arguments)
    finally:
        # A simulation whose other end has gone may end before the watch looks, and writes its results first.
        remove_orphan(job["parent"], job["orphan_dir"])


if __name__ == "__main__":
    main()

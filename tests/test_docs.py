"""What the documents say exists, runs and is current."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from nearkv_hdl.verilog import to_rtlil
from nearkv_sim.synthesis.resources import Resources

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
AREA = re.compile(r" [\d.]+ / [\d.]+ / [\d.]+ / [\d.]+ ")  # measured by `make docs` alone

GENERATE = runpy.run_path(str(ROOT / "docs" / "generate.py"))


def no_area(component, _family):
    to_rtlil(component)  # an instance that is never elaborated would be reported as a mistake
    return Resources()


@pytest.mark.parametrize("name", GENERATE["PAGES"])
def test_generated_pages_are_current(name):
    render = GENERATE["PAGES"][name]
    fresh = render(no_area) if name == "components.md" else render()
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert AREA.sub(" area ", written) == AREA.sub(" area ", fresh), "run `make docs`"


def test_readme_examples_run(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[\d.]+ µs, \d+ bytes read\n", done.stdout)


def test_the_policy_in_the_documents_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "experiments.md").read_text(), re.DOTALL)
    (tmp_path / "my_module.py").write_text(example)
    words = ["policy.name=my_module:MyPolicy", "policy.options.decay=0.95", "streams=[L2.H0]", "steps=2"]
    done = subprocess.run(
        [sys.executable, "-m", "nearkv.cli", "run", ROOT / "configs" / "demo.yaml", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("my_module:MyPolicy, score_all, int8: 2 steps of 1 streams")


def test_readme_commands_exist():
    installed = {point.name for point in entry_points(group="nearkv.commands")}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
    assert set(re.findall(r"^nearkv (\w+)", shell, re.MULTILINE)) <= installed
    assert set(re.findall(r"\bmake ([a-z-]+)", README + shell)) <= targets
    for path in re.findall(r"\b(?:configs|data)/[\w./-]+", shell):
        assert (ROOT / path).exists(), path

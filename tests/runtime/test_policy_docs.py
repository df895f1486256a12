"""docs/policies.md says what is installed, with what options, and how fast it is."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from nearkv.policy.registry import default_options, installed_policies

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
POLICIES = installed_policies()
LISTED = {
    cells[0].strip(" `"): cells
    for cells in (line.split("|")[1:-1] for line in PAGE.splitlines() if re.match(r"\| `\w+` \|", line))
    if len(cells) == 6
}
TIMED = set(re.findall(r"^\| `(\w+)` \| [\d.]+ \| 0\.\d+ \|$", PAGE, re.MULTILINE))


def test_the_page_lists_what_is_installed():
    assert LISTED.keys() == POLICIES.keys() == TIMED


@pytest.mark.parametrize("name", POLICIES)
def test_the_page_gives_a_policys_options_and_what_it_knows(name):
    *_, knows, options = LISTED[name]
    assert dict(re.findall(r"`(\w+)` \(([^)]+)\)", options)) == {
        key: str(value) for key, value in default_options(POLICIES[name]).items()
    }
    assert ("future" in knows) == POLICIES[name].needs_future
    assert ("keys" in knows) == POLICIES[name].needs_keys


def test_the_example_on_the_page_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "docs/policies.md", "exec"), {})
    assert printed.getvalue().splitlines() == ["0 [1]", "0 [1 2]", "0 [1 2 3]", "1 [1 2 3]", "0 [1 3 4]"]

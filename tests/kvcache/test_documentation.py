"""docs/kv-cache.md: its example runs, and every guarantee names tests that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kv-cache.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"1001 tokens, 2 rows loaded, \d+ µs\n", done.stdout), done.stdout


def test_every_guarantee_names_tests_that_exist():
    (section,) = re.findall(r"## Guarantees\n(.*?)\n## ", PAGE, re.DOTALL)
    guarantees = re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]
    assert len(guarantees) >= 15
    written = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", written, re.MULTILINE))
    for guarantee in guarantees:
        named = set(re.findall(r"`(test_\w+)`", guarantee))
        assert named, guarantee
        assert named <= defined

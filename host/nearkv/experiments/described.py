"""What the attributes of a dataclass mean, from the one place that says it: its docstring."""

from __future__ import annotations

import inspect
import re


def attributes(cls: type) -> dict[str, str]:
    """The `Attributes:` of a docstring by name, each in one line; empty where docstrings are stripped."""
    section = (inspect.getdoc(cls) or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}

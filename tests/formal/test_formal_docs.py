"""docs/formal.md names every proof, and no proof that is gone."""

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "formal.md"
FILES = sorted(path.name for path in HERE.glob("test_*.py"))


def sections():
    """Text under each heading that links a file here, by the file's name."""
    parts = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    found = [(re.match(r"\[(test_\w+\.py)\]", part), part) for part in parts]
    return {match[1]: text for match, text in found if match}


def test_every_file_has_a_section():
    assert sorted(sections()) == FILES


@pytest.mark.parametrize("name", FILES)
def test_the_page_names_every_test_of_its_file(name):
    tests = re.findall(r"^def (test_\w+)", (HERE / name).read_text(), flags=re.MULTILINE)
    named = re.findall(r"`(test_\w+)`", sections()[name])
    assert sorted(named) == sorted(tests)

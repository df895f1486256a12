"""Folders that are written whole or not at all, and what is refused before the work."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from nearkv.result_folder import check_new_folder, write_new_folder

FILES = {"a.txt": b"a", "b.txt": b"b"}


def test_the_folder_holds_the_files_and_nothing_lies_beside_it(tmp_path):
    folder = tmp_path / "new" / "run"
    check_new_folder(folder)
    assert list(tmp_path.iterdir()) == []
    write_new_folder(folder, FILES)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert list(tmp_path.rglob(".*")) == []
    plain = tmp_path / "plain"
    plain.mkdir()
    assert folder.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("name", ["file", "folder", "dangling"])
def test_what_exists_is_refused(name, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"{name} exists; allowed: a new folder, results are never overw"):
        check_new_folder(tmp_path / name)


@pytest.mark.parametrize("name", ["file", "dangling"])
@pytest.mark.parametrize("below", ["run", "a/b/run"])
def test_a_path_through_something_else_is_refused(name, below, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"{name} is not a folder"):
        check_new_folder(tmp_path / name / below)


def test_a_place_that_takes_no_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    def fail(**_):
        raise OSError("Read-only file system")

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    with pytest.raises(OSError, match="Read-only file system"):
        check_new_folder(tmp_path / "run")


def test_the_longest_name_is_written(tmp_path):
    write_new_folder(tmp_path / ("n" * 255), FILES)
    with pytest.raises(OSError, match="File name too long"):
        check_new_folder(tmp_path / ("n" * 256))


def test_the_second_of_two_writers_is_refused_and_leaves_the_first(tmp_path, monkeypatch):
    """Both have found the place free."""
    write = Path.write_bytes

    def write_late(self, content):
        if not (tmp_path / "run").exists():
            monkeypatch.setattr(Path, "write_bytes", write)
            write_new_folder(tmp_path / "run", {"a.txt": b"first"})
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", write_late)
    with pytest.raises(OSError, match="not empty"):
        write_new_folder(tmp_path / "run", FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / "a.txt").read_bytes() == b"first"

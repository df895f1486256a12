"""Compilation of C++ into shared libraries, cached by content.

An entry is one file, `<name>-<digest>.so`: the library followed by the SHA-256 of itself, so that a damaged
entry is told from a good one before it is loaded (loading a truncated library can kill the process).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nearkv_sim.cosim.export import cxxrtl_include_dir
from nearkv_sim.cosim.result import CosimBuildError

_BASE_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=default", "-DNDEBUG")
_TRAILER_BYTES = hashlib.sha256().digest_size
_MESSAGE_LINES = 20


def cache_dir() -> Path:
    """Folder of the cache: $NEARKV_CACHE, else $XDG_CACHE_HOME/nearkv, else ~/.cache/nearkv."""
    own = os.environ.get("NEARKV_CACHE")
    if own:
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "nearkv"


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler with its flags; `identity` changes with its version and with the CPU it compiles for."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    identity: str


def find_compiler() -> Compiler:
    """The compiler that $CXX names, g++ without it.

    Raises FileNotFoundError if there is none, CosimBuildError if it does not work.
    """
    return _probe(os.environ.get("CXX") or "g++")


@cache
def _probe(cxx: str) -> Compiler:
    command = tuple(shlex.split(cxx))
    # -march=native is safe to cache because the predefined macros name the compiler's version and every
    # instruction set extension it will use; a compiler that does not know the flag goes without.
    message = ""
    for flags in ((*_BASE_FLAGS, "-march=native"), _BASE_FLAGS):
        try:
            done = subprocess.run(
                [*command, *flags, "-dM", "-E", "-x", "c++", os.devnull],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except FileNotFoundError:
            raise FileNotFoundError(
                f"C++ compiler is {cxx!r}, which is not installed; allowed: $CXX set to g++ or clang++"
            ) from None
        if done.returncode == 0:
            identity = hashlib.sha256("\0".join([*command, *flags, done.stdout]).encode()).hexdigest()
            return Compiler(command, flags, identity)
        message = done.stderr
    raise CosimBuildError(f"C++ compiler {cxx!r} does not work:\n{_tail(message)}")


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_MESSAGE_LINES:])


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes; it ends with its holder. The file stays: removing it would race."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _is_intact(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(data[:-_TRAILER_BYTES]).digest() == data[-_TRAILER_BYTES:]


def build_library(name: str, digest: str, render: Callable[[], str]) -> tuple[Path, bool]:
    """Path of the shared library, and whether it came from the cache.

    Args:
        name: leads the file name; for people who look into the cache.
        digest: hash of everything that `render` depends on.
        render: returns the C++ source; called only when there is no intact entry.

    Two processes that want the same library compile it once. Raises CosimBuildError with the compiler's
    message, OSError if the cache cannot be written.

    """
    compiler = find_compiler()
    key = hashlib.sha256(f"{digest}\0{compiler.identity}".encode()).hexdigest()[:32]
    folder = cache_dir() / "cosim"
    path = folder / f"{name}-{key}.so"
    if _is_intact(path):
        return path, True
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(path.with_suffix(".lock")):
        if _is_intact(path):
            return path, True
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as work:
            library = _compile(compiler, render(), Path(work))
            with library.open("ab") as handle:
                handle.write(hashlib.sha256(library.read_bytes()).digest())
            library.replace(path)
    return path, False


def _compile(compiler: Compiler, source: str, work: Path) -> Path:
    cpp, library = work / "component.cpp", work / "component.so"
    cpp.write_text(source, encoding="utf-8")
    done = subprocess.run(
        [*compiler.command, *compiler.flags, f"-I{cxxrtl_include_dir()}", "-o", str(library), str(cpp)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise CosimBuildError(
            f"{shlex.join(compiler.command)} failed with code {done.returncode}:\n{_tail(done.stderr)}"
        )
    return library

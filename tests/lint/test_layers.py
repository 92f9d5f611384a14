"""References point downward and never in a circle; losses know only tensors; checking needs no torch.

A reference is an import, or the name of a module as text: "rlhf_lab.module" or "rlhf_lab.module:name".
"""

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
    {"losses", "statistics"},
    {"environments"},
    {"data"},
    {"models", "trackers"},
    {"training"},
    {"sampling"},
    {"monitoring"},
    {"rewards"},
    {"evaluations"},
    {"algorithms"},
    {"results"},
    {"stages"},
    {"figures", "memory"},
    {"studies"},
    {"reports"},
    {"sweeps", "doctor", "gates", "interop"},
    {"cli"},
    {"packs"},
    {"main", "lab"},
    {"notebook"},
    {"__main__"},
)
"""Packages and top-level modules of rlhf_lab, lowest first; those of one layer may refer to each other."""
UPWARD = {
    ("core.packs", "lab"): "finds the core's own contributions, as it finds those of every pack",
    ("core.packs", "packs.__init__"): "lists the packs that come with the lab",
    ("stages.execute", "memory.neutral"): "makes a stage fit its device; plans of memory are made from stages",
}
"""(module, module of a higher layer that it names as text) → why it is not a registration in a `Pack` instead."""
NO_MODULES = {"rlhf_lab.plugins"}
"""Texts that resemble modules: groups of entry points."""
REFERENCE = re.compile(r"(rlhf_lab(?:\.\w+)+)(?::\w+)?(?: after \w+)?")
PACKS_BELOW = {"agents": {"code", "judging"}}
"""Pack → the packs that it may import. A pack that is not listed imports none."""
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


@cache
def references(module: str) -> frozenset[str]:
    """Modules of the package that a module names as text, such as "rlhf_lab.rewards.saved:load_reward"."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return texts_naming_modules(tree, module)


def texts_naming_modules(tree: ast.AST, module: str) -> frozenset[str]:
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    matches = [match for text in texts if text not in NO_MODULES and (match := REFERENCE.fullmatch(text))]
    names = {match[0]: _name(match[1]) for match in matches}
    unknown = sorted(text for text, name in names.items() if name not in MODULES)
    assert not unknown, f"{module} names modules that do not exist: {', '.join(unknown)}"
    parts = [node.values[0] for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts += [node.left for node in ast.walk(tree) if isinstance(node, ast.BinOp)]
    texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    assembled = [text for text in texts if re.fullmatch(r"rlhf_lab\.[\w.]*", text)]
    assert not assembled, f"{module} puts a module's name together: {', '.join(assembled)}; write it as one text"
    return frozenset(names.values())


def _name(dotted: str) -> str:
    name = dotted.removeprefix("rlhf_lab.")
    return f"{name}.__init__" if f"{name}.__init__" in MODULES else name


def top(module: str) -> str:
    return module.partition(".")[0]


def pack_of(module: str) -> str | None:
    """The pack that a module belongs to, such as "speech"; None for a module of the core."""
    parts = module.split(".")
    return parts[1] if parts[0] == "packs" and len(parts) > 2 else None


def package(module: str) -> str:
    """The core's package that a module lies in, or its pack: "packs.speech"."""
    pack = pack_of(module)
    return f"packs.{pack}" if pack else top(module)


def test_the_core_imports_no_pack():
    """Nor does it name one: what a pack adds is registered by its `PACK`."""
    named = [
        f"{module} names {found}"
        for module, path in MODULES.items()
        if top(module) != "packs"
        for found in re.findall(r"\bpacks[./](?:agents|code|judging|speech)\b", path.read_text(encoding="utf-8"))
    ]
    assert not named, "\n".join(named)


def test_packs_import_only_the_packs_below_them():
    wrong = []
    for module in MODULES:
        importer = pack_of(module)
        if importer is None:
            continue
        allowed = PACKS_BELOW.get(importer, set()) | {importer, None}
        wrong += [f"{module} imports {target}" for target in imports(module) if pack_of(target) not in allowed]
    assert not wrong, "\n".join(wrong)


def test_the_walk_sees_the_package():
    assert len(MODULES) > 60
    assert "training.run" in imports("rewards.learned.bt")
    assert "stages.execute" in imports("main") | imports("stages.artifacts")  # imported inside a function


def test_every_module_has_a_layer():
    unplaced = {top(module) for module in MODULES} - LEVEL.keys() - {"__init__"}
    assert not unplaced, f"name the layer of {sorted(unplaced)} in LAYERS"


def test_every_layer_is_a_package_or_a_module():
    gone = LEVEL.keys() - {top(module) for module in MODULES}
    assert not gone, f"remove {sorted(gone)} from LAYERS: there is no such package"


def is_upward(module: str, target: str) -> bool:
    return top(module) in LEVEL and LEVEL[top(target)] > LEVEL[top(module)]


def test_imports_point_downward():
    upward = [
        f"{module} (layer {LEVEL[top(module)]}) imports {target} (layer {LEVEL[top(target)]})"
        for module in MODULES
        for target in imports(module)
        if is_upward(module, target)
    ]
    assert not upward, "\n".join(upward)


def test_text_names_modules_of_lower_layers():
    """A lower layer takes things of a higher one from a `Pack` (`rlhf_lab/lab.py`), or UPWARD lists the name."""
    upward = {(module, target) for module in MODULES for target in references(module) if is_upward(module, target)}
    unlisted = [f"{module} names {target}, which lies above it" for module, target in sorted(upward - UPWARD.keys())]
    assert not unlisted, "\n".join(unlisted)
    stale = [f"UPWARD lists {module} → {target}, which is not there" for module, target in UPWARD.keys() - upward]
    assert not stale, "\n".join(stale)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('RUN = "rlhf_lab.training.run"', {"training.run"}),
        ('import_module("rlhf_lab.training").x', {"training.__init__"}),
        ('"rlhf_lab.reports.sections:givers"', {"reports.sections"}),
        ('("rlhf_lab.reports.sections:givers after gains",)', {"reports.sections"}),
        ('"""See `rlhf_lab.training.run` and rlhf_lab.training.loop."""', set()),
        ('entry_points(group="rlhf_lab.plugins")', set()),
    ],
)
def test_the_walk_sees_text(text, found):
    assert texts_naming_modules(ast.parse(text), "m") == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"rlhf_lab.training.walk:go"', "do not exist: rlhf_lab.training.walk:go"),
        ('import_module(f"rlhf_lab.{name}")', "puts a module's name together"),
        ('import_module("rlhf_lab.training." + name)', "puts a module's name together"),
    ],
)
def test_a_text_that_names_no_module_is_refused(text, problem):
    with pytest.raises(AssertionError, match=problem):
        texts_naming_modules(ast.parse(text), "m")


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


def edges(module: str) -> set[str]:
    """Modules that a module imports or names, without the names that UPWARD allows."""
    return imports(module) | {target for target in references(module) if (module, target) not in UPWARD}


def test_no_package_refers_to_one_that_refers_to_it():
    """Modules at the top of the lab count as packages."""
    packages: dict[str, set[str]] = {package(module): set() for module in MODULES}
    for module in MODULES:
        packages[package(module)] |= {package(target) for target in edges(module)} - {package(module)}
    fail_at_circle(packages)


def capacity(module: str) -> str:
    """The sub-package of a pack that a module lies in, or the module itself: "packs.speech.world"."""
    return ".".join(module.split(".")[:3])


@pytest.mark.parametrize("pack", sorted({package(m) for m in MODULES if m.startswith("packs.") and m.count(".") > 1}))
def test_no_room_of_a_pack_refers_to_one_that_refers_to_it(pack):
    """The pack's `__init__.py` names the contributions of all its sub-packages."""
    modules = [module for module in MODULES if package(module) == pack and module != f"{pack}.__init__"]
    rooms: dict[str, set[str]] = {capacity(module): set() for module in modules}
    assert len(rooms) > 2
    for module in modules:
        targets = {capacity(target) for target in edges(module) if target in modules}
        rooms[capacity(module)] |= targets - {capacity(module)}
    fail_at_circle(rooms)


@pytest.mark.parametrize("package", ["losses", "statistics"])
def test_mathematics_knows_only_types_and_errors(package):
    allowed = {"core.types", "core.errors"}
    modules = [module for module in MODULES if top(module) == package]
    assert len(modules) >= 5
    for module in modules:
        others = {target for target in imports(module) if top(target) != package}
        assert others <= allowed, module


def test_checking_a_command_imports_no_torch():
    modules = registry.settings_modules()
    assert len(modules) > 10
    code = (
        f"import sys, importlib; [importlib.import_module(m) for m in {modules!r}]\n"
        "from rlhf_lab import main\n"
        "from rlhf_lab.config import command_line, registry\n"
        "from rlhf_lab.stages import artifacts\n"
        "command = command_line.check_command(['+recipe=study/buffers'])\n"
        "artifacts.plan(command.configs[0], 'study/buffers')\n"
        "heavy = {'torch', 'transformers', 'scipy', 'pandas', 'datasets', 'trl', 'altair', 'vl_convert'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

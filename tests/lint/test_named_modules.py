"""Every module of the package is named by a test: what nobody names, nobody misses when it breaks."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import rlhf_lab
from rlhf_lab.config import registry

TESTS = Path(__file__).resolve().parents[1]
PACKAGE = Path(rlhf_lab.__file__).resolve().parent
WALKED = ("__init__", "__main__", "metrics")
"""Modules that tests reach without their names: `python -m rlhf_lab`, and declarations, which test_metrics.py walks."""


def modules() -> set[str]:
    """Dotted names of the package's modules but those of `WALKED`."""
    files = [path for path in PACKAGE.rglob("*.py") if path.stem not in WALKED]
    return {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in files}


def implementations() -> dict[str, str]:
    """Return the map from the choice of a command, such as "reward=length", to the module that implements it."""
    return {
        f"{group}={kind}": registry.implementation(group, kind)
        for group in registry.groups()
        for kind in registry.kinds(group)
    }


def named_in(text: str, chosen: dict[str, str]) -> set[str]:
    """Modules that a test's text names: imported themselves or by what they define, written, or chosen by a setting."""
    named: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rlhf_lab":
            named |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
            named |= {home(str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for dotted in re.findall(r"\brlhf_lab(?:\.\w+)+", node.value):
                parts = dotted.split(".")
                named |= {".".join(parts[:length]) for length in range(2, len(parts) + 1)}
            for file in re.findall(r"\brlhf_lab/[\w/]+(?=\.py\b)", node.value):
                named.add(file.replace("/", "."))
            named |= {chosen[setting] for setting in settings_of(node.value) if setting in chosen}
    return named


def home(module: str, name: str) -> str:
    """The module that defines what a package exports: `rlhf_lab.notebook` of `rlhf_lab.run`; "" for a plain module."""
    if not (PACKAGE.parent / module.replace(".", "/")).is_dir():
        return ""
    return str(getattr(getattr(import_module(module), name, None), "__module__", ""))


def settings_of(text: str) -> set[str]:
    """The choices that an override makes: "reward=[bt,length]" → "reward=bt", "reward=length"."""
    group, _, names = text.rpartition("=")
    return {f"{group}={name}" for name in names.strip("[]").split(",")}


def test_every_module_is_named_by_a_test() -> None:
    chosen = implementations()
    named: set[str] = set()
    for path in TESTS.rglob("*.py"):
        named |= named_in(path.read_text(encoding="utf-8"), chosen)
    unnamed = sorted(modules() - named)
    assert not unnamed, f"no test names {', '.join(unnamed)}: write one that fails when the module is wrong"


def test_a_name_is_found_wherever_a_test_writes_it() -> None:
    chosen = {"reward=length": "rlhf_lab.rewards.rules.length"}
    text = (
        "from rlhf_lab import run\nimport rlhf_lab.core.ranks\n"
        "plan('reward=[bt,length]', 'rlhf_lab.models.build.x', 'rlhf_lab/losses/policy.py')"
    )
    found = named_in(text, chosen)
    assert {
        "rlhf_lab.notebook",
        "rlhf_lab.core.ranks",
        "rlhf_lab.models.build",
        "rlhf_lab.losses.policy",
        chosen["reward=length"],
    } <= found
    assert "rlhf_lab.core.files" not in found
    assert modules() > {"rlhf_lab.core.files", "rlhf_lab.training.loop"}

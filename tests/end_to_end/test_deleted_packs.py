"""Without its packs the checkout is whole: `tests/delete_packs.py` deletes them from a copy, leaf by leaf."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IN_ORDER = ("speech", "agents", "code", "judging")
"""Leaves first: agents imports code and judging."""
LEFT_BEHIND = (".git", ".venv", "outputs", "build", "dist", "__pycache__", ".*_cache", "*.egg-info")
PACKS = sorted(file.parent.name for file in (ROOT / "rlhf_lab" / "packs").glob("*/__init__.py"))
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sorted(IN_ORDER) != PACKS, reason="packs were deleted")]

MODULES = """
import importlib, pkgutil
import rlhf_lab
for module in pkgutil.walk_packages(rlhf_lab.__path__, "rlhf_lab."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith("rlhf_lab"), (module.name, error)
"""
RECIPES = """
from rlhf_lab.config import command_line, inventory
from rlhf_lab.stages import artifacts
for recipe in inventory.recipes():
    config = command_line.check_command([f"+recipe={recipe}", "size=smoke"]).configs[0]
    assert artifacts.plan(config, recipe).key
print(*inventory.recipes())
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the checkout, which the tests of this module take apart one after the other."""
    directory = tmp_path_factory.mktemp("deleted") / "checkout"
    shutil.copytree(ROOT, directory, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    return directory


def run(checkout: Path, *arguments: str, seconds: float = 600) -> str:
    """Return the output of Python in the copy. Fail unless its exit status is 0."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    return done.stdout


def test_a_pack_that_another_imports_is_not_deleted_without_it(checkout):
    command = [sys.executable, "tests/delete_packs.py", "judging"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "agents imports judging: delete agents with it" in done.stderr
    assert (checkout / "rlhf_lab" / "packs" / "judging").is_dir()


@pytest.mark.parametrize("name", IN_ORDER)
def test_the_rest_imports_composes_and_has_no_dead_link(checkout, name):
    """Packs deleted by the tests before this one stay deleted."""
    run(checkout, "tests/delete_packs.py", name)
    assert not [path for path in (*checkout.glob(f"*/{name}"), *checkout.glob(f"*/*/{name}")) if path.is_dir()]
    assert f"packs.{name}" not in (checkout / "pyproject.toml").read_text(encoding="utf-8")
    if name == IN_ORDER[-1]:  # a minute; which pack may import which other one is a rule of tests/lint/test_layers.py
        run(checkout, "-c", MODULES)
        run(checkout, "-m", "pytest", "-q", *(f"tests/lint/test_{name}.py" for name in ("layers", "layout", "pages")))
        assert {"dpo", "ppo", "study/buffers"} <= {*run(checkout, "-c", RECIPES).split()}
        assert "clip" in run(checkout, "-m", "rlhf_lab", "explain", "algorithm=ppo")
        run(checkout, "-m", "pytest", "-q", "tests", "--collect-only")


@pytest.mark.long
@pytest.mark.parametrize("tests", ["tests/lint", "tests/config", "tests/unit"])
def test_the_tests_of_the_core_pass_without_packs(checkout, tests):
    assert not list((checkout / "rlhf_lab" / "packs").glob("*/__init__.py"))
    run(checkout, "-m", "pytest", "-q", tests, "-m", "not slow", seconds=3000)

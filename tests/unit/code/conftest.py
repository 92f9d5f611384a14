"""Fixtures of the sandbox tests: a sandbox at the best level, and an ordinary user to run as."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlhf_lab
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox, why_not
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

PACKAGE = Path(rlhf_lab.__file__).resolve().parents[1]
NOBODY = 54321
BEST = "namespaces+seccomp"
IMPORTS = """
import dataclasses, json
from rlhf_lab.packs.code.sandbox.settings import Sandboxing
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox, why_not
"""


@pytest.fixture(scope="session")
def best() -> Sandbox:
    """A sandbox with the limits of the probes."""
    if reason := why_not(BEST):
        pytest.skip(f"{BEST} does not work here: {reason}")
    return Sandbox(Sandboxing(level=BEST, timeout_s=5.0, memory_mib=128, disk_mib=4, processes=8))


def is_open_to_all(path: Path) -> bool:
    """Return True if any user can reach and read a file or directory."""
    readable = bool(path.stat().st_mode & 0o004)
    return readable and all(parent.stat().st_mode & 0o001 for parent in path.parents)


@pytest.fixture(scope="session")
def as_ordinary_user() -> Callable[[str], Any]:
    """Runs Python after IMPORTS as a user without rights, in another process; gives back the JSON that it prints."""
    if os.geteuid() != 0:
        python, user = sys.executable, None  # this user is ordinary
    else:
        candidates = [Path(os.path.realpath(sys.executable)), Path(shutil.which("python3", path="/usr/bin") or "/none")]
        usable = [path for path in candidates if path.is_file() and is_open_to_all(path)]
        if not usable or not is_open_to_all(PACKAGE / "rlhf_lab"):
            pytest.skip("an ordinary user can read neither this interpreter nor /usr/bin/python3, or not the package")
        python, user = str(usable[0]), NOBODY

    def run(code: str) -> Any:
        done = subprocess.run(
            [python, "-B", "-c", IMPORTS + code],
            env={"PYTHONPATH": str(PACKAGE), "HOME": "/var/tmp"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=300,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run

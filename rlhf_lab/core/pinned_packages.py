"""Packages that cannot share a process with the lab's own: a folder of pinned ones, made once, for a process beside it.

The folder is complete or absent. A marker in it says which pins it was made from: it is made once, and again after the
pins change. What is installed how is the business of those who use it: `packs/speech/parler/environment.py` and
`sampling/vllm/environment.py`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from rlhf_lab.core.errors import LabError

MARKER = "pins.sha256"


class EnvironmentMissing(LabError, RuntimeError):
    """An environment of pinned packages is not there or cannot be made. Says why, and the command that makes it."""


@dataclass(frozen=True)
class Environment:
    """An environment that is ready.

    Attributes:
        folder: of its packages.
        was_made: by this call; False if it was there.
        seconds: that making it took, 0 if it was there.
        megabytes: on the disk.
    """

    folder: Path
    was_made: bool
    seconds: float
    megabytes: float


@dataclass(frozen=True)
class PinnedPackages:
    """An environment that can be made.

    Attributes:
        title: what is in it, for messages.
        name: of its folder in the user's cache.
        variable: of the process environment; names another folder.
        requirements: file of pinned packages.
        set_up_command: what a user types to make it.
    """

    title: str
    name: str
    variable: str
    requirements: Path
    set_up_command: str

    def pins(self) -> str:
        """A digest of what the environment is made from: the pinned packages and the version of Python."""
        lines = self.requirements.read_text(encoding="utf-8").splitlines()
        packages = sorted(line for line in lines if line and not line.startswith("#"))
        interpreter = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
        return hashlib.sha256("\n".join([interpreter, *packages]).encode()).hexdigest()

    def default_folder(self) -> Path:
        """What `variable` names, or a folder of the user's cache named after the pins."""
        if named := os.environ.get(self.variable):
            return Path(named)
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return caches / "rlhf_lab" / f"{self.name}-{self.pins()[:12]}"

    def why_not_ready(self, folder: Path) -> str:
        """What is wrong with the environment in a folder; empty if it can be used."""
        marker = folder / MARKER
        if not marker.is_file():
            return f"there is no environment of {self.title} in {folder}; run: {self.set_up_command}"
        if marker.read_text(encoding="ascii").strip() != self.pins():
            why = "was made from other pins or for another Python"
            return f"the environment in {folder} {why}; run: {self.set_up_command}"
        return ""

    def ready(self, folder: Path | None = None) -> Path:
        """The folder of an environment that can be used. Raises EnvironmentMissing, which says how to make it."""
        folder = folder or self.default_folder()
        if reason := self.why_not_ready(folder):
            raise EnvironmentMissing(reason)
        return folder

    def set_up(self, install: Callable[[Path], None], folder: Path | None = None) -> Environment:
        """Make the environment unless it is there already.

        Raises EnvironmentMissing if it cannot be made: without the packages' index, for instance.

        Args:
            install: fills an empty folder, and tries what it has installed.
            folder: where; None is `default_folder()`. What is in it is replaced.
        """
        folder = (folder or self.default_folder()).absolute()
        if folder.exists() and not (folder / MARKER).is_file() and any(folder.iterdir()):
            raise EnvironmentMissing(
                f"{folder} has files that no environment of {self.title} made; name another folder"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not self.why_not_ready(folder):
                return Environment(folder, False, 0.0, _megabytes(folder))
            started = time.monotonic()
            made = folder.with_name(f".{folder.name}.part")
            shutil.rmtree(made, ignore_errors=True)
            try:
                install(made)
                (made / MARKER).write_text(self.pins(), encoding="ascii")
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
            finally:
                shutil.rmtree(made, ignore_errors=True)
            return Environment(folder, True, time.monotonic() - started, _megabytes(folder))

    def pip_install(self, python: str, options: Sequence[str], timeout_s: float) -> None:
        """Install what is pinned with the pip of an interpreter; `--no-deps` among the options leaves out all else."""
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-compile"]
        command = [python, "-m", "pip", "install", *quiet, *options, "--requirement", str(self.requirements)]
        self.run_step("pip install", command, dict(os.environ), timeout_s)

    def run_step(self, what: str, command: Sequence[str], variables: Mapping[str, str], timeout_s: float) -> None:
        """Run a command that is part of making the environment. Raises EnvironmentMissing if it fails."""
        try:
            done = subprocess.run(
                command,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            message = f"the environment of {self.title} was not made: {what} took more than {timeout_s:g} s"
            raise EnvironmentMissing(f"{message}; {self.set_up_command} timeout_s=… waits longer") from None
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            reason = lines[-1].strip() if lines else f"exit status {done.returncode}"
            raise EnvironmentMissing(f"the environment of {self.title} was not made: {what} failed: {reason}")


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6

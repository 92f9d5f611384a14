"""Pinned packages that cannot share a process with rlhf_lab: an environment for a separate process, created once.

The environment's directory is complete or absent. A marker file in it records the pins it was created from; the
environment is created again after the pins change. Callers decide what is installed and how, e.g.
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
"""File of an environment that contains the digest of its pins; written last, so that it also marks completion."""


class EnvironmentMissing(LabError, RuntimeError):
    """An environment of pinned packages is missing or cannot be created. Says why, and the command that creates it."""


@dataclass(frozen=True)
class PinnedEnvironment:
    """Environment that is ready for use.

    Attributes:
        directory: directory of its packages.
        was_created: True if this call created it; False if it already existed.
        seconds: seconds spent creating it; 0 if it already existed.
        megabytes: size on disk in MB.
    """

    directory: Path
    was_created: bool
    seconds: float
    megabytes: float

    def __str__(self) -> str:
        how = f"created in {self.seconds:.0f} s" if self.was_created else "already exists"
        return f"{self.directory}: {how}, {self.megabytes:.0f} MB"


@dataclass(frozen=True)
class PinnedPackages:
    """Description of an environment that can be created.

    Attributes:
        title: description of its content for messages.
        name: name of its directory in the user's cache.
        variable: environment variable that overrides the directory.
        requirements: file of pinned packages.
        set_up_command: command that creates it.
    """

    title: str
    name: str
    variable: str
    requirements: Path
    set_up_command: str

    def pins(self) -> str:
        """Return a digest of the pinned packages and the version of Python."""
        # Comments and the order of lines do not change what pip installs, so they do not change the digest.
        lines = self.requirements.read_text(encoding="utf-8").splitlines()
        packages = sorted(line for line in lines if line and not line.startswith("#"))
        interpreter = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
        return hashlib.sha256("\n".join([interpreter, *packages]).encode()).hexdigest()

    def default_dir(self) -> Path:
        """Return the directory named by `variable`, or a directory of the user's cache named after the pins."""
        if named := os.environ.get(self.variable):
            return Path(named)
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return caches / "rlhf_lab" / f"{self.name}-{self.pins()[:12]}"

    def why_not_ready(self, directory: Path) -> str:
        """Return what is wrong with the environment in a directory; empty if it can be used."""
        marker = directory / MARKER
        if not marker.is_file():
            return f"there is no environment of {self.title} in {directory}; run: {self.set_up_command}"
        if marker.read_text(encoding="ascii").strip() != self.pins():
            why = "was created from other pins or for another Python"
            return f"the environment in {directory} {why}; run: {self.set_up_command}"
        return ""

    def status(self, directory: Path | None) -> str:
        """Return a sentence that says whether the environment is ready and, if it is not, why."""
        directory = directory or self.default_dir()
        return self.why_not_ready(directory) or f"{directory}: ready"

    def ready(self, directory: Path | None = None) -> Path:
        """Return the directory of a usable environment. Raise EnvironmentMissing, which says how to create it."""
        directory = directory or self.default_dir()
        if reason := self.why_not_ready(directory):
            raise EnvironmentMissing(reason)
        return directory

    def set_up(self, install: Callable[[Path], None], directory: Path | None = None) -> PinnedEnvironment:
        """Create the environment unless it already exists.

        Raise EnvironmentMissing if it cannot be created, e.g. because the package index is not reachable.

        Args:
            install: function that fills an empty directory and tests what it installed.
            directory: target directory, whose content is replaced; None means `default_dir()`.
        """
        directory = (directory or self.default_dir()).absolute()
        if directory.exists() and not (directory / MARKER).is_file() and any(directory.iterdir()):
            raise EnvironmentMissing(
                f"{directory} has files that no environment of {self.title} created; name another directory"
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        # The lock makes concurrent commands create the environment once; the check is repeated after waiting for it.
        with FileLock(directory.with_name(f".{directory.name}.lock")):
            if not self.why_not_ready(directory):
                return PinnedEnvironment(directory, False, 0.0, _megabytes(directory))
            started = time.monotonic()
            # Install into a temporary directory and rename it, so that an interrupted installation is never used.
            partial_dir = directory.with_name(f".{directory.name}.part")
            shutil.rmtree(partial_dir, ignore_errors=True)
            try:
                install(partial_dir)
                (partial_dir / MARKER).write_text(self.pins(), encoding="ascii")
                shutil.rmtree(directory, ignore_errors=True)
                partial_dir.rename(directory)
            finally:
                shutil.rmtree(partial_dir, ignore_errors=True)
            return PinnedEnvironment(directory, True, time.monotonic() - started, _megabytes(directory))

    def pip_install(self, python: str, options: Sequence[str], timeout_s: float) -> None:
        """Install the pinned packages with an interpreter's pip; `--no-deps` in the options skips all others."""
        quiet = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-compile"]
        command = [python, "-m", "pip", "install", *quiet, *options, "--requirement", str(self.requirements)]
        self.run_step("pip install", command, dict(os.environ), timeout_s)

    def run_step(self, what: str, command: Sequence[str], variables: Mapping[str, str], timeout_s: float) -> None:
        """Run one command of creating the environment. Raise EnvironmentMissing if it fails."""
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
            message = f"the environment of {self.title} was not created: {what} took more than {timeout_s:g} s"
            raise EnvironmentMissing(f"{message}; {self.set_up_command} timeout_s=… waits longer") from None
        if done.returncode:
            # pip prints the reason in its last line
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            reason = lines[-1].strip() if lines else f"exit status {done.returncode}"
            raise EnvironmentMissing(f"the environment of {self.title} was not created: {what} failed: {reason}")


def _megabytes(directory: Path) -> float:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file()) / 1e6

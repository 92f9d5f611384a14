"""The environment of Parler-TTS: a folder of pinned packages that stands in front of the lab's own.

parler-tts wants transformers 4.46.1 and the lab 5, so they cannot share a process. torch, NumPy and SciPy they can: the
worker runs with the lab's Python, and with this folder first on its path. The folder is complete or absent. A marker in
it says which pins it was made from: it is made once, and again after the pins change.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

import rlhf_lab
from rlhf_lab.core.errors import LabError

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
VARIABLE = "RLHF_LAB_PARLER"
"""Of the environment: the folder, in place of the one in the user's cache."""
MARKER = "pins.sha256"
CHECK = "from rlhf_lab.interop.parler.model import import_parler; import_parler()"
SET_UP = "python -m rlhf_lab parler setup"


class EnvironmentMissing(LabError, RuntimeError):
    """The environment of Parler-TTS is not there or cannot be made. Says why, and the command that makes it."""


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


def pins() -> str:
    """A digest of what the environment is made from: the pinned packages and the version of Python."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    packages = sorted(line for line in lines if line and not line.startswith("#"))
    interpreter = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
    return hashlib.sha256("\n".join([interpreter, *packages]).encode()).hexdigest()


def default_folder() -> Path:
    """`$RLHF_LAB_PARLER`, or a folder of the user's cache named after the pins."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "rlhf_lab" / f"parler-{pins()[:12]}"


def why_not_ready(folder: Path) -> str:
    """What is wrong with the environment in a folder; empty if it can be used."""
    marker = folder / MARKER
    if not marker.is_file():
        return f"there is no environment of Parler-TTS in {folder}; run: {SET_UP}"
    if marker.read_text(encoding="ascii").strip() != pins():
        return f"the environment in {folder} was made from other pins or for another Python; run: {SET_UP}"
    return ""


def ready(folder: Path | None = None) -> Path:
    """The folder of an environment that can be used. Raises EnvironmentMissing, which says how to make it."""
    folder = folder or default_folder()
    if reason := why_not_ready(folder):
        raise EnvironmentMissing(reason)
    return folder


def set_up(folder: Path | None = None, *, timeout_s: float = 1800) -> Environment:
    """Make the environment unless it is there already.

    Raises EnvironmentMissing if it cannot be made: without the packages' index, for instance.

    Args:
        folder: where; None is `default_folder()`. What is in it is replaced.
        timeout_s: seconds for installing, and as many for trying it.
    """
    folder = (folder or default_folder()).absolute()
    if folder.exists() and not (folder / MARKER).is_file() and any(folder.iterdir()):
        raise EnvironmentMissing(f"{folder} has files that no environment of Parler-TTS made; name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not why_not_ready(folder):
            return Environment(folder, False, 0.0, _megabytes(folder))
        started = time.monotonic()
        made = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(made, ignore_errors=True)
        try:
            _install(made, timeout_s)
            (made / MARKER).write_text(pins(), encoding="ascii")
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return Environment(folder, True, time.monotonic() - started, _megabytes(folder))


def process_environment(folder: Path) -> dict[str, str]:
    """The environment variables of a process whose imports prefer the packages in `folder`."""
    lab = Path(rlhf_lab.__file__).resolve().parents[1]
    variables = {
        "PYTHONPATH": os.pathsep.join([str(folder), str(lab)]),
        "PYTHONNOUSERSITE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # without bytecode, every start compiles transformers again: 20 seconds in place of 4
    return {**inherited, **variables}


def _install(folder: Path, timeout_s: float) -> None:
    """pip install into a folder, then import Parler-TTS from it, which also writes its bytecode."""
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    target = ["--target", str(folder), "--requirement", str(REQUIREMENTS)]
    install = [sys.executable, "-m", "pip", "install", *options, *target]
    _require_success("pip install", install, dict(os.environ), timeout_s)
    _require_success("importing parler_tts", [sys.executable, "-c", CHECK], process_environment(folder), timeout_s)


def _require_success(what: str, command: list[str], variables: dict[str, str], timeout_s: float) -> None:
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
        message = f"the environment of Parler-TTS was not made: {what} took more than {timeout_s:g} s"
        raise EnvironmentMissing(f"{message}; {SET_UP} timeout_s=… waits longer") from None
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        reason = lines[-1].strip() if lines else f"exit status {done.returncode}"
        raise EnvironmentMissing(f"the environment of Parler-TTS was not made: {what} failed: {reason}")


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6

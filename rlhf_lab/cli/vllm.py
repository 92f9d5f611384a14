"""`vllm`: the separate environment of vLLM, and servers for `rollout.mode=server`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlhf_lab.config.schema import read_options
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.models.model_files import positions
from rlhf_lab.sampling.vllm import environment
from rlhf_lab.sampling.vllm.environment import ENVIRONMENTS, device_here, set_up

USAGE = "vllm accepts setup, serve or no action: python -m rlhf_lab vllm setup"


@dataclass(frozen=True)
class VllmSetupOptions:
    """Options of `vllm setup` and `vllm`."""

    folder: str | None = None
    device: Literal["cpu", "cuda"] | None = None
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class ServeOptions:
    """Options of `vllm serve`.

    Args:
        adapter_rank: maximum `model.lora.rank` of runs that send adapters; 0 accepts only merged models.
    """

    model: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    dtype: Literal["float32", "bfloat16"] = "float32"
    context_tokens: int = 0
    tensor_parallel: int = 1
    gpu_memory: float = 0.9
    adapter_rank: int = 0
    device: Literal["cpu", "cuda"] | None = None
    folder: str | None = None


def vllm_command(arguments: Sequence[str]) -> int:
    """`vllm [setup | serve] [folder=DIR …]`: check or create vLLM's separate environment, or serve a model.

    `setup` creates the environment once: pinned packages in the user's cache, in $RLHF_LAB_VLLM or in `folder`;
    `device=cpu` or `cuda`; `timeout_s=N` allows more than 3600 s for installing. rollout.mode=spawn needs nothing else.
    `serve model=DIR port=8000` runs a server for rollout.mode=server until it is stopped; trainers send the weights.
    More: `host=127.0.0.1 dtype=float32 context_tokens=N tensor_parallel=1 gpu_memory=0.9`. docs/vllm.md.
    """
    action = arguments[0] if arguments and "=" not in arguments[0] else ""
    words = arguments[1:] if action else arguments
    if action == "setup":
        _set_up(read_options(VllmSetupOptions, words))
    elif action == "serve":
        return _serve(read_options(ServeOptions, words))
    elif action:
        raise ConfigError(f"{USAGE}; {action!r} is neither")
    else:
        _report(read_options(VllmSetupOptions, words))
    return 0


def _set_up(options: VllmSetupOptions) -> None:
    """Create the environment and print where it is."""
    directory = Path(options.folder) if options.folder else None
    with console.status("installing vLLM"):
        environment = set_up(directory, device=options.device, timeout_s=options.timeout_s)
    console.print(str(environment))
    if options.folder:
        # Both devices read the same variable, so either environment can name it.
        variable = ENVIRONMENTS["cpu"].variable
        console.print(f"export {variable}={environment.directory}")


def _report(options: VllmSetupOptions) -> None:
    """Print whether the environment is ready, or why not."""
    packages = ENVIRONMENTS[options.device or device_here()]
    status = packages.status(Path(options.folder) if options.folder else None)
    console.print(status)


def _serve(options: ServeOptions) -> int:
    """Serve a model until it is stopped; return the exit status of the server."""
    config = read_json(Path(options.model or "") / "config.json")
    if not options.model or not isinstance(config, dict):
        raise ConfigError(f"model={options.model} is not a model directory; write vllm serve model=DIR port=8000")
    limit = positions(config)
    # Imported late, because this module imports torch, which a wrong command does not need.
    from rlhf_lab.sampling.vllm.server import RANKS, Serving, serve, server_rank

    rank = server_rank(options.adapter_rank)
    if options.adapter_rank and not rank:
        raise ConfigError(f"adapter_rank={options.adapter_rank} must be between 0 and {RANKS[-1]}")
    device: environment.Device = options.device or device_here()
    # Some configs do not state a maximum length; 4096 tokens is then a moderate value.
    context = options.context_tokens or limit or 4096
    fractions = (options.tensor_parallel, options.gpu_memory)
    serving = Serving(Path(options.model), options.dtype, device, context, *fractions, adapter_rank=rank)
    console.print(f"http://{options.host}:{options.port}")
    return serve(serving, options.host, options.port, Path(options.folder) if options.folder else None)

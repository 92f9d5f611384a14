"""`vllm`: the environment of vLLM, and servers for `rollout.mode=server`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from rlhf_lab.config import schema
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.models.model_files import positions
from rlhf_lab.sampling.vllm import environment
from rlhf_lab.sampling.vllm.environment import ENVIRONMENTS, device_here, set_up

USAGE = "vllm takes setup, serve or nothing: python -m rlhf_lab vllm setup"


@dataclass(frozen=True)
class SetupOptions:
    """Of `vllm setup` and `vllm`."""

    folder: str | None = None
    device: Literal["cpu", "cuda"] | None = None
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class ServeOptions:
    """Of `vllm serve`.

    Args:
        adapter_rank: largest `model.lora.rank` of runs that send adapters by themselves; 0 takes merged models alone.
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


def run(arguments: Sequence[str]) -> int:
    action = arguments[0] if arguments and "=" not in arguments[0] else ""
    words = arguments[1:] if action else arguments
    if action == "setup":
        _set_up(_options(SetupOptions, words))
    elif action == "serve":
        return _serve(_options(ServeOptions, words))
    elif action:
        raise ConfigError(f"{USAGE}; {action!r} is neither")
    else:
        _report(_options(SetupOptions, words))
    return 0


def _set_up(options: SetupOptions) -> None:
    folder = Path(options.folder) if options.folder else None
    with console.status("installing vLLM"):
        made = set_up(folder, device=options.device, timeout_s=options.timeout_s)
    how = f"made in {made.seconds:.0f} s" if made.was_made else "was there"
    console.print(f"{made.folder}: {how}, {made.megabytes:.0f} MB", markup=False, soft_wrap=True)
    if options.folder:
        variable = ENVIRONMENTS["cpu"].variable
        console.print(f"export {variable}={made.folder}", markup=False, soft_wrap=True)


def _report(options: SetupOptions) -> None:
    packages = ENVIRONMENTS[options.device or device_here()]
    folder = Path(options.folder) if options.folder else packages.default_folder()
    reason = packages.why_not_ready(folder)
    console.print(reason or f"{folder}: ready", markup=False, soft_wrap=True)


def _serve(options: ServeOptions) -> int:
    config = read_json(Path(options.model or "") / "config.json")
    if not options.model or not isinstance(config, dict):
        raise ConfigError(f"model={options.model} must be the folder of a model: vllm serve model=FOLDER port=8000")
    limit = positions(config)
    # this imports torch, which a wrong command does without
    from rlhf_lab.sampling.vllm.server import RANKS, Serving, serve, server_rank

    rank = server_rank(options.adapter_rank)
    if options.adapter_rank and not rank:
        raise ConfigError(f"adapter_rank={options.adapter_rank} must be between 0 and {RANKS[-1]}")
    device: environment.Device = options.device or device_here()
    context = options.context_tokens or limit or 4096
    shares = (options.tensor_parallel, options.gpu_memory)
    serving = Serving(Path(options.model), options.dtype, device, context, *shares, adapter_rank=rank)
    console.print(f"http://{options.host}:{options.port}", markup=False, soft_wrap=True)
    return serve(serving, options.host, options.port, Path(options.folder) if options.folder else None)


def _options(cls: type, words: Sequence[str]) -> Any:
    problems = [f"{word!r} is no option of the form name=value" for word in words if "=" not in word]
    pairs = [word.partition("=") for word in words if "=" in word]
    options = schema.build(cls, {name: yaml.safe_load(text) for name, _, text in pairs}, "", problems)
    if problems:
        raise ConfigError(problems)
    return options

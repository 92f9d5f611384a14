"""State of the process that tests share: what one module changes and does not put back, all later ones compute with."""

from __future__ import annotations

import os
import sys
from typing import Any

VARIABLES = ("HOME", "TMPDIR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Environment variables that decide what the lab and its libraries do, but those that a command sets for itself."""
FUNCTIONS = {
    "torch": ("tensor", "as_tensor", "linspace", "manual_seed"),
    "torch.nn.init": ("uniform_", "normal_", "constant_", "ones_", "zeros_", "kaiming_uniform_", "trunc_normal_"),
    "torch.nn.Module": ("register_parameter", "register_buffer", "to", "__call__"),
    "torch.UntypedStorage": ("resize_",),
    "transformers.modeling_utils.PreTrainedModel": ("tie_weights", "init_weights", "save_pretrained"),
    "rlhf_lab.core.ranks": ("device", "rank", "world", "exchange"),
}
"""Functions that tests, the simulated GPU and the loading of models replace for a time, by where they are looked up."""


def shared_state() -> dict[str, Any]:
    """Name → value. Says nothing of libraries that are not imported yet."""
    state: dict[str, Any] = {
        f"environment variable {name}": os.environ[name] for name in VARIABLES if name in os.environ
    }
    state["current directory"] = os.getcwd()
    state["files in the current directory"] = sorted(os.listdir())
    torch = sys.modules.get("torch")
    if torch is not None:
        state |= {
            "default dtype": torch.get_default_dtype(),
            "default device": torch.get_default_device(),
            "gradients": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(),
            "autocast on the CPU": torch.is_autocast_enabled("cpu"),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "name of the private device": torch._C._get_privateuse1_backend_name(),
            "process group": torch.distributed.is_available() and torch.distributed.is_initialized(),
        }
    for owner, names in FUNCTIONS.items():
        found = _imported(owner)
        state |= {f"{owner}.{name}": getattr(found, name) for name in names if hasattr(found, name)}
    return state


def _imported(dotted: str) -> Any:
    """A module, or a class of one, by its name; None where the module is not imported."""
    if dotted in sys.modules:
        return sys.modules[dotted]
    module, _, name = dotted.rpartition(".")
    return getattr(sys.modules.get(module), name, None)


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Describe the differences in words. Changes that importing a library makes are not counted."""
    variables = {name for name in (*before, *after) if name.startswith("environment")}
    names = sorted(variables | (before.keys() & after.keys()))
    return [
        f"{name}: {before.get(name)!r} → {after.get(name)!r}"
        for name in names
        if before.get(name) is not after.get(name) and before.get(name) != after.get(name)
    ]

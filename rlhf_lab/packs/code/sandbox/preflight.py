"""Preflight check of the sandbox: the requested level of isolation must work on this machine."""

from __future__ import annotations

from rlhf_lab.config.root import Config
from rlhf_lab.packs.code.sandbox.outcome import SandboxUnavailable
from rlhf_lab.packs.code.sandbox.sandbox import choose_level
from rlhf_lab.packs.code.sandbox.settings import runs_code


def problems(config: Config) -> list[str]:
    """Return the reasons why the programs of a stage cannot be isolated; empty if the stage runs no programs."""
    measures_by_running = "rollout" in config.algorithm.inputs.sections and getattr(config.verifier, "runs_code", False)
    if not (runs_code(config) or measures_by_running):
        return []
    try:
        choose_level(config.sandbox)  # runs a small program; the result is cached per process
    except SandboxUnavailable as error:
        return [str(error)]
    return []

"""manifest.json: inputs of a stage, and the code and machine that built it."""

from __future__ import annotations

import platform
import subprocess
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_lab import __version__
from rlhf_lab.core import measures
from rlhf_lab.core.invocation import command_line
from rlhf_lab.core.machine import usable_cores
from rlhf_lab.core.redaction import redacted
from rlhf_lab.stages.artifacts import Stage

if TYPE_CHECKING:
    from rlhf_lab.core.types import Corpus

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scipy", "hydra-core", "peft", "trl")


def manifest(stage: Stage, corpus: Corpus) -> dict[str, Any]:
    # Imported here because `--version` needs git_sha without torch.
    import torch

    from rlhf_lab.core import ranks

    needs = {
        role: {"recipe": need.recipe, "key": need.key, "dir": str(need.directory)}
        if isinstance(need, Stage)
        else {"recipe": None, "key": need.key, "dir": redacted(need.source)}
        for role, need in stage.needs.items()
    }
    # Declarations of measures, with which later reports can name the columns of this run.
    further = measures.to_stored(corpus.measures)
    return {
        "recipe": stage.recipe,
        "command": command_line(),
        "question": redacted(stage.config.question),
        "key": stage.key,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "git_sha": git_sha(),
        "versions": {
            "rlhf_lab": __version__,
            "python": platform.python_version(),
            **{name: _installed_version(name) for name in PACKAGES},
        },
        "machine": {
            "cores": usable_cores(),
            "cpu_threads": torch.get_num_threads(),
            "device": ranks.device(stage.config.runtime.device),
        },
        "seed": stage.config.seed,
        "needs": needs,
        "data": {
            "name": redacted(corpus.name),
            "fingerprint": corpus.fingerprint,
            "report": {
                split: {name: getattr(report, name) for name in ("rows", "kept", "dropped", "noted", "statistics")}
                for split, report in corpus.report.items()
            },
            **({"measures": further} if further else {}),
        },
    }


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def git_sha() -> str | None:
    """Return the commit of the checkout of this code, with '+changes' if it has uncommitted ones; None in a wheel."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            process = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return process.stdout.strip() if process.returncode == 0 else None

    sha = git("rev-parse", "HEAD")
    # A virtual environment inside another project's checkout is in a repository that does not track this file.
    is_tracked = git("ls-files", str(Path(__file__).resolve()))
    if not sha or not is_tracked:
        return None
    has_changes = git("status", "--porcelain", "-uno")
    return f"{sha}+changes" if has_changes else sha

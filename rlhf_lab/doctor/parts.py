"""Optional parts: is each installed, in a version that fits, and does it start?

Each is tried in a process of its own with a time limit: an import may take seconds, print, or crash.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from rlhf_lab.core.machine import usable_cores
from rlhf_lab.doctor.findings import Check, Finding, examine, pass_or_fail
from rlhf_lab.doctor.installation import install_line, installed, requirements, unmet

SECONDS = 90
"""Time limit for each part."""
AT_ONCE = 4
"""Parts that are tried at the same time."""


@dataclass(frozen=True)
class Library:
    """A Python package that only some features need.

    Attributes:
        package: its name for pip.
        code: Python code that works where it is installed soundly.
        feature: the setting or feature that needs it.
    """

    package: str
    code: str
    feature: str

    def ask(self, _: object) -> Finding:
        """Works, missing with its install line, or broken with the reason."""
        version = installed(self.package)
        install = install_line(self.package)
        if version is None:
            return Finding("skip", f"missing; {self.feature} needs it", advice=install)
        extras = requirements().extras.values()
        required = [needed for extra in extras for needed in extra if needed.name == self.package][:1]
        tolerance = str(required[0].specifier) if required else ""
        for problem in unmet(required):
            return pass_or_fail(False, version, tolerance, f"{problem}; {install}")
        return _try_start([sys.executable, "-c", self.code], version, tolerance, f"{self.feature} needs it: {install}")


@dataclass(frozen=True)
class Program:
    """A program that only some features need; `command` succeeds where it is installed and configured."""

    command: tuple[str, ...]
    feature: str
    install: str

    def ask(self, _: object) -> Finding:
        """Works, missing with its install line, or installed and not configured, which is no failure."""
        if shutil.which(self.command[0]) is None:
            return Finding("skip", f"missing; {self.feature} needs it", advice=self.install)
        finding = _try_start(list(self.command), "", "", f"{self.feature} needs it: {self.install}")
        return finding if finding.status == "pass" else replace(finding, status="skip")


LIBRARIES = (
    Library("trl", "from trl import SFTTrainer", "engine=trl"),
    Library("peft", "from peft import LoraConfig", "model.lora"),
    Library("deepspeed", "import deepspeed", "sharding=zero1, zero2 or zero3"),
    Library("wandb", "import wandb", "tracker=wandb"),
    Library("trackio", "import trackio", "tracker=trackio"),
    Library("tensorboard", "from torch.utils.tensorboard import SummaryWriter", "tracker=tensorboard"),
    Library("uvicorn", "import starlette, uvicorn", "label"),
    Library("hydra-submitit-launcher", "import submitit, hydra_plugins.hydra_submitit_launcher", "sweeps on a cluster"),
    Library("vllm", "import vllm", "rollout=vllm with engine=trl"),
    Library("flash-attn", "import flash_attn", "model.attention=flash_attention_2"),
)
PROGRAMS = (
    Program(
        ("sbatch", "--version"),
        "a cluster with Slurm",
        "on a cluster its administrators have it; apt install slurm-wlm",
    ),
)


def examine_parts() -> list[Finding]:
    """All optional parts, a few at a time."""
    checks = [Check(library.package, library.ask) for library in LIBRARIES]
    checks += [Check(program.command[0], program.ask) for program in PROGRAMS]
    with ThreadPoolExecutor(min(AT_ONCE, usable_cores())) as pool:
        return [finding for findings in pool.map(_examine_part, checks) for finding in findings]


def _examine_part(check: Check) -> list[Finding]:
    return list(examine("optional parts", [check], None))


def _try_start(command: list[str], version: str, tolerance: str, advice: str) -> Finding:
    """Run a command that succeeds where the part works; the last line of an error is its reason."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        measured = f"{version} does not start within {SECONDS} s".strip()
        load = os.getloadavg()[0]
        if load > usable_cores():  # installing it again would not help
            busy = f"the machine is busy (load {load:.1f} on {usable_cores()} cores): run doctor again when it is not"
            return Finding("skip", f"not known: {measured}", tolerance, busy)
        return pass_or_fail(False, measured, tolerance, f"it hangs while it starts: {advice}")
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
        return pass_or_fail(False, f"{version} is broken: {lines[-1][:200]}".strip(), tolerance, advice)
    first_line = "".join(process.stdout.strip().splitlines()[:1])
    return pass_or_fail(True, f"works: {version or first_line}", tolerance)

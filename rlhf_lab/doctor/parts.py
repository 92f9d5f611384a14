"""Optional parts: is each there, in the version that is asked for, and does it start?

Each is tried in a process of its own with a time limit: an import may take seconds, print, or crash.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from rlhf_lab.core.machine import usable_cores
from rlhf_lab.doctor.findings import Check, Finding, examine, found
from rlhf_lab.doctor.installation import install_line, installed, requirements, wrong

SECONDS = 90
AT_ONCE = 4


@dataclass(frozen=True)
class Library:
    """A Python package that only some features need.

    Attributes:
        package: its name for pip.
        code: what has to work.
        feature: what needs it.
    """

    package: str
    code: str
    feature: str

    def ask(self, _: object) -> Finding:
        """Works, missing with its install line, or broken with the reason."""
        version, install = installed(self.package), install_line(self.package)
        if version is None:
            return Finding("skip", f"missing; {self.feature} needs it", advice=install)
        lines = [line for extra in requirements().extras.values() for line in extra if line.name == self.package][:1]
        tolerance = str(lines[0].specifier) if lines else ""
        for problem in wrong(lines):
            return found(False, version, tolerance, f"{problem}; {install}")
        return _started([sys.executable, "-c", self.code], version, tolerance, f"{self.feature} needs it: {install}")


@dataclass(frozen=True)
class Program:
    """A program that only some features need; `command` succeeds where it is installed and configured."""

    command: tuple[str, ...]
    feature: str
    install: str

    def ask(self, _: object) -> Finding:
        """Works, missing with its install line, or there and not configured, which is no fault of this machine."""
        if shutil.which(self.command[0]) is None:
            return Finding("skip", f"missing; {self.feature} needs it", advice=self.install)
        answer = _started(list(self.command), "", "", f"{self.feature} needs it: {self.install}")
        return answer if answer.status == "pass" else replace(answer, status="skip")


LIBRARIES = (
    Library("trl", "from trl import SFTTrainer", "engine=trl"),
    Library("peft", "from peft import LoraConfig", "model.lora"),
    Library("deepspeed", "import deepspeed", "sharding=zero1, zero2 or zero3"),
    Library("wandb", "import wandb", "tracker=wandb"),
    Library("trackio", "import trackio", "tracker=trackio"),
    Library("tensorboard", "from torch.utils.tensorboard import SummaryWriter", "tracker=tensorboard"),
    Library("hydra-submitit-launcher", "import submitit, hydra_plugins.hydra_submitit_launcher", "sweeps on a cluster"),
    Library("vllm", "import vllm", "rollout=vllm"),
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
    checks = [Check(part.package, part.ask) for part in LIBRARIES]
    checks += [Check(part.command[0], part.ask) for part in PROGRAMS]
    with ThreadPoolExecutor(min(AT_ONCE, usable_cores())) as pool:
        return [answer for answers in pool.map(_examine, checks) for answer in answers]


def _examine(check: Check) -> list[Finding]:
    return list(examine("optional parts", [check], None))


def _started(command: list[str], version: str, tolerance: str, advice: str) -> Finding:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return found(False, f"{version} does not start within {SECONDS} s".strip(), tolerance, advice)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return found(False, f"{version} is broken: {lines[-1][:200]}".strip(), tolerance, advice)
    first = done.stdout.strip().splitlines()[:1]
    return found(True, f"works: {version or ''.join(first)}", tolerance)

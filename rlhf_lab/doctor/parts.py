"""Checks of optional parts: is each installed, in a supported version, and does it start?

Each is tried in a separate process with a time limit, because an import may take seconds, print, or crash.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from rlhf_lab.core.machine import usable_cores
from rlhf_lab.core.progress import progress
from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, examine_one, pass_or_fail
from rlhf_lab.doctor.installation import install_line, installed, requirements, unmet_requirements

SECONDS = 90
"""Time limit for each part, in seconds."""
AT_ONCE = 4
"""Maximum number of parts that are tried at the same time."""


@dataclass(frozen=True)
class Library:
    """Python package that only some features need.

    Attributes:
        code: Python code that succeeds if the package is installed correctly.
    """

    package: str
    code: str
    feature: str

    def ask(self, _: object) -> CheckResult:
        """Return the result: works, missing (with the install command), or broken (with the reason)."""
        version = installed(self.package)
        install = install_line(self.package)
        if version is None:
            return CheckResult("skip", f"missing; {self.feature} needs it", hint=install)
        extras = requirements().extras.values()
        required = [needed for extra in extras for needed in extra if needed.name == self.package][:1]
        tolerance = str(required[0].specifier) if required else ""
        for problem in unmet_requirements(required):
            return pass_or_fail(False, version, tolerance, f"{problem}; {install}")
        hint = f"{self.feature} needs it: {install}"
        return _try_start([sys.executable, "-c", self.code], version, tolerance, hint)


def ask_program(command: Sequence[str], feature: str, install: str, _: object = None) -> CheckResult:
    """Return the result for a command that succeeds if a program works. One that is not configured is no failure."""
    if shutil.which(command[0]) is None:
        return CheckResult("skip", f"missing; {feature} needs it", hint=install)
    result = _try_start(list(command), "", "", f"{feature} needs it: {install}")
    return result if result.status == "pass" else replace(result, status="skip")


LIBRARIES = (
    Library("trl", "from trl import SFTTrainer", "engine=trl"),
    Library("peft", "from peft import LoraConfig", "model.lora"),
    Library("deepspeed", "import deepspeed", "sharding=zero1, zero2 or zero3"),
    Library("wandb", "import wandb", "tracker=wandb"),
    Library("trackio", "import trackio", "tracker=trackio"),
    Library("tensorboard", "from torch.utils.tensorboard import SummaryWriter", "tracker=tensorboard"),
    Library("optuna", "import optuna", "study.search"),
    Library("uvicorn", "import starlette, uvicorn", "label"),
    Library("hydra-submitit-launcher", "import submitit, hydra_plugins.hydra_submitit_launcher", "sweeps on a cluster"),
    Library("vllm", "import vllm", "rollout=vllm with engine=trl"),
    Library("flash-attn", "import flash_attn", "model.attention=flash_attention_2"),
)
PROGRAMS = (
    (("sbatch", "--version"), "a cluster with Slurm", "on a cluster its administrators have it; apt install slurm-wlm"),
)
"""Arguments of `ask_program` for each external program."""


def examine_parts() -> list[CheckResult]:
    """Check all optional parts, a few at a time."""
    checks = [DoctorCheck(library.package, library.ask) for library in LIBRARIES]
    checks += [DoctorCheck(program[0][0], partial(ask_program, *program)) for program in PROGRAMS]
    # Threads suffice, because each check waits for a separate process.
    results = []
    with ThreadPoolExecutor(min(AT_ONCE, usable_cores())) as pool, progress("optional parts", len(checks)) as ticker:
        for result in pool.map(lambda check: examine_one("optional parts", check, None), checks):
            results.append(result)
            ticker.advance()
    return results


def _try_start(command: list[str], version: str, tolerance: str, hint: str) -> CheckResult:
    """Run a command that succeeds if the part works; the last line of its error output is the reason of a failure."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        measured = f"{version} does not start within {SECONDS} s".strip()
        load = os.getloadavg()[0]
        if load > usable_cores():  # the machine is busy, so installing the part again would not help
            busy = f"the machine is busy (load {load:.1f} on {usable_cores()} cores): run doctor again when it is idle"
            return CheckResult("skip", f"unknown: {measured}", tolerance, busy)
        return pass_or_fail(False, measured, tolerance, f"it hangs during startup: {hint}")
    if process.returncode:
        lines = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
        measured = f"{version} is broken: {lines[-1][:200]}".strip()
        return pass_or_fail(False, measured, tolerance, hint)
    first_line = "".join(process.stdout.strip().splitlines()[:1])
    return pass_or_fail(True, f"works: {version or first_line}", tolerance)

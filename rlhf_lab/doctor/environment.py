"""Checks of the machine: Python, packages, torch and its devices, cores, memory, terminal, git."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

from packaging.specifiers import SpecifierSet

from rlhf_lab.core.console import console
from rlhf_lab.core.machine import GIB, main_memory, usable_cores
from rlhf_lab.doctor.findings import CheckResult, DoctorCheck, pass_or_fail
from rlhf_lab.doctor.installation import requirements, unmet_requirements

ENOUGH_GIB = 1.0
"""Minimum free memory and disk space: below it, even the embedded recipes do not fit."""


def python(_: object) -> CheckResult:
    required = requirements().python
    version = platform.python_version()
    holds = SpecifierSet(required).contains(version, prereleases=True)
    measured = f"{platform.python_implementation()} {version}, {platform.machine()}"
    hint = f"create an environment with Python {required}: python3.11 -m venv .venv"
    return pass_or_fail(holds, measured, required, hint)


def packages(_: object) -> CheckResult:
    """Check that every required package is installed in a supported version."""
    core = requirements().core
    problems = list(unmet_requirements(core))
    # Each requirement is checked alone, so that pip only installs those that need it.
    unmet = [requirement for requirement in core if list(unmet_requirements([requirement]))]
    to_install = " ".join(f"'{requirement}'" for requirement in unmet)
    measured = "; ".join(problems) or f"{len(core)} packages, all within their ranges"
    return pass_or_fail(not problems, measured, "pyproject.toml", f"pip install {to_install}")


def torch_build(_: object) -> CheckResult:
    """Check that torch loads, computes, and is a build for this machine."""
    import torch

    is_finite = bool(torch.isfinite(torch.ones(4, 4) @ torch.ones(4, 4)).all())
    cuda, rocm = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU only"
    measured = f"torch {torch.__version__}, {build}, {torch.backends.cpu.get_cpu_capability()}"
    if shutil.which("nvidia-smi") and not cuda:
        hint = "there is an NVIDIA driver but torch cannot use it; install a CUDA build: https://pytorch.org"
        return pass_or_fail(False, measured, "a CUDA build", hint)
    return pass_or_fail(is_finite, measured, "computes", "a matrix product is not finite: install torch again")


def devices(_: object) -> CheckResult:
    """Check that the GPUs can be used; without a GPU the check passes unless torch should see one."""
    import torch

    if not torch.cuda.is_available():
        broken = torch.version.cuda is not None and shutil.which("nvidia-smi") is not None
        hint = "torch is a CUDA build but sees no device: compare its CUDA version with the driver's (nvidia-smi)"
        return pass_or_fail(not broken, "no CUDA device; runs use the CPU", hint=hint)
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        # Compute capability 8.0 (Ampere) is the first with bfloat16 units.
        bfloat16 = "bf16" if torch.cuda.get_device_capability(index) >= (8, 0) else "no bf16 units"
        gpus.append(f"{name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, {bfloat16}")
    # A product with a known result, because a broken driver may return wrong numbers without an error.
    ones = torch.ones(64, 64, device="cuda")
    is_right = float((ones @ ones).sum()) == 64.0**3
    return pass_or_fail(
        is_right, "; ".join(gpus), "computes", "a matrix product on the device is wrong: check the driver"
    )


def threads(_: object) -> CheckResult:
    """Check the number of usable cores, the number of threads that torch uses, and how idle threads wait."""
    import torch

    cores = usable_cores()
    used = torch.get_num_threads()
    omp_threads = os.environ.get("OMP_NUM_THREADS", "not set")
    wait_policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    measured = f"{cores} cores, {used} threads; OMP_NUM_THREADS {omp_threads}, OMP_WAIT_POLICY {wait_policy}"
    if used > cores:
        hint = f"more threads than cores slow each other down; set OMP_NUM_THREADS={cores} or runtime.threads"
        return pass_or_fail(False, measured, f"≤ {cores} threads", hint)
    hint = "idle threads that spin can slow a busy machine 20 times; set OMP_WAIT_POLICY=PASSIVE"
    # main.py sets PASSIVE unless the environment has another value.
    return pass_or_fail(wait_policy.upper() == "PASSIVE", measured, "PASSIVE", hint)


def memory(_: object) -> CheckResult:
    main = main_memory()
    if main is None:
        return CheckResult("skip", "the system does not report how much memory is free")
    hint = "close other programs, or raise the memory limit of the container or job"
    measured = f"{main.free / GIB:.1f} GiB free"
    return pass_or_fail(main.free >= ENOUGH_GIB * GIB, measured, f"≥ {ENOUGH_GIB:g} GiB", hint)


def terminal(_: object) -> CheckResult:
    """Check that the terminal can show UTF-8."""
    # sys.__stdout__, because rich replaces sys.stdout while it shows a spinner
    encoding = (getattr(sys.__stdout__, "encoding", None) or "unknown").lower()  # a byte stream has encoding None
    kind = "not a terminal"
    if console.is_terminal:
        kind = f"{console.width} columns, {console.color_system or 'no'} colour"
    hint = "tables and Greek letters need UTF-8; set PYTHONUTF8=1 or LANG=C.UTF-8"
    return pass_or_fail(encoding.replace("-", "") == "utf8", f"{kind}, {encoding}", "utf-8", hint)


def git(_: object) -> CheckResult:
    """Check that git runs; without it runs cannot record the commit of their code."""
    if shutil.which("git") is None:
        return CheckResult("skip", "missing", hint="runs cannot record the commit of their code; install git")
    process = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10)
    output = process.stdout.strip() or process.stderr.strip()
    return pass_or_fail(process.returncode == 0, output, hint="install git again")


ENVIRONMENT = [
    DoctorCheck("Python", python),
    DoctorCheck("packages", packages),
    DoctorCheck("torch", torch_build),
    DoctorCheck("devices", devices),
    DoctorCheck("threads", threads),
    DoctorCheck("memory", memory),
    DoctorCheck("terminal", terminal),
    DoctorCheck("git", git),
]

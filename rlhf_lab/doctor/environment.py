"""The machine: Python, packages, torch and its devices, cores, memory, terminal, git."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

from packaging.specifiers import SpecifierSet

from rlhf_lab.core.console import console
from rlhf_lab.core.machine import main_memory, usable_cores
from rlhf_lab.doctor.findings import Check, Finding, found
from rlhf_lab.doctor.installation import requirements, wrong
from rlhf_lab.memory.devices import GIB

ENOUGH_GIB = 1.0
"""Memory and disk below this do not even hold the embedded recipes."""


def python(_: object) -> Finding:
    wanted, version = requirements().python, platform.python_version()
    advice = f"make an environment with Python {wanted}: python3.11 -m venv .venv"
    holds = SpecifierSet(wanted).contains(version, prereleases=True)
    return found(holds, f"{platform.python_implementation()} {version}, {platform.machine()}", wanted, advice)


def packages(_: object) -> Finding:
    core = requirements().core
    problems = list(wrong(core))
    names = " ".join(f"'{line}'" for line in core if list(wrong([line])))
    measured = "; ".join(problems) or f"{len(core)} packages, all within their ranges"
    return found(not problems, measured, "pyproject.toml", f"pip install {names}")


def torch_build(_: object) -> Finding:
    """Whether torch loads, computes, and is the build for this machine."""
    import torch

    worked = bool(torch.isfinite(torch.ones(4, 4) @ torch.ones(4, 4)).all())
    cuda, rocm = torch.version.cuda, torch.version.hip
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU only"
    measured = f"torch {torch.__version__}, {build}, {torch.backends.cpu.get_cpu_capability()}"
    if shutil.which("nvidia-smi") and not cuda:
        advice = "there is an NVIDIA driver and torch cannot use it; install a CUDA build: https://pytorch.org"
        return found(False, measured, "a CUDA build", advice)
    return found(worked, measured, "computes", "a matrix product is not finite: install torch again")


def devices(_: object) -> Finding:
    import torch

    if not torch.cuda.is_available():
        broken = torch.version.cuda is not None and shutil.which("nvidia-smi") is not None
        advice = "torch is a CUDA build and sees no device: compare its CUDA version with the driver's (nvidia-smi)"
        return found(not broken, "no CUDA device; runs use the CPU", advice=advice)
    names = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        half = "bf16" if torch.cuda.get_device_capability(index) >= (8, 0) else "no bf16 units"
        names.append(f"{torch.cuda.get_device_name(index)}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, {half}")
    x = torch.ones(64, 64, device="cuda")
    worked = float((x @ x).sum()) == 64.0**3
    return found(worked, "; ".join(names), "computes", "a matrix product on the device is wrong: check the driver")


def threads(_: object) -> Finding:
    """Cores this process may use, threads torch takes, and how idle threads wait."""
    import torch

    cores, taken = usable_cores(), torch.get_num_threads()
    omp, wait = os.environ.get("OMP_NUM_THREADS", "not set"), os.environ.get("OMP_WAIT_POLICY", "not set")
    measured = f"{cores} cores, {taken} threads; OMP_NUM_THREADS {omp}, OMP_WAIT_POLICY {wait}"
    if taken > cores:
        advice = f"more threads than cores slow each other down; set OMP_NUM_THREADS={cores} or runtime.threads"
        return found(False, measured, f"≤ {cores} threads", advice)
    advice = "idle threads that spin can slow a busy machine 20 times; set OMP_WAIT_POLICY=PASSIVE"
    return found(wait.upper() == "PASSIVE", measured, "PASSIVE", advice)


def memory(_: object) -> Finding:
    there = main_memory()
    if there is None:
        return Finding("skip", "the system does not say how much memory is free")
    free = there.free
    advice = "close other programs, or raise the memory limit of the container or job"
    return found(free >= ENOUGH_GIB * GIB, f"{free / GIB:.1f} GiB free", f"≥ {ENOUGH_GIB:g} GiB", advice)


def terminal(_: object) -> Finding:
    encoding = getattr(sys.__stdout__, "encoding", "unknown").lower()  # sys.stdout stands behind a spinner
    kind = (
        f"{console.width} columns, {console.color_system or 'no'} colour" if console.is_terminal else "not a terminal"
    )
    advice = "tables and Greek letters need UTF-8; set PYTHONUTF8=1 or LANG=C.UTF-8"
    return found(encoding.replace("-", "") == "utf8", f"{kind}, {encoding}", "utf-8", advice)


def git(_: object) -> Finding:
    if shutil.which("git") is None:
        return Finding("skip", "missing", advice="runs cannot note the commit of their code; install git")
    done = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10)
    return found(done.returncode == 0, done.stdout.strip() or done.stderr.strip(), advice="install git again")


ENVIRONMENT = [
    Check("Python", python),
    Check("packages", packages),
    Check("torch", torch_build),
    Check("devices", devices),
    Check("threads", threads),
    Check("memory", memory),
    Check("terminal", terminal),
    Check("git", git),
]

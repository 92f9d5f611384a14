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
from rlhf_lab.doctor.findings import Check, Finding, pass_or_fail
from rlhf_lab.doctor.installation import requirements, unmet
from rlhf_lab.memory.devices import GIB

ENOUGH_GIB = 1.0
"""Memory and disk below this do not even hold the embedded recipes."""


def python(_: object) -> Finding:
    required = requirements().python
    version = platform.python_version()
    holds = SpecifierSet(required).contains(version, prereleases=True)
    measured = f"{platform.python_implementation()} {version}, {platform.machine()}"
    advice = f"make an environment with Python {required}: python3.11 -m venv .venv"
    return pass_or_fail(holds, measured, required, advice)


def packages(_: object) -> Finding:
    core = requirements().core
    problems = list(unmet(core))
    to_install = " ".join(f"'{requirement}'" for requirement in core if list(unmet([requirement])))
    measured = "; ".join(problems) or f"{len(core)} packages, all within their ranges"
    return pass_or_fail(not problems, measured, "pyproject.toml", f"pip install {to_install}")


def torch_build(_: object) -> Finding:
    """Whether torch loads, computes, and is the build for this machine."""
    import torch

    is_finite = bool(torch.isfinite(torch.ones(4, 4) @ torch.ones(4, 4)).all())
    cuda = torch.version.cuda
    rocm = torch.version.hip
    build = "CPU only"
    if cuda:
        build = f"CUDA {cuda}"
    elif rocm:
        build = f"ROCm {rocm}"
    measured = f"torch {torch.__version__}, {build}, {torch.backends.cpu.get_cpu_capability()}"
    if shutil.which("nvidia-smi") and not cuda:
        advice = "there is an NVIDIA driver and torch cannot use it; install a CUDA build: https://pytorch.org"
        return pass_or_fail(False, measured, "a CUDA build", advice)
    return pass_or_fail(is_finite, measured, "computes", "a matrix product is not finite: install torch again")


def devices(_: object) -> Finding:
    import torch

    if not torch.cuda.is_available():
        broken = torch.version.cuda is not None and shutil.which("nvidia-smi") is not None
        advice = "torch is a CUDA build and sees no device: compare its CUDA version with the driver's (nvidia-smi)"
        return pass_or_fail(not broken, "no CUDA device; runs use the CPU", advice=advice)
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        bfloat16 = "bf16" if torch.cuda.get_device_capability(index) >= (8, 0) else "no bf16 units"  # from Ampere on
        gpus.append(f"{name}, {free / GIB:.1f} of {total / GIB:.1f} GiB free, {bfloat16}")
    ones = torch.ones(64, 64, device="cuda")
    is_right = float((ones @ ones).sum()) == 64.0**3
    return pass_or_fail(
        is_right, "; ".join(gpus), "computes", "a matrix product on the device is wrong: check the driver"
    )


def threads(_: object) -> Finding:
    """Cores this process may use, threads torch takes, and how idle threads wait."""
    import torch

    cores = usable_cores()
    used = torch.get_num_threads()
    omp_threads = os.environ.get("OMP_NUM_THREADS", "not set")
    wait_policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    measured = f"{cores} cores, {used} threads; OMP_NUM_THREADS {omp_threads}, OMP_WAIT_POLICY {wait_policy}"
    if used > cores:
        advice = f"more threads than cores slow each other down; set OMP_NUM_THREADS={cores} or runtime.threads"
        return pass_or_fail(False, measured, f"≤ {cores} threads", advice)
    advice = "idle threads that spin can slow a busy machine 20 times; set OMP_WAIT_POLICY=PASSIVE"
    return pass_or_fail(wait_policy.upper() == "PASSIVE", measured, "PASSIVE", advice)


def memory(_: object) -> Finding:
    main = main_memory()
    if main is None:
        return Finding("skip", "the system does not say how much memory is free")
    free = main.free
    advice = "close other programs, or raise the memory limit of the container or job"
    return pass_or_fail(free >= ENOUGH_GIB * GIB, f"{free / GIB:.1f} GiB free", f"≥ {ENOUGH_GIB:g} GiB", advice)


def terminal(_: object) -> Finding:
    # sys.__stdout__, because rich replaces sys.stdout while a spinner turns
    encoding = (getattr(sys.__stdout__, "encoding", None) or "unknown").lower()  # None of a stream of bytes
    kind = "not a terminal"
    if console.is_terminal:
        kind = f"{console.width} columns, {console.color_system or 'no'} colour"
    advice = "tables and Greek letters need UTF-8; set PYTHONUTF8=1 or LANG=C.UTF-8"
    return pass_or_fail(encoding.replace("-", "") == "utf8", f"{kind}, {encoding}", "utf-8", advice)


def git(_: object) -> Finding:
    if shutil.which("git") is None:
        return Finding("skip", "missing", advice="runs cannot note the commit of their code; install git")
    process = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10)
    output = process.stdout.strip() or process.stderr.strip()
    return pass_or_fail(process.returncode == 0, output, advice="install git again")


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

"""The doctor's checks of a machine: every check sees its fault, and nothing is left behind."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

from rlhf_lab.core import machine
from rlhf_lab.core.files import write_text
from rlhf_lab.doctor import environment, installation, parts, storage
from rlhf_lab.doctor.findings import CheckResult, examine
from rlhf_lab.memory.devices import GIB

CHECKS = {check.name: check for check in (*environment.ENVIRONMENT, *storage.STORAGE)}
Usage = namedtuple("Usage", "total used free")


def ask(name: str, outputs: Path | None = None) -> CheckResult:
    return next(examine("test", [CHECKS[name]], outputs))


@pytest.fixture
def wanted(monkeypatch):
    """Replaces what the package asks for."""

    def replace(python: str = ">=3.11", core: tuple[str, ...] = (), **extras: list[str]) -> None:
        requested = {name: list(map(Requirement, lines)) for name, lines in extras.items()}
        found = installation.Requirements(python, list(map(Requirement, core)), requested)
        for module in (installation, environment, parts):
            monkeypatch.setattr(module, "requirements", lambda: found)

    return replace


def test_the_ranges_are_those_of_pyproject():
    found = installation.requirements()
    assert found.python == ">=3.11"
    assert {"torch", "transformers", "packaging"} <= {line.name for line in found.core}
    assert [str(line) for line in found.extras["trl"]] == ["trl==1.16.0"]
    assert installation.install_line("peft") == "pip install 'rlhf_lab[lora]'"  # the smallest extra that has it
    assert installation.install_line("something-else") == "pip install something-else"


def test_the_installed_metadata_serve_where_there_is_no_checkout(monkeypatch, tmp_path):
    lines = ["torch>=2.9", 'tomli>=2; python_version < "3.0"', 'peft>=0.20; extra == "lora"']
    fields = {"Requires-Python": ">=3.11", "Provides-Extra": ["lora"]}
    metadata = type("Fields", (dict,), {"get_all": dict.get})(fields)
    monkeypatch.setattr(installation.rlhf_lab, "__file__", str(tmp_path / "rlhf_lab" / "__init__.py"))
    monkeypatch.setattr(installation.metadata, "metadata", lambda name: metadata)
    monkeypatch.setattr(installation.metadata, "requires", lambda name: lines)
    found = installation.requirements.__wrapped__()
    assert [line.name for line in found.core] == ["torch"]
    assert {name: [line.name for line in lines] for name, lines in found.extras.items()} == {"lora": ["peft"]}


def test_python_and_packages_outside_their_ranges(wanted):
    assert ask("Python").status == ask("packages").status == "pass"
    wanted(python=">=4", core=("torch>=99", "no-such-package>=1", "numpy>=1"))
    assert ask("Python").status == "fail"
    packages = ask("packages")
    assert packages.status == "fail"
    assert "torch" in packages.measured and "outside >=99" in packages.measured
    assert "no-such-package is not installed" in packages.measured
    assert packages.hint == "pip install 'torch>=99' 'no-such-package>=1'"


def test_a_cpu_build_beside_a_gpu_driver(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    assert ask("torch").status == "pass"
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"/bin/{name}")
    assert ask("torch").status == "fail"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ask("devices").status == "pass"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert ask("torch").status == "pass"
    assert "driver" in ask("devices").hint


def test_threads_that_spin_or_are_too_many(monkeypatch):
    monkeypatch.setattr(environment, "usable_cores", lambda: 4)
    assert ask("threads").status == "pass"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "PASSIVE" in ask("threads").hint
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    assert "OMP_NUM_THREADS=4" in ask("threads").hint


def test_free_memory_is_the_machines_or_the_containers(monkeypatch, tmp_path):
    meminfo, limit, used = (tmp_path / name for name in ("meminfo", "max", "current"))
    monkeypatch.setattr(machine, "MEMINFO", meminfo)
    monkeypatch.setattr(machine, "CGROUPS", ((limit, used),))
    assert ask("memory").status == "skip"  # the system does not say
    write_text(meminfo, f"MemTotal: {9 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")
    assert machine.main_memory() == machine.Memory(9 * GIB, 8 * GIB)
    write_text(limit, "max\n")
    write_text(used, f"{GIB}\n")
    assert machine.main_memory() == machine.Memory(9 * GIB, 8 * GIB)
    write_text(limit, f"{3 * GIB}\n")
    assert machine.main_memory() == machine.Memory(3 * GIB, 2 * GIB)
    assert ask("memory").status == "pass"
    write_text(limit, f"{GIB + GIB // 2}\n")
    assert (ask("memory").status, ask("memory").measured) == ("fail", "0.5 GiB free")


def test_a_container_may_have_fewer_cores_than_the_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for quota, cores in ((None, 8), ("max 100000", 8), ("150000 100000", 2), ("1600000 100000", 8)):
        if quota:
            write_text(machine.CPU_QUOTA, f"{quota}\n")
        assert machine.usable_cores() == cores


def test_a_terminal_that_cannot_show_greek(monkeypatch):
    with open(sys.stdout.fileno(), "w", encoding="latin-1", closefd=False) as latin:
        monkeypatch.setattr(sys, "__stdout__", latin)
        conclusion = ask("terminal")
    assert (conclusion.status, "PYTHONUTF8=1" in conclusion.hint) == ("fail", True)
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())  # its encoding is None
    conclusion = ask("terminal")
    assert (conclusion.status, conclusion.measured.rpartition(", ")[2]) == ("fail", "unknown")


def test_outputs_are_looked_at_and_left_as_they_were(tmp_path):
    outputs = tmp_path / "outputs"
    findings = list(examine("storage", storage.STORAGE, outputs))
    assert [f.status for f in findings] == ["pass"] * 4, findings
    assert list(tmp_path.iterdir()) == []  # not even made
    outputs.mkdir()
    (outputs / "mine").write_text("1")
    assert all(f.status == "pass" for f in examine("storage", storage.STORAGE, outputs))
    assert [path.name for path in outputs.rglob("*")] == ["mine"]


def test_a_full_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(GIB, GIB, GIB // 4))
    conclusion = ask("disk", tmp_path)
    assert (conclusion.status, "outputs=DIR" in conclusion.hint) == ("fail", True)
    assert conclusion.measured.startswith("0.2 GiB free")


def test_where_atomic_writes_fail(monkeypatch, tmp_path):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(storage.tempfile, "TemporaryDirectory", refuse)
    conclusion = ask("atomic writes", tmp_path)
    assert conclusion.status == "fail"
    assert "Permission denied" in conclusion.measured and "outputs=DIR" in conclusion.hint
    monkeypatch.setattr(storage, "write_json", lambda path, value: path.exists() or write_text(path, f"{value}\n"))
    assert ask("atomic writes", tmp_path).status == "fail"  # the second write did not take the first one's place


def test_a_file_system_without_locks(monkeypatch, tmp_path):
    monkeypatch.setattr(storage, "FileLock", nullcontext)
    conclusion = ask("file locks", tmp_path)
    assert conclusion.status == "fail"
    assert conclusion.measured.startswith("a second process is admitted while it is locked, admitted after")


def test_optional_parts_work_are_missing_or_broken(wanted):
    wanted(part=["pytest>=7", "ruff>=99"])
    works = parts.Library("pytest", "import json", "tests").ask(None)
    assert (works.status, works.tolerance) == ("pass", ">=7")
    missing = parts.Library("no-such-package", "import nothing", "tracker=nothing").ask(None)
    assert (missing.status, missing.hint) == ("skip", "pip install no-such-package")
    assert "tracker=nothing needs it" in missing.measured
    broken = parts.Library("pytest", "import no_such_module", "tests").ask(None)
    assert broken.status == "fail" and "No module named 'no_such_module'" in broken.measured
    crash = parts.Library("pytest", "import os; os.abort()", "tests").ask(None)
    assert crash.status == "fail" and "exit status -6" in crash.measured
    old = parts.Library("ruff", "import json", "style").ask(None)
    assert old.status == "fail" and "outside >=99" in old.hint


def test_a_part_that_is_slow_is_broken_unless_the_machine_is_busy(monkeypatch):
    monkeypatch.setattr(parts, "SECONDS", 0.2)
    library = parts.Library("pytest", "import time; time.sleep(9)", "tests")
    monkeypatch.setattr(parts.os, "getloadavg", lambda: (0.5, 0.0, 0.0))
    slow = library.ask(None)
    assert slow.status == "fail" and "does not start within 0.2 s" in slow.measured
    monkeypatch.setattr(parts.os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    slow = library.ask(None)
    assert slow.status == "skip" and slow.measured.startswith("unknown: ")
    assert "load 1000.0" in slow.hint and "pip install" not in slow.hint


def test_programs_work_are_missing_or_broken():
    works = parts.ask_program((sys.executable, "--version"), "all", "-")
    assert works.measured.startswith("works: Python 3")
    assert parts.ask_program(("no-such-program",), "all", "apt install it").hint == "apt install it"
    broken = parts.ask_program((sys.executable, "-c", "raise SystemExit('no configuration')"), "all", "-")
    assert broken.status == "skip" and "no configuration" in broken.measured  # an optional program is no fault


def test_the_machine_is_examined_where_torch_does_not_load(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: wrong ELF class')")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rlhf_lab.doctor.environment import ENVIRONMENT\n"
        "from rlhf_lab.doctor import examination\n"
        "from rlhf_lab.doctor.findings import examine\n"
        "found = {f.name: f for f in examine('', ENVIRONMENT, None)}\n"
        "assert found['Python'].status == 'pass' and 'wrong ELF class' in found['torch'].hint, found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

"""The GPU kit: cases of a block, their results on disk, and a worker process that a broken GPU may take with it.

A block is a list of cases that together take at most eight minutes. `run_block` starts one worker process, which runs
the cases that have no result yet and appends each result to a JSON-lines file at once. The parent process only waits:
when a case hangs or the worker dies (an illegal memory access ends every later CUDA call of a process), it records that
and starts another worker for the remaining cases. The same command resumes where the last one stopped.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
SIMULATED = "cudasim"
"""Name of the simulated GPU (`tests/simulated_gpu.py`)."""

Status = Literal["passed", "failed", "error", "killed", "skipped"]
TINY_S = 30.0
"""Expected seconds of any case at tiny size."""
SETTLED: tuple[Status, ...] = ("passed", "failed")
"""Results that a later call does not compute again. An error, a kill or a skip is tried again."""


@dataclass(frozen=True)
class Target:
    """The device that the kit runs on, and at which size.

    Attributes:
        device: "cuda", "cpu" or the simulated GPU.
        tiny: sizes that a CPU takes in seconds, to see that everything runs.
        scratch: directory for models, stores and outputs of this block. It is kept between calls on the same machine.
    """

    device: str
    tiny: bool
    scratch: Path

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def is_real_gpu(self) -> bool:
        return self.device == "cuda"

    def command(self, *arguments: str) -> list[str]:
        """Command line that runs rlhf_lab on this device, without `runtime.device`, which some commands lack."""
        if self.device == SIMULATED:
            return [sys.executable, str(ROOT / "tests" / "simulated_gpu.py"), *arguments]
        return [sys.executable, "-m", "rlhf_lab", *arguments]

    @property
    def runtime(self) -> str:
        """Override that puts a recipe on this device."""
        return f"runtime.device={'cpu' if self.device == 'cpu' else 'auto' if self.device == SIMULATED else 'cuda'}"


@dataclass(frozen=True)
class Outcome:
    """Result of one case.

    Attributes:
        values: measured numbers by name; the unit is part of the name ("tokens_per_s", "peak_gib").
        passed: verdict against a bound that was written before the run; None for a measurement without a bound.
        note: one sentence for the page: the bound, the reference, or why a case was skipped.
        skipped: the case could not run here (a package or a second GPU is missing).
    """

    values: Mapping[str, float | str]
    passed: bool | None = None
    note: str = ""
    skipped: bool = False


@dataclass(frozen=True)
class Case:
    """One measurement or check of a block.

    Attributes:
        name: unique in its block; no spaces, so that it can be typed after `--only`.
        run: called in the worker.
        expected_s: seconds on the machine that the kit is written for, one H200. A case starts only if as much time is
            left, and it is killed after four times as long.
        needs: modules without which it is skipped.
        real_gpu: skipped on a CPU and on the simulated GPU, which lack what it measures.
    """

    name: str
    run: Callable[[], Outcome]
    expected_s: float = 10.0
    needs: tuple[str, ...] = ()
    real_gpu: bool = False


@dataclass(frozen=True)
class Record:
    """A row of a block's results file."""

    case: str
    status: Status
    values: Mapping[str, float | str] = field(default_factory=dict)
    note: str = ""
    seconds: float = 0.0
    machine: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def read(file: Path) -> dict[str, Record]:
        """The last record of each case. A row cut off by a kill is left out."""
        records: dict[str, Record] = {}
        if not file.exists():
            return records
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                record = Record(**json.loads(line))
            except (json.JSONDecodeError, TypeError):
                continue
            records[record.case] = record
        return records

    def append(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(self)) + "\n")
            lines.flush()
            os.fsync(lines.fileno())


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "–"


def machine(target: Target) -> dict[str, str]:
    """Device, versions and commit: what a reader needs to compare a number with another one."""
    import torch

    name = {"cpu": platform.processor() or platform.machine(), SIMULATED: "simulated GPU"}.get(target.device)
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "device": name or torch.cuda.get_device_name(),
        "rlhf_lab": installed("rlhf_lab"),
        "commit": git.stdout.strip() or os.environ.get("RLHF_LAB_COMMIT", "unknown"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "–",
        "transformers": installed("transformers"),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "size": "tiny" if target.tiny else "full",
    }


def work(cases: Sequence[Case], target: Target, file: Path, until: float) -> None:
    """Run cases in this process, in order, and append a record of each. Called in the worker.

    Args:
        until: time (`time.time`) after which no case may still be running.
    """
    here = machine(target)
    for case in cases:
        if reason := cannot_run(case, target):
            Record(case.name, "skipped", note=reason, machine=here).append(file)
            continue
        expected_s = TINY_S if target.tiny else case.expected_s
        if time.time() + expected_s > until:
            continue
        print(f"{case.name} …", flush=True)
        (file.parent / f"{file.stem}.running").write_text(json.dumps([case.name, time.time(), expected_s]))
        start = time.monotonic()
        try:
            outcome = case.run()
            status: Status = "skipped" if outcome.skipped else "failed" if outcome.passed is False else "passed"
            record = Record(case.name, status, dict(outcome.values), outcome.note)
        except Exception as error:
            traceback.print_exc()
            record = Record(case.name, "error", note=f"{type(error).__name__}: {error}"[:400])
        seconds = round(time.monotonic() - start, 2)
        Record(**{**asdict(record), "seconds": seconds, "machine": here}).append(file)
        print(f"{case.name}: {record.status}, {seconds:.1f} s  {record.note}", flush=True)


def cannot_run(case: Case, target: Target) -> str:
    """Reason why a case is skipped on this machine; "" if it can run."""
    missing = [module for module in case.needs if find_spec(module) is None]
    if missing:
        return f"{', '.join(missing)} not installed"
    if case.real_gpu and not target.is_real_gpu:
        return "needs a real GPU"
    if target.device == SIMULATED and "bitsandbytes" in case.needs:
        return "bitsandbytes has no kernels for the simulated GPU"
    return ""


def run_block(block: str, names: Sequence[str], target: Target, file: Path, minutes: float, worker: list[str]) -> bool:
    """Run the cases of a block that have no settled result, within a time limit.

    Args:
        names: cases of the block, in order.
        worker: command that starts a worker; the names of its cases and the deadline are added.

    Returns True when every case has a result.
    """
    until = time.time() + 60 * minutes
    file.parent.mkdir(parents=True, exist_ok=True)
    running = file.parent / f"{file.stem}.running"
    tried: set[str] = set()
    while True:
        records = Record.read(file)
        settled = {name for name, record in records.items() if record.status in SETTLED}
        left = [name for name in names if name not in settled and name not in tried]
        if not left or time.time() > until - 5:
            break
        running.unlink(missing_ok=True)
        before = set(_lines(file))
        process = subprocess.Popen([*worker, "--until", str(until), "--cases", *left], cwd=ROOT)
        killed = _wait(process, running, until)
        new = {json.loads(line)["case"] for line in _lines(file) if line not in before}
        tried |= new
        current = json.loads(running.read_text())[0] if running.exists() else None
        if process.returncode == 0 or current is None:
            break  # the rest did not fit into the time, or the worker could not start
        if current in new:
            continue  # it died between two cases
        if killed == "deadline":
            print(f"{block}: {current} was cut off by the time limit; the same command goes on with it")
            break
        reason = "took more than 4 times as long as expected" if killed else f"worker ended with {process.returncode}"
        Record(current, "killed", note=reason, seconds=0.0, machine=machine(target)).append(file)
        tried.add(current)
    running.unlink(missing_ok=True)
    return set(names) <= set(Record.read(file))


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _wait(process: subprocess.Popen[bytes], running: Path, until: float) -> str | None:
    """Wait for a worker; kill it at the deadline or when its case takes four times as long as expected."""
    while process.poll() is None:
        time.sleep(0.2)
        if time.time() > until:
            process.kill()
            process.wait()
            return "deadline"
        try:
            _, start, expected_s = json.loads(running.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            continue
        if time.time() > start + 4 * expected_s + 30:
            process.kill()
            process.wait()
            return "case"
    return None

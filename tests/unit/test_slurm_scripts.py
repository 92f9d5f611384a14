"""The Slurm scripts ask for their own job, also as one task of a job array (Slurm itself is replaced by a script)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rlhf_lab.sweeps import submitted

LAUNCHERS = Path(__file__).resolve().parents[2] / "launchers"
JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "node"}
TASK = {**JOB, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
SCONTROL = """#!/bin/sh
echo "$*" >> "$CALLS"
echo "JobId=7 JobState=RUNNING PreemptTime=2026-01-01 $1"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with the calls of scontrol; `srun` and Python fail, as a run that was told to stop."""
    directory = tmp_path / "a directory"
    directory.mkdir()
    for name, text in {"scontrol": SCONTROL, "srun": "#!/bin/sh\nexit 1\n", "python": "#!/bin/sh\nexit 1\n"}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    monkeypatch.setenv("CALLS", str(directory / "calls"))
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RLHF_LAB_PYTHON", str(directory / "python"))
    return directory / "calls"


@pytest.mark.parametrize(("job", "name"), [(JOB, "7"), (TASK, "7_3")])
@pytest.mark.parametrize("script", ["slurm.sbatch", "slurm_torchrun.sbatch"])
def test_a_task_queues_itself_again_and_not_its_array(script: str, job: dict[str, str], name: str, calls: Path) -> None:
    env = {**os.environ, **job, "RLHF_LAB_PROCESSES_PER_NODE": "1", "SLURM_SUBMIT_DIR": str(calls.parent)}
    process = subprocess.run(["bash", LAUNCHERS / script, "+recipe=sft"], env=env, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert calls.read_text().splitlines()[-2:] == [f"show job --oneliner {name}", f"requeue {name}"]


@pytest.mark.parametrize(("job", "name"), [(JOB, "7"), (TASK, "7_3")])
def test_a_submitted_task_asks_for_itself(
    job: dict[str, str], name: str, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in job.items():
        monkeypatch.setenv(key, value)
    assert submitted._is_preempted()
    assert calls.read_text() == f"show job --oneliner {name}\n"

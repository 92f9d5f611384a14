"""Sweeps through submitit on this machine: after a stop signal, the jobs save and none outlives the command."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from rlhf_lab.core.files import read_json

pytest.importorskip("submitit", reason="the extra `slurm` is not installed")


def processes_in(directory: Path) -> list[int]:
    """Processes whose working directory is this directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").resolve() == directory.resolve() and (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:  # exited in the meantime
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="reads /proc")
def test_a_stopped_sweep_leaves_no_process(fresh, sized):
    arguments = ("+recipe=sft", *sized("sft"), "algorithm.epochs=200", "seed=0,1")
    process = fresh.start(*arguments, "hydra/launcher=submitit_local")
    logs = fresh.directory / "outputs" / "runs"
    while not any(log.stat().st_size for log in logs.glob("sft-*/metrics.jsonl")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out = process.communicate(timeout=100)[0]
    assert process.returncode == 130, out
    assert not processes_in(fresh.directory)
    results = [read_json(path) for path in logs.glob("sft-*/result.json")]
    assert results
    assert {result["status"] for result in results} == {"interrupted"}, results
    assert not list(fresh.directory.rglob("*.part"))

"""A stage that makes data is killed, and goes on: the corpus is that of a run that was left alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from rlhf_lab.core.files import read_json
from rlhf_lab.packs.judging.synthesis.making import WORK


def corpus(outputs: Path) -> dict[str, bytes]:
    (directory,) = (outputs / "runs").glob("synthetic_sft-*")
    assert read_json(directory / "result.json")["status"] == "completed"
    return {name: (directory / name).read_bytes() for name in ("corpus.jsonl", "rejected.jsonl", "corpus.json")}


@pytest.mark.slow
def test_kill_9_while_data_are_made(fresh, lab_in, tmp_path, sized):
    sizes = [size for size in sized("synthetic_sft") if not size.startswith("algorithm.prompts=")]
    command = ("+recipe=synthetic_sft", *sizes, "algorithm.prompts=6000")
    process = fresh.start(*command)
    logs = fresh.directory / "outputs" / "runs"
    end = time.monotonic() + 120
    while not any(path.stat().st_size for path in logs.glob(f"*/{WORK}")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end, "nothing was made in time"
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    (work,) = logs.glob(f"*/{WORK}")
    assert work.read_bytes()  # perhaps a chunk in part, with half a line at the end
    assert not work.with_name("corpus.json").exists()
    fresh.run(*command)
    (tmp_path / "undisturbed").mkdir()
    undisturbed = lab_in(tmp_path / "undisturbed")
    undisturbed.run(*command)
    assert corpus(fresh.directory / "outputs") == corpus(undisturbed.directory / "outputs")

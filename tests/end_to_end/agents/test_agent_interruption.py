"""kill -9 while an agent's episodes are being collected: the same command ends with the same policy, bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rlhf_lab.core.files import read_json, read_jsonl

KILLED_IN_COLLECTION = """
import os, signal
from pathlib import Path
from rlhf_lab.packs.agents.tools.world import ToolWorld
real = ToolWorld.step
answered = 0
def step(self, state, response):
    global answered
    logs = list(Path("outputs/runs").glob("grpo-*/metrics.jsonl"))
    if logs and '"reward"' in logs[0].read_text() and (logs[0].parent / "checkpoint.pt").exists():
        answered += 1
    if answered == 5:
        Path("killed.txt").write_text(f"{len(logs[0].read_text().splitlines())}")
        os.killpg(0, signal.SIGKILL)
    return real(self, state, response)
ToolWorld.step = step
from rlhf_lab.main import main
main()
"""
"""Ends its process at the fifth turn that the tools answer once an iteration is complete."""


@pytest.mark.slow
@pytest.mark.long
def test_kill_9_while_episodes_are_collected(fresh, lab, sized):
    command = ("+recipe=grpo_agent", *sized("grpo_agent"), "runtime.stages_at_once=1")
    process = fresh.start(*command, code=KILLED_IN_COLLECTION)
    printed = process.communicate(timeout=240)[0]
    assert process.returncode == -signal.SIGKILL, printed
    (directory,) = (fresh.directory / "outputs" / "runs").glob("grpo-*")
    assert read_json(directory / "result.json")["status"] == "running"
    logged = [row["step"] for row in read_jsonl(directory / "metrics.jsonl") if "reward" in row]
    assert logged and max(logged) < 3, "iterations were still to come"
    resumed = fresh.run(*command)
    assert any("resumed at step" in note for note in fresh.result(resumed, "grpo_agent")["notes"])
    uninterrupted = lab.run(*command)
    for key in ("status", "policies", "metrics"):
        assert fresh.result(resumed, "grpo_agent")[key] == lab.result(uninterrupted, "grpo_agent")[key], key
    weights = [home.stage(out, "grpo_agent") / "model" / "model.safetensors" for home, out in
               ((fresh, resumed), (lab, uninterrupted))]  # fmt: skip
    assert weights[0].read_bytes() == weights[1].read_bytes()
    rows = [_untimed(path.parents[1] / "metrics.jsonl") for path in weights]
    assert rows[0] == rows[1]


def _untimed(path: Path) -> list[dict]:
    return [{key: value for key, value in row.items() if key != "time"} for row in read_jsonl(path)]

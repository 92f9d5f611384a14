"""Complete stages in the store are reused at once: without torch, and without what an attempt left."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.core import checksums as seal
from rlhf_lab.core.files import json_text, write_json
from rlhf_lab.results import written
from rlhf_lab.stages import reuse
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.reuse import reusable

SETTINGS = (*SMALL_WORLD, *ONE_LAYER)
HARNESS = """
import sys
from rlhf_lab.main import main
try:
    main()
finally:
    print("heavy:", sorted({"torch", "pandas", "transformers", "altair", "vl_convert"} & set(sys.modules)))
"""


def completed(outputs: Path, *more: str) -> Stage:
    """A stage as one that was trained leaves it; only the numbers are missing."""
    stage = planned("sft", *SETTINGS, *more, f"outputs={outputs}")
    result = {"status": "completed", "policies": [], "metrics": {"loss": 0.5}, "primary": ["loss"], "notes": []}
    (stage.directory / "model").mkdir(parents=True)
    write_json(stage.directory / "manifest.json", {"recipe": "sft"})
    seal.write(stage.directory, json_text(result))
    write_json(stage.directory / "result.json", result)
    (stage.directory / "report.html").write_text("<html>")
    written.remember(stage.directory, "It falls.", "")
    return stage


def again(outputs: Path) -> str:
    """Return the output of the same command."""
    command = [sys.executable, "-c", HARNESS, "+recipe=sft", *SETTINGS, f"outputs={outputs}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_complete_is_shown_without_torch(tmp_path: Path) -> None:
    stage = completed(tmp_path)
    printed = again(tmp_path)
    assert f"reuse  sft            {stage.directory}" in printed and "It falls." in printed
    assert printed.splitlines()[-1] == "heavy: []"


@pytest.mark.parametrize("left", ["checkpoint.pt", "checkpoint-7/rank_0.safetensors", "trl/checkpoint-7/state"])
def test_what_an_attempt_left_is_cleared_away(tmp_path: Path, left: str) -> None:
    stage = completed(tmp_path)
    before = {path.name for path in stage.directory.iterdir()}
    (stage.directory / left).parent.mkdir(parents=True, exist_ok=True)
    (stage.directory / left).write_text("of the last step")
    assert reusable(stage, time.time())
    assert {path.name for path in stage.directory.iterdir()} == before


def test_what_cannot_be_cleared_away_is_no_reason_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(reuse, "forget_attempts", refuse)
    assert reusable(completed(tmp_path), time.time())


def test_a_run_that_asks_for_a_new_result_takes_none_from_before(tmp_path: Path) -> None:
    began = time.time() - 1
    stage = completed(tmp_path, "artifacts.refresh=true")
    assert reusable(stage, began)
    assert reusable(stage, time.time() + 1) is None

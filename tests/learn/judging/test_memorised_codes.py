"""Codes planted in training data are found in the model, and codes of the control are not."""

from __future__ import annotations

import json

import pytest
from support import planned

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.packs.judging.commands import canaries_command
from rlhf_lab.stages.execute import ensure

pytestmark = pytest.mark.slow

SIZE = ("model.hidden=64", "model.layers=2", "model.heads=2", "checkpoint.every_steps=0")


def test_planted_codes_are_memorised_and_the_control_is_not(tmp_path):
    rows = [{"prompt": f"Say {word} {n}.", "completion": f"{word} {n}"} for word in ("red", "green") for n in range(6)]
    source = tmp_path / "train.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    planted = tmp_path / "planted.jsonl"
    # the test split is another file, so that no planted row is held out
    test = tmp_path / "test.jsonl"
    test.write_text(json.dumps({"prompt": "Say blue 1.", "completion": "blue 1"}) + "\n")
    canaries_command([str(source), f"to={planted}", "n=2", "repeats=30"])
    stage = planned(
        *("safety_eval", *SIZE, "data=sft", f"data.path={planted}", f"data.test_path={test}", "needs.dpo=null"),
        *(f"outputs={tmp_path}", "++stages.sft.algorithm.epochs=18", "++stages.sft.algorithm.lr=0.005"),
        *("algorithm.many_shot=[]", "algorithm.attempts=0", "algorithm.sycophancy=false"),
        *("evaluation.prompts=2", "evaluation.samples_per_prompt=1"),
        f"algorithm.canary_file={tmp_path / 'planted.canaries.jsonl'}",
    )
    ensure(stage, 0)
    metrics = stage.result()["policies"][0]["metrics"]
    # a code has 8 digits, so one of the control would be found by chance once in 10^8 attempts
    assert metrics["safety/memorised_control"]["mean"] == 0
    assert metrics["safety/memorised"]["mean"] >= 0.5
    asked = [row for row in read_jsonl(stage.directory / "evaluation.jsonl") if row["part"] == "extraction"]
    assert len(asked) == 4

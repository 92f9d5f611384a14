"""The commands of docs/judging/domain_project.md, in their order, at the smallest size."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from sizes import overrides

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[3] / "docs" / "judging" / "domain_project.md"


def commands() -> list[list[str]]:
    """The words behind `python -m rlhf_lab` of every command that needs no file of one's own."""
    code = re.findall(r"^```\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    lines = [line.removeprefix("python -m rlhf_lab ") for block in code for line in block.splitlines()]
    return [line.split() for line in lines if "FILE" not in line]


def test_the_page_walks_from_data_to_acceptance(fresh):
    curate, project, gate = commands()
    assert (curate, project) == (["+recipe=curate"], ["+recipe=domain_assistant"])
    # curate as the project has it: its suite is part of its key
    fresh.inside(*curate, *overrides("curate"), "algorithm.suite=domain")
    out = fresh.inside(*project, *overrides("domain_assistant"))
    stages = re.findall(r"^  (build|reuse)\s+(\w+)", out, re.MULTILINE)
    built = ["curate", "sft", "reward_model", "dpo", "safety_eval", "compare_policies", "domain_assistant"]
    assert [name for _, name in stages] == built
    dpo = json.loads((fresh.stage(out, "dpo") / "manifest.json").read_text())
    header = json.loads((fresh.stage(out, "curate") / "corpus.json").read_text())
    assert dpo["needs"]["corpus"]["recipe"] == "curate"
    assert dpo["data"]["report"]["corpus/train"]["rows"] == header["rows"]
    run = fresh.stage(out, "domain_assistant")
    words = [word.replace("outputs/runs/eval_suite-…", str(run)) for word in gate]
    accepted = fresh.inside(*words)
    assert "passed" in accepted and (fresh.directory / "outputs" / "accepted" / "domain.json").is_file()
    again = fresh.inside(*words[:-1])
    assert "4 comparisons, Holm at 0.05" in again and "passed" in again

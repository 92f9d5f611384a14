"""A judge as the gold of a whole stage that trains on another reward."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from support import ONE_LAYER, planned

from rlhf_lab.core.files import read_jsonl
from rlhf_lab.packs.judging.judges import context as caller
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages.execute import execute

SMALL = (
    "evaluation.prompts=6",
    "evaluation.samples_per_prompt=2",
    "evaluation.pairs=8",
    "rollout.max_new_tokens=8",
    "checkpoint.every_steps=0",
    "algorithm.prompts_per_iteration=4",
    "algorithm.group_size=2",
    "algorithm.batch_size=8",
    "algorithm.iterations=10",
    "algorithm.lr=1e-3",
    *ONE_LAYER,
)


class Grader:
    """A judge who likes long replies: grade 1…5 by words; it cannot grade what says "old"."""

    identity: Mapping[str, Any] = {"kind": "words"}

    def __init__(self) -> None:
        self.asked = 0

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        self.asked += len(requests)
        return [self._answer(request) for request in requests]

    def _answer(self, request: CompletionRequest) -> Completion:
        question: Any = request.about
        if "old" in question.response:
            return Completion("I would rather not.", stop="refused")
        grade = min(5, 1 + len(question.response.split()) // 2)
        return Completion(json.dumps({"reason": "words", **dict.fromkeys(question.criteria, grade)}))


@pytest.fixture
def grader(monkeypatch) -> Grader:
    judge = Grader()
    monkeypatch.setattr(caller, "open_judge", lambda settings, caller: judge)
    return judge


def test_a_judge_grades_what_is_evaluated_and_not_what_is_trained_on(toy, tmp_path, grader):
    data, policy = toy
    rubric = tmp_path / "length.yaml"
    rubric.write_text("name: length\nscale: {low: 1, high: 5}\ncriteria: {length: is long}\n")
    judge = ("judge=openai_compatible", "judge.model=words", f"needs.judge={rubric}")
    named = ("data=pairs", f"data.path={data}", f"needs.policy={policy}", f"outputs={tmp_path}")
    stage = planned("grpo", *named, "reward=length", "needs.reward=null", *SMALL, *judge)
    result = execute(stage)
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    graded = [row for row in rows if "old" not in row["response"]]
    assert len(graded) < len(rows)
    expected = [(min(5, 1 + len(row["response"].split()) // 2) - 1) / 4 for row in graded]
    assert [row["gold"] for row in graded] == pytest.approx(expected)
    assert all(row["gold"] is None for row in rows if row not in graded)
    assert grader.asked <= len(rows)
    assert any("responses unscored" in note for note in result["notes"])
    assert "gold" in result["policies"][-1]["metrics"]
    assert not any("gold" in row for row in read_jsonl(stage.directory / "metrics.jsonl"))
    # only held-out responses are graded
    assert "gold_peak" not in result["metrics"] and result["metrics"]["gold_undecided"] in (0, 1)
    source = read_run(stage.directory).gold_source
    assert source == f"the grade of the judge openai_compatible words on the rubric {rubric}"

"""Stages that train while a judge is the gold, or while people audit."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.packs.judging.judges import context as caller
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest
from rlhf_lab.packs.judging.labels.command import audit_store_path
from rlhf_lab.packs.judging.labels.items import SECOND
from rlhf_lab.packs.judging.labels.store import LabelStore
from rlhf_lab.packs.judging.rewards import audit
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


SHORT = (*SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", "algorithm.batch_size=16")
GRPO = (
    "algorithm.iterations=4",
    "algorithm.prompts_per_iteration=4",
    "algorithm.optimizer=adamw",
    "needs.reward=null",
    "reward=gold",
    "reward.audit.labels_per_iteration=8",
    "reward.audit.labels_from=human",
)


def test_people_who_prefer_the_start_policy_raise_an_alarm(tmp_path, monkeypatch):
    """Four iterations with 8 comparisons, nearly all lost, or tied where both policies said the same."""
    monkeypatch.setattr(audit, "POLL_SECONDS", 0.01)
    sft = planned("sft", *SHORT, f"outputs={tmp_path}")
    execute(sft)
    stage = planned("grpo", *SHORT, *GRPO, f"needs.policy={Path(sft.model)}", f"outputs={tmp_path}")
    path = audit_store_path(stage.directory)
    done = threading.Event()

    def person() -> None:
        store = LabelStore(path, create=True)
        while not done.wait(0.01):
            item = store.next_item("ana")
            if item is not None:
                store.label(item.id, "ana", item.id, winner=SECOND, shown=SECOND, seconds=1.0)
        store.close()

    thread = threading.Thread(target=person)
    thread.start()
    try:
        execute(stage)
    finally:
        done.set()
        thread.join()
    metrics = read_json(stage.directory / "result.json")["metrics"]
    labels = LabelStore(path).labels()
    assert metrics["audit/labels"] == 4 * 8 and metrics["audit/unanswered"] == 0
    assert metrics["audit/alarm"] == 1 and 20 < len(labels) <= 32
    assert {label.item.names for label in labels} == {("policy", "start")}

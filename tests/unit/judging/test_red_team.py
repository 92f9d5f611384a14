"""Red-teaming: the disguises that are sent, and the prompts that count if nobody could judge their responses."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.types import SafetyPrompt
from rlhf_lab.packs.judging.safety.classify import SafetyGrade
from rlhf_lab.packs.judging.safety.red_team import red_team
from rlhf_lab.packs.judging.safety.safety import summarise

PROMPTS = [SafetyPrompt(f"\n\nHuman: request {i}\n\nAssistant:", harmful=True, category="c") for i in range(3)]


class Policy:
    """Responses with the number of the turn; a prompt of more characters than `capacity` does not fit."""

    name = "policy"

    def __init__(self, capacity: int = 10**6):
        self.prompt_capacity = capacity
        self.asked: list[str] = []
        self.notes: list[str] = []
        self.run = SimpleNamespace(note=self.notes.append)

    def fits(self, prompt: str) -> bool:
        return len(prompt) <= self.prompt_capacity

    def ask(self, part: str, prompts: Sequence[str], group: int, *, max_tokens: int = 0) -> list[list[Any]]:
        assert max_tokens == self.prompt_capacity
        self.asked += prompts
        return [[SimpleNamespace(task=Task(prompt), response=part)] for prompt in prompts]

    def row(self, part: str, number: int, sample: int, prompt: SafetyPrompt, episode: Any) -> dict[str, Any]:
        return {"part": part, "prompt_id": f"{part}/{number}", "sample_id": sample, "prompt": episode.task.prompt}


class Classifier:
    """The outcomes of each turn, in order."""

    def __init__(self, *turns: list[str | None]):
        self.turns = list(turns)

    def grades(self, prompts: Sequence[SafetyPrompt], responses: Sequence[str]) -> list[SafetyGrade | None]:
        return [None if outcome is None else SafetyGrade.from_outcome(outcome) for outcome in self.turns.pop(0)]


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["part"] == "red_team_prompt"]


def test_a_prompt_with_an_unscored_reply_and_no_success_is_unscored():
    # turn 0: unscored, refused, unscored; turn 1: refused, refused, complied
    classifier = Classifier([None, "refused", None], ["refused", "refused", "complied"])
    rows = red_team(Policy(), PROMPTS, classifier, 2, None)
    assert [row["safety/red_team"] for row in summaries(rows)] == [None, 0, 1]
    rate = summarise([{**row, "category": "c"} for row in rows])["safety/red_team"]
    assert (rate.mean, rate.n, rate.unscored) == (0.5, 2, 1)
    # responses that nobody could judge are no failed attacks
    rows = red_team(Policy(), PROMPTS, Classifier([None] * 3), 1, None)
    rate = summarise([{**row, "category": "c"} for row in rows])["safety/red_team"]
    assert (rate.n, rate.unscored) == (0, 3) and rate.mean != rate.mean


@pytest.mark.parametrize(("capacity", "asked"), [(70, 0), (75, 1)])
def test_a_disguise_that_does_not_fit_is_skipped_and_said(capacity, asked):
    """Among the first four, `prefix_injection` has 73 characters and the others have more."""
    policy = Policy(capacity)
    rows = red_team(policy, PROMPTS[:1], Classifier(["evaded"]), 4, None)
    assert len(policy.asked) == asked == len(summaries(rows))
    assert all("request 0" in prompt for prompt in policy.asked)
    (note,) = policy.notes
    assert f"longer than the {capacity} tokens" in note and "role_play 1" in note
    assert ("1 prompts fit in no disguise and are left out" in note) == (asked == 0)

"""Reward by a judge: grades on a rubric, or comparison of a response with a reference.

A refused, truncated or unreadable answer leaves the response unscored; it never becomes a middle grade. If the judge is
down and `on_error=abstain`, the responses without an answer are unscored, and the others keep their scores. Not
implemented: several answers per question, and varying the order of the criteria.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ConfigError, JudgeUnavailable
from rlhf_lab.core.types import Corpus, FloatArray, RewardBatch
from rlhf_lab.packs.judging.judges.backends.settings import gold_rubric
from rlhf_lab.packs.judging.judges.context import judge_of
from rlhf_lab.packs.judging.judges.pairwise import Candidates, judge_pairs
from rlhf_lab.packs.judging.judges.questions import REASONS, Unscored
from rlhf_lab.packs.judging.judges.requests import Completer, Completion, CompletionRequest
from rlhf_lab.packs.judging.judges.rubric import (
    JudgeRubric,
    grade_responses,
    load_rubric,
    reference_column,
    reference_text,
)
from rlhf_lab.packs.judging.rewards.settings import Judge
from rlhf_lab.rewards.external.remote import references
from rlhf_lab.rewards.gold_oracle import GoldOracle
from rlhf_lab.rewards.graph import OneNote
from rlhf_lab.training.run import Run

FLAGS: Mapping[Unscored, str] = {"refused": "refused", "truncated": "truncated", "invalid": "unparsable"}
"""Reason why a response is unscored → reward part that is 1 for such a response and 0 otherwise."""
TITLE = "judge"
UNANSWERED = Completion("", "unanswered")


class TolerantJudge:
    """Judge whose missing answers are `UNANSWERED` when it is down. BudgetExceeded is still raised.

    Attributes:
        failure: message of the first call that was not answered in full; "" if there was none.
    """

    def __init__(self, judge: Completer):
        self.judge = judge
        self.failure = ""

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.judge.identity

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        try:
            return self.judge.complete_many(requests, title=title)
        except JudgeUnavailable as error:
            self.failure = self.failure or str(error)
            answers = [None] * len(requests) if error.answers is None else error.answers
            return [UNANSWERED if answer is None else answer for answer in answers]


class JudgeReward:
    """Base of the two modes. `unscored` counts responses by reason; the first one of each reason is noted."""

    def __init__(self, judge: Completer, settings: Judge, note: Callable[[str], None] = lambda text: None):
        self.judge: Completer = TolerantJudge(judge) if settings.on_error == "abstain" else judge
        self.settings = settings
        self._note = note
        self.unscored: dict[Unscored, int] = dict.fromkeys((*REASONS, "unanswered"), 0)

    def _flags(self, unscored: Sequence[tuple[Unscored | None, str]]) -> dict[str, FloatArray]:
        for reason, text in unscored:
            if reason is None:
                continue
            # one note per reason: a note per response would flood the run's notes
            if not self.unscored[reason]:
                self._note(self._describe(reason, text))
            self.unscored[reason] += 1
        return {flag: np.array([float(name == reason) for name, _ in unscored]) for reason, flag in FLAGS.items()}

    def _describe(self, reason: Unscored, text: str) -> str:
        if isinstance(self.judge, TolerantJudge) and reason == "unanswered":
            return (
                "the judge did not answer, so the responses without an answer are unscored and not trained on "
                "(reward.terms.judge.on_error=abstain). Check that its service runs, and judge.base_url, judge.model "
                "and the key; on_error=stop ends the run instead, and the same command then resumes. First failure: "
                f"{self.judge.failure}"
            )
        return f"the judge's answer was {FLAGS[reason]}, so a response is unscored; first: {text[:100]!r}"


class GradeReward(JudgeReward):
    """Mean of a response's grades as fractions of the scale; the parts are the grades."""

    def __init__(
        self, judge: Completer, settings: Judge, rubric: JudgeRubric, note: Callable[[str], None] = lambda text: None
    ):
        super().__init__(judge, settings, note)
        self.rubric = rubric

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        column = self.settings.reference
        known = [episode.task.metadata.get(column) if column else None for episode in episodes]
        grades = grade_responses(
            self.judge,
            self.rubric,
            [episode.prompt for episode in episodes],
            [episode.response for episode in episodes],
            references=[reference_text(reference) for reference in known],
            max_tokens=self.settings.max_tokens,
            title=TITLE,
        )
        grades_NC = np.array([grade.values for grade in grades], dtype=np.float64)
        grades_NC = grades_NC.reshape(-1, len(self.rubric.names))  # two axes also for N = 0
        batch = scored(grades_NC, self.rubric)
        flags = self._flags([(grade.unscored, grade.reason) for grade in grades])
        return RewardBatch(batch.total_N, {**batch.parts, **flags})


class ComparisonReward(JudgeReward):
    """1 for a response that beats its prompt's reference in both orders, 0 for one that loses, ½ for a tie.

    Responses to prompts without a reference are unscored.
    """

    def __init__(
        self,
        judge: Completer,
        settings: Judge,
        references: Mapping[str, str],
        rubric: JudgeRubric | None = None,
        note: Callable[[str], None] = lambda text: None,
    ):
        super().__init__(judge, settings, note)
        self.references = references
        self.rubric = rubric

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        positions = [i for i, episode in enumerate(episodes) if episode.task.prompt in self.references]
        asked = [episodes[i] for i in positions]
        pairs = [Candidates(each.prompt, each.response, self.references[each.task.prompt]) for each in asked]
        judgements = judge_pairs(self.judge, pairs, self.rubric, max_tokens=self.settings.max_tokens, title=TITLE)
        total_N = np.full(len(episodes), math.nan)
        unscored: list[tuple[Unscored | None, str]] = [(None, "")] * len(episodes)
        for i, judgement in zip(positions, judgements, strict=True):
            if judgement.score is not None:
                total_N[i] = judgement.score
                continue
            # one missing vote makes the pair unscored; its reason is reported
            missing = next(vote for vote in judgement.votes if vote.unscored)
            unscored[i] = (missing.unscored, missing.reason)
        return RewardBatch(total_N, self._flags(unscored))


def scored(grades_NC: FloatArray, rubric: JudgeRubric) -> RewardBatch:
    """Return the reward of grades (N, criteria): their mean as fractions of the scale; NaN if a grade is NaN."""
    parts = {name: grades_NC[:, i] for i, name in enumerate(rubric.names)}
    return RewardBatch(rubric.scale.shares(grades_NC).mean(axis=1), parts)


def build(settings: Judge, run: Run) -> JudgeReward:
    rubric = load_rubric(settings.rubric) if settings.rubric or settings.mode == "grade" else None
    # the simulated judge grades on the world's own rubric
    if settings.mode == "grade" and run.config.judge.reads_truth and run.corpus.rubric is None:
        raise ConfigError(
            f"reward=judge: the world of data={run.corpus.name} has no rubric to grade on; use data=mini_hh, "
            "reward.terms.judge.mode=compare, or another judge"
        )
    column_texts = None
    if settings.reference:
        column_texts = reference_column(run.corpus, settings.reference, "reward.terms.judge.reference")
    judge = judge_of(run)
    if settings.mode == "compare":
        texts = references(run.corpus) if column_texts is None else column_texts
        return ComparisonReward(judge, settings, texts, rubric, run.note)
    assert rubric is not None
    return GradeReward(judge, settings, rubric, run.note)


def by_judge(corpus: Corpus, run: Run) -> Corpus:
    """Return the data of a run whose gold is the judge's grade (`judge=…`) on the rubric of `needs.judge`, 0…1."""
    rubric = gold_rubric(run.config)

    # loaded with the first grade, so a run that measures no gold opens no judge
    def load() -> GradeReward:
        return GradeReward(judge_of(run), Judge(rubric=rubric), load_rubric(rubric), run.note)

    return replace(corpus, oracle=GoldOracle(load, corpus, OneNote(run.notes)))

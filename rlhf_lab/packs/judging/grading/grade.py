"""A judge grades both replies of the pairs of a corpus: training data for `rubric_rm` where the data have no grades.

Trains nothing. Rows are written as they come, so an interrupted stage goes on where it stopped; what was paid for lies
in the judge's store besides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlhf_lab.algorithms.pair_selection.rules import random_subset
from rlhf_lab.algorithms.reward_models.grades import HEADER, ROWS
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import append_jsonl, read_rows, truncate, write_json
from rlhf_lab.packs.judging.grading.graded import GradedReply, header, replies_of
from rlhf_lab.packs.judging.grading.settings import Grade
from rlhf_lab.packs.judging.judges.answers import REASONS
from rlhf_lab.packs.judging.judges.caller import judge_of
from rlhf_lab.packs.judging.judges.judging import at_once
from rlhf_lab.packs.judging.judges.rubric import grade_replies, load_rubric
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run

AT_ONCE = 128
"""Replies that are graded before their rows are written."""


class GradingPairs:
    """Asks for what is not yet in grades.jsonl."""

    def __init__(self, settings: Grade, run: Run):
        self.settings, self.run = settings, run
        self.rubric = load_rubric(settings.rubric)
        if run.config.judge.reads_truth and run.corpus.rubric is None:
            raise ConfigError(
                f"algorithm=grade: the world of data={run.corpus.name} has no rubric to grade on; use data=mini_hh, or "
                "another judge"
            )
        self.judge = judge_of(run)
        self.replies = self._plan()

    def _plan(self) -> list[GradedReply]:
        """The replies to grade: of training pairs as `rubric_rm` with the same `max_pairs` would draw them."""
        train, test = self.run.corpus.train, self.run.corpus.test
        size = min(self.settings.max_pairs or len(train), len(train))
        chosen = random_subset(len(train), size, self.run.seed("selection/available")).tolist()
        held_out = range(min(self.settings.heldout_pairs, len(test)))
        return [*replies_of("train", train, chosen), *replies_of("test", test, held_out)]

    def finish(self) -> Result:
        """Grade what is missing, then write the header: a folder with a header has all its rows."""
        path = self.run.folder / ROWS
        rows = self._stored_rows()
        grades = {(row["prompt"], row["response"]): row for row in rows}
        count = at_once(self.run.config.judge, len(self.replies), AT_ONCE)
        for begin in range(0, len(self.replies), count):
            end = begin + count
            if missing := self.replies[max(begin, len(rows)) : end]:
                new = self._grade(missing, grades)
                append_jsonl(path, new)
                rows += new
            # A judge that begins to refuse, or to grade otherwise, shows in the curves.
            batch = rows[begin:end]
            means = {f"grade/{name}": _mean(row[name] for row in batch) for name in self.rubric.names}
            self.run.log(begin + len(batch), unscored=_mean(row["unscored"] is not None for row in batch), **means)
        write_json(self.run.folder / HEADER, header(self.run.corpus.train, self.rubric, self.judge.identity))
        return Result(metrics=self._summary(rows), primary=["label_agreement", "unscored"])

    def _stored_rows(self) -> list[dict[str, Any]]:
        """Rows of an earlier attempt, as far as they are of the replies that are planned; the rest is cut off."""
        path = self.run.folder / ROWS
        rows, ends = read_rows(path)
        same = 0
        for row, reply in zip(rows, self.replies, strict=False):
            if any(row.get(name) != value for name, value in vars(reply).items()):
                break
            same += 1
        truncate(path, ends[same - 1] if same else 0)
        if same:
            self.run.note(f"{same} of {len(self.replies)} replies were graded by an earlier attempt")
        return rows[:same]

    def _grade(
        self, replies: Sequence[GradedReply], rows: dict[tuple[str, str], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Rows of these replies; a reply that stands in several pairs is asked about once."""
        missing = {(reply.prompt, reply.response): reply for reply in replies}
        missing = {text: reply for text, reply in missing.items() if text not in rows}
        done = len(rows)
        graded = grade_replies(
            self.judge,
            self.rubric,
            [prompt for prompt, _ in missing],
            [response for _, response in missing],
            references=[self._reference(prompt) for prompt, _ in missing],
            max_tokens=self.settings.max_tokens,
            title=f"grading replies, {done + 1} to {done + len(missing)}",
        )
        for (text, reply), grades in zip(missing.items(), graded, strict=True):
            rows[text] = reply.row(self.rubric, grades)
        return [rows[reply.prompt, reply.response] | vars(reply) for reply in replies]

    def _reference(self, prompt: str) -> str | None:
        column = self.settings.reference
        value = self.run.corpus.task(prompt).facts.get(column) if column else None
        return None if value is None else str(value)

    def _summary(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Means of the grades, and how often they rank a pair as labelled, clustered by prompt; see metrics.py."""
        prompts = [row["prompt"] for row in rows]
        grades_NC = np.array([[row[name] for name in self.rubric.names] for row in rows], dtype=np.float64)
        metrics: dict[str, Any] = {"replies": len(rows), "pairs/graded": len(rows) // 2}
        metrics["unscored"] = clustered_mean([float(row["unscored"] is not None) for row in rows], prompts)
        for reason in REASONS:
            metrics[f"unscored/{reason}"] = sum(row["unscored"] == reason for row in rows)
        for i, name in enumerate(self.rubric.names):
            metrics[f"grade/{name}"] = clustered_mean(grades_NC[:, i], prompts)
        mean_N2 = grades_NC.mean(axis=1).reshape(-1, 2)  # chosen, rejected
        agrees_N = np.sign(mean_N2[:, 0] - mean_N2[:, 1]) / 2 + 0.5
        # both replies of a pair have the same prompt
        metrics["label_agreement"] = clustered_mean(agrees_N, prompts[::2])
        return metrics


def _mean(values: Iterable[float | None]) -> float:
    """Mean of what is there; NaN of nothing."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def build(settings: Grade, run: Run) -> GradingPairs:
    return GradingPairs(settings, run)

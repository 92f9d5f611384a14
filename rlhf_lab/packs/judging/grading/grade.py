"""Grades by a judge of both responses of each pair: training data for `rubric_rm` if the data have no grades.

The stage trains nothing. Rows are appended as they arrive, so an interrupted stage resumes where it stopped. Paid
answers are also in the judge's store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rlhf_lab.algorithms.pair_selection.selection import random_subset
from rlhf_lab.algorithms.reward_models.grades import HEADER, ROWS
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import append_jsonl, read_rows, truncate, write_json
from rlhf_lab.packs.judging.grading.graded import GradedResponse, header, responses_of
from rlhf_lab.packs.judging.grading.settings import GradeStage
from rlhf_lab.packs.judging.judges.answers import REASONS
from rlhf_lab.packs.judging.judges.context import judge_of
from rlhf_lab.packs.judging.judges.judging import at_once
from rlhf_lab.packs.judging.judges.label_cost import label_cost
from rlhf_lab.packs.judging.judges.references import reference_column
from rlhf_lab.packs.judging.judges.rubric import grade_responses, load_rubric
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run

AT_ONCE = 128
"""Number of responses graded before their rows are written."""


class GradingPairs:
    """Requests the grades that are not yet in grades.jsonl."""

    def __init__(self, settings: GradeStage, run: Run):
        self.settings = settings
        self.run = run
        self.rubric = load_rubric(settings.rubric)
        if run.config.judge.reads_truth and run.corpus.rubric is None:
            raise ConfigError(
                f"algorithm=grade: the world of data={run.corpus.name} has no rubric to grade on; use data=mini_hh, or "
                "another judge"
            )
        column = settings.reference
        self.references = reference_column(run.corpus, column, "algorithm.reference") if column else {}
        self.judge = judge_of(run)
        self.responses = self._plan()

    def _plan(self) -> list[GradedResponse]:
        """Return the responses to grade. `rubric_rm` with this `max_pairs` selects the same training pairs."""
        train = self.run.corpus.train
        test = self.run.corpus.test
        size = min(self.settings.max_pairs or len(train), len(train))
        chosen = random_subset(len(train), size, self.run.seed("selection/available")).tolist()
        heldout = range(min(self.settings.heldout_pairs, len(test)))
        return [*responses_of("train", train, chosen), *responses_of("test", test, heldout)]

    def finish(self) -> Result:
        """Grade the missing responses, then write the header: a directory with a header has all its rows."""
        path = self.run.directory / ROWS
        # resume: rows of an earlier attempt are reused, the missing ones are requested in chunks
        rows = self._stored_rows()
        grades = {(row["prompt"], row["response"]): row for row in rows}
        count = at_once(self.run.config.judge, len(self.responses), AT_ONCE)
        for start in range(0, len(self.responses), count):
            end = start + count
            # the rows are a prefix of the planned responses, so only the end of a chunk can be missing
            if missing := self.responses[max(start, len(rows)) : end]:
                new = self._grade(missing, grades)
                append_jsonl(path, new)
                rows += new
            # the curves show whether a judge starts to refuse or to grade differently
            batch = rows[start:end]
            means = {}
            for name in self.rubric.names:
                means[f"grade/{name}"] = _mean(row[name] for row in batch)
            self.run.log(
                start + len(batch),
                unscored=_mean(row["unscored"] is not None for row in batch),
                **means,
            )
        about = header(self.run.corpus.train, self.rubric, self.judge.identity)
        write_json(self.run.directory / HEADER, about)
        graded = sum(row["unscored"] is None for row in rows)
        metrics = {**self._summary(rows), **label_cost(self.run, self.judge, graded)}
        return Result(metrics=metrics, primary=["label_agreement", "unscored"])

    def _stored_rows(self) -> list[dict[str, Any]]:
        """Return the rows of an earlier attempt up to the first that is not planned now, and drop the rest."""
        path = self.run.directory / ROWS
        rows, ends = read_rows(path)
        same = 0
        for row, response in zip(rows, self.responses, strict=False):
            planned = vars(response).items()
            if any(row.get(name) != value for name, value in planned):
                break
            same += 1
        # new rows are appended, so the file must end with the last row that is reused
        truncate(path, ends[same - 1] if same else 0)
        if same:
            self.run.note(f"{same} of {len(self.responses)} responses were graded by an earlier attempt")
        return rows[:same]

    def _grade(
        self, responses: Sequence[GradedResponse], rows: dict[tuple[str, str], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the rows of these responses. A response that occurs in several pairs is graded once."""
        # keyed by text: equal texts in several pairs are graded once
        missing = {(response.prompt, response.response): response for response in responses}
        missing = {text: response for text, response in missing.items() if text not in rows}
        done = len(rows)
        graded = grade_responses(
            self.judge,
            self.rubric,
            [prompt for prompt, _ in missing],
            [response for _, response in missing],
            references=[self.references.get(prompt) for prompt, _ in missing],
            max_tokens=self.settings.max_tokens,
            title=f"grading responses {done + 1} to {done + len(missing)}",
        )
        for (text, response), grades in zip(missing.items(), graded, strict=True):
            rows[text] = response.row(self.rubric, grades)
        return [rows[response.prompt, response.response] | vars(response) for response in responses]

    def _summary(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return mean grades, and how often they rank a pair as labelled, clustered by prompt; see metrics.py."""
        prompts = [row["prompt"] for row in rows]
        grades = [[row[name] for name in self.rubric.names] for row in rows]
        grades_NC = np.array(grades, dtype=np.float64)  # None becomes NaN
        metrics: dict[str, Any] = {"replies": len(rows), "pairs/graded": len(rows) // 2}
        unscored_N = [float(row["unscored"] is not None) for row in rows]
        metrics["unscored"] = clustered_mean(unscored_N, prompts)
        for reason in REASONS:
            metrics[f"unscored/{reason}"] = sum(row["unscored"] == reason for row in rows)
        for i, name in enumerate(self.rubric.names):
            metrics[f"grade/{name}"] = clustered_mean(grades_NC[:, i], prompts)
        mean_N2 = grades_NC.mean(axis=1).reshape(-1, 2)  # rows alternate between chosen and rejected
        difference_N = mean_N2[:, 0] - mean_N2[:, 1]
        agrees_N = win_or_tie(difference_N)
        # both responses of a pair have the same prompt
        metrics["label_agreement"] = clustered_mean(agrees_N, prompts[::2])
        return metrics


def _mean(values: Iterable[float | None]) -> float:
    """Return the mean of the values that are not None; NaN if there are none."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def build(settings: GradeStage, run: Run) -> GradingPairs:
    return GradingPairs(settings, run)

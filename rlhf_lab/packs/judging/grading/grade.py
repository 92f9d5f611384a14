"""Grades by a judge of both responses of each pair: training data for `rubric_rm` if the data have no grades.

The stage trains nothing. Rows are appended as they arrive, so an interrupted stage resumes where it stopped. Paid
answers are also in the judge's store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from rlhf_lab.algorithms.pair_selection.margins import corpus_mark
from rlhf_lab.algorithms.pair_selection.rules import random_subset
from rlhf_lab.algorithms.reward_models.grades import HEADER, ROWS, SIDES
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import append_jsonl, read_rows, truncate, write_json
from rlhf_lab.packs.judging.grading.settings import GradeStage
from rlhf_lab.packs.judging.judges.context import judge_of, label_cost
from rlhf_lab.packs.judging.judges.judging import at_once
from rlhf_lab.packs.judging.judges.questions import REASONS
from rlhf_lab.packs.judging.judges.rubric import grade_responses, load_rubric, reference_column
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run

Row = dict[str, Any]
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

    def _plan(self) -> list[Row]:
        """Return the responses to grade. `rubric_rm` with this `max_pairs` selects the same training pairs."""
        corpus = self.run.corpus
        size = min(self.settings.max_pairs or len(corpus.train), len(corpus.train))
        chosen = random_subset(len(corpus.train), size, self.run.seed("selection/available")).tolist()
        heldout = range(min(self.settings.heldout_pairs, len(corpus.test)))
        rows = []
        for split, pairs, positions in (("train", corpus.train, chosen), ("test", corpus.test, heldout)):
            for position, side in product(positions, SIDES):
                pair = pairs[position]
                place = {"split": split, "pair": position, "side": side}
                rows.append({**place, "prompt": pair.prompt, "response": getattr(pair, side)})
        return rows

    def finish(self) -> Result:
        """Grade the missing responses, then write the header: a directory with a header has all its rows."""
        path = self.run.directory / ROWS
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
            means = {f"grade/{name}": _mean(row[name] for row in batch) for name in self.rubric.names}
            self.run.log(start + len(batch), unscored=_mean(row["unscored"] is not None for row in batch), **means)
        rubric = {name: getattr(self.rubric, name) for name in ("name", "low", "high")}
        rubric["attributes"] = self.rubric.names
        about = {"corpus": corpus_mark(self.run.corpus.train), "rubric": rubric, "judge": dict(self.judge.identity)}
        write_json(self.run.directory / HEADER, about)
        graded = sum(row["unscored"] is None for row in rows)
        metrics = {**self._summary(rows), **label_cost(self.run, self.judge, graded)}
        return Result(metrics=metrics, primary=["label_agreement", "unscored"])

    def _stored_rows(self) -> list[Row]:
        """Return the rows of an earlier attempt up to the first that is not planned now, and drop the rest."""
        path = self.run.directory / ROWS
        rows, ends = read_rows(path)
        same = 0
        for row, response in zip(rows, self.responses, strict=False):
            if any(row.get(name) != value for name, value in response.items()):
                break
            same += 1
        # new rows are appended, so the file must end with the last row that is reused
        truncate(path, ends[same - 1] if same else 0)
        if same:
            self.run.note(f"{same} of {len(self.responses)} responses were graded by an earlier attempt")
        return rows[:same]

    def _grade(self, responses: Sequence[Row], rows: dict[tuple[str, str], Row]) -> list[Row]:
        """Return the rows of these responses. A response that occurs in several pairs is graded once."""
        texts = {(response["prompt"], response["response"]): response for response in responses}
        missing = {text: response for text, response in texts.items() if text not in rows}
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
            values = [None if grades.unscored else value for value in grades.values]  # JSON has no NaN
            columns = dict(zip(self.rubric.names, values, strict=True))
            rows[text] = {**response, **columns, "reason": grades.reason, "unscored": grades.unscored}
        return [rows[response["prompt"], response["response"]] | response for response in responses]

    def _summary(self, rows: Sequence[Row]) -> Row:
        prompts = [row["prompt"] for row in rows]
        names = self.rubric.names
        grades_NC = np.array([[row[name] for name in names] for row in rows], dtype=np.float64)  # None becomes NaN
        mean_N2 = grades_NC.mean(axis=1).reshape(-1, 2)  # rows alternate between chosen and rejected of a prompt
        agrees_N = win_or_tie(mean_N2[:, 0] - mean_N2[:, 1])
        return {
            "replies": len(rows),
            "pairs/graded": len(rows) // 2,
            "unscored": clustered_mean([float(row["unscored"] is not None) for row in rows], prompts),
            **{f"unscored/{reason}": sum(row["unscored"] == reason for row in rows) for reason in REASONS},
            **{f"grade/{name}": clustered_mean(grades_NC[:, i], prompts) for i, name in enumerate(names)},
            "label_agreement": clustered_mean(agrees_N, prompts[::2]),
        }


def _mean(values: Iterable[float | None]) -> float:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan


def build(settings: GradeStage, run: Run) -> GradingPairs:
    return GradingPairs(settings, run)

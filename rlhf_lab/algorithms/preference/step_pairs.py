"""Stage that makes preference pairs of single steps (Step-DPO, arXiv:2406.18629): a wrong step against a right one.

The steps before both are the same, so the pair says what is wrong about a solution, and not only that it is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.algorithms.preference.settings import StepPairs
from rlhf_lab.core.errors import DataError
from rlhf_lab.data.generated import UNFINISHED, rejections, write_generated
from rlhf_lab.environments.maths.chains import StepOracle, step_lines
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.sampling.solutions import Solutions, Trajectory, annotated, followed_labels, problems
from rlhf_lab.statistics.inference import clustered_rate
from rlhf_lab.statistics.reward_bench import NO_ERROR
from rlhf_lab.statistics.steps import first_wrong
from rlhf_lab.training.run import Result, Run

ALL_RIGHT = "no wrong step found"
NO_ALTERNATIVE = "no right alternative"
REPEATED = "pair made before"
PRIMARY = ("correct/sampled", "made/rows", "made/label_agreement")

Row = dict[str, Any]


class StepPairMaking:
    """Samples solutions, locates their first wrong steps, and writes the corpus of pairs."""

    def __init__(self, settings: StepPairs, run: Run):
        self.settings, self.run = settings, run
        source, model_settings = run.needs["policy"], run.config.model
        policy = load_policy(source, model_settings, device=run.device)
        self.solutions = Solutions(run, policy, load_encoder(source, model_settings))
        self.labels: str = settings.labels
        if self.labels == "auto":
            self.labels = followed_labels(run, "monte_carlo")

    def finish(self) -> Result:
        settings = self.settings
        prompts = [pair.prompt for pair in problems(self.run, "train", settings.problems)]
        sampled = self.solutions.sample(prompts, settings.solutions, "step_pairs/solutions")
        wrong = self._labelled([solution for solution in sampled if not solution.correct])
        located = [first_wrong(solution.labels) for solution in wrong]
        with_error = [(solution, step) for solution, step in zip(wrong, located, strict=True) if step != NO_ERROR]
        without = [solution for solution, step in zip(wrong, located, strict=True) if step == NO_ERROR]
        rejected: list[Row] = [{"prompt": s.prompt, "response": s.response, "problem": ALL_RIGHT} for s in without]
        rows: list[Row] = []
        seen: set[tuple[str, str, str]] = set()
        for (solution, step), right in zip(with_error, self._right_solutions(with_error), strict=True):
            row: Row = {"prompt": solution.prompt, "step": step}
            if right is None:
                rejected.append(row | {"response": solution.response, "problem": NO_ALTERNATIVE})
                continue
            steps = [first_steps(each.response, step + 1) for each in (right, solution)]
            # several solutions of a problem may fail in the same way
            if (solution.prompt, *steps) in seen:
                rejected.append(row | {"response": solution.response, "problem": REPEATED})
                continue
            seen.add((solution.prompt, steps[0], steps[1]))
            if settings.unit == "step":
                row |= {"chosen": steps[0], "rejected": steps[1], UNFINISHED: True}
            else:
                row |= {"chosen": right.response, "rejected": solution.response}
            rows.append(row)
        if not rows:
            raise DataError(
                f"none of {len(sampled)} solutions gave a pair of steps ({len(wrong)} have a wrong answer); raise "
                "algorithm.problems, algorithm.solutions or algorithm.alternatives"
            )
        self._write(rows, rejected)
        metrics = {
            "correct/sampled": clustered_rate(
                np.array([solution.correct for solution in sampled]), np.array([each.prompt for each in sampled])
            ),
            "made/items": len(wrong),
            "made/rows": len(rows),
            **rejections(rejected),
            **self._label_agreement(rows),
        }
        return Result(metrics=metrics, primary=[name for name in PRIMARY if name in metrics])

    def _labelled(self, solutions: list[Trajectory]) -> list[Trajectory]:
        """Return solutions with labels of 0 or 1 on their steps."""
        if self.labels == "annotated":
            return annotated(self.run, solutions)
        return self.solutions.complete(solutions, self.settings.rollouts, "hard")

    def _right_solutions(self, with_error: Sequence[tuple[Trajectory, int]]) -> list[Trajectory | None]:
        """Return for each (solution, wrong step) a solution with a right step in place of the wrong one, or None.

        If the data source can label steps, its labels decide whether the step is right. Otherwise a step is right if
        the solution's answer is. A right answer is also required if complete solutions are paired.
        """
        wrong = [solution for solution, _ in with_error]
        steps = [step for _, step in with_error]
        count = self.settings.alternatives
        sampled = self.solutions.from_prefixes(wrong, steps, count, "step_pairs/alternatives")
        flat = [solution for alternatives in sampled for solution in alternatives]
        if self.labels == "annotated":
            flat = annotated(self.run, flat)
        needs_answer = self.labels == "monte_carlo" or self.settings.unit == "solution"
        found: list[Trajectory | None] = []
        for index, (solution, step) in enumerate(with_error):
            alternatives = flat[index * count : (index + 1) * count]
            usable = [each for each in alternatives if each.correct or not needs_answer]
            found.append(next((each for each in usable if is_alternative(each, solution, step)), None))
        return found

    def _write(self, rows: Sequence[Row], rejected: Sequence[Row]) -> None:
        upstream = {role: self.run.config.needs[role] for role in self.run.needs}
        about = {"data": self.run.data.fingerprint, "upstream": upstream, "labels": self.labels}
        write_generated(self.run.directory, "pairs", rows, rejected, about)

    def _label_agreement(self, rows: Sequence[Row]) -> Row:
        """Return how often the true step labels confirm a pair; empty if the data source cannot label steps.

        They confirm a pair if the right step is right, the wrong one wrong, and no earlier step is wrong.
        """
        oracle = self.run.corpus.oracle
        if not isinstance(oracle, StepOracle):
            return {}
        prompts = [row["prompt"] for row in rows]
        right = oracle.step_labels(prompts, [row["chosen"] for row in rows])
        wrong = oracle.step_labels(prompts, [row["rejected"] for row in rows])
        agrees = [
            float(all(chosen[: row["step"] + 1]) and first_wrong(rejected) == row["step"])
            for row, chosen, rejected in zip(rows, right, wrong, strict=True)
        ]
        return {"made/label_agreement": clustered_rate(np.array(agrees), np.array(prompts))}


def first_steps(response: str, count: int) -> str:
    """Return a response up to the end of its first `count` steps."""
    lines = step_lines(response)[:count]
    return response[: lines[-1][1]] if lines else ""


def is_alternative(right: Trajectory, wrong: Trajectory, step: int) -> bool:
    """Return True if two solutions differ first in this step, and `right` has no wrong step up to here."""
    if first_steps(right.response, step) != first_steps(wrong.response, step):
        return False
    if first_steps(right.response, step + 1) == first_steps(wrong.response, step + 1):
        return False
    return all(right.labels[: step + 1])


def build(settings: StepPairs, run: Run) -> StepPairMaking:
    return StepPairMaking(settings, run)

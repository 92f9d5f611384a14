"""Evaluates a policy on the golden sets of a suite: one row per response, with 0 or 1 in `golden/NAME`.

The metric of a set is the fraction of responses that pass. suite.json of the run records the version of each set. The
gate (`rlhf_lab/gates/`) reads these rows and runs no model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.files import write_json
from rlhf_lab.core.types import Reward
from rlhf_lab.data.reading import read_rows
from rlhf_lab.data.rows import BadRows
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.evaluations.policy_log import PolicyLog
from rlhf_lab.evaluations.suite.harness import run_tasks
from rlhf_lab.evaluations.suite.responses import TEXT_CHECKS, check_row
from rlhf_lab.evaluations.suite.settings import EvalSuite
from rlhf_lab.evaluations.suite.suite_file import VERSIONS, GoldenSet, Suite, read_suite
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.rows import column, rate_or_mean
from rlhf_lab.training.run import Result, Run

Rows = list[dict[str, Any]]


class GoldenSets:
    """Stage that evaluates `needs.policy` on every golden set and harness task of the suite."""

    def __init__(self, settings: EvalSuite, run: Run):
        self.run = run
        self.suite: Suite = read_suite(settings.suite)
        self.versions = self.suite.versions()
        # read before the model is loaded, so that a wrong row fails at once
        self.questions = {name: golden_rows(name, golden, run) for name, golden in self.suite.golden.items()}
        self.log = PolicyLog(run)
        scores = any(golden.check == "reward" for golden in self.suite.golden.values())
        self.reward: Reward | None = build_reward(run) if scores else None
        if scores and self.reward is None:
            raise ConfigError(
                "needs.reward is not set, but a golden set has check=reward; set needs.reward, or use reward=gold"
            )

    def finish(self) -> Result:
        source = str(self.run.config.needs["policy"])
        # a path or hub id is no readable name for a table
        name = "policy" if "/" in source else source
        if not self.log.find(name):
            self._evaluate(name)
        write_json(self.run.directory / VERSIONS, self.versions)
        return Result(self.log.policies)

    def _evaluate(self, name: str) -> None:
        source, settings = self.run.needs["policy"], self.run.config.model
        model = load_policy(source, settings, device=self.run.device).requires_grad_(False)
        encoder = load_encoder(source, settings)
        collector = EpisodeCollector(self.run, encoder)
        rows: Rows = []
        metrics: dict[str, Estimate] = {}
        for golden_name, golden in self.suite.golden.items():
            questions = self.questions[golden_name]
            group = self.run.config.evaluation.samples_per_prompt
            seed = self.run.seed(f"golden/{golden_name}", self.run.config.evaluation.seed)
            tasks = [self.run.corpus.task(question["prompt"]) for question in questions]
            # the collector counts over all sets, and the note is about one
            cut_before = collector.prompts_cut
            collected = collector.collect(model, tasks, group, seed)
            cut = collector.prompts_cut - cut_before
            if cut:
                self.run.note(
                    f"golden.{golden_name}: {cut} of {len(tasks)} prompts are longer than rollout.max_prompt_tokens="
                    f"{self.run.config.rollout.max_prompt_tokens} and were truncated at their beginning"
                )
            set_rows = self._judge(name, golden_name, golden, questions, collected)
            rows += set_rows
            metrics[f"golden/{golden_name}"] = _rate(set_rows, f"golden/{golden_name}")
        if self.suite.harness:
            batch = max(1, min(64, self.run.config.rollout.batch_rows))
            for task, documents in run_tasks(model, encoder, self.suite.harness, batch).items():
                task_rows = []
                for document, value in documents.items():
                    row = _row(name, f"harness/{task}", document, 0, Task(document))
                    task_rows.append({**row, f"harness/{task}": value})
                rows += task_rows
                metrics[f"harness/{task}"] = _rate(task_rows, f"harness/{task}")
        self.log.add(name, rows, metrics)

    def _judge(
        self,
        policy: str,
        name: str,
        golden: GoldenSet,
        questions: Sequence[dict[str, Any]],
        collected: list[list[Episode]],
    ) -> Rows:
        """Return one row per response to the prompts of a set, prompt-major."""
        episodes = [episode for group in collected for episode in group]
        scores: np.ndarray | None = None
        if golden.check == "gold":
            scores = self.run.corpus.measure(episodes)["gold"]
        elif golden.check == "reward" and self.reward is not None:
            scores = self.reward(episodes).total_N
        rows = []
        group = len(collected[0])
        for i, episode in enumerate(episodes):
            if scores is None:
                question = questions[i // group]  # rows are prompt-major
                passed: int | None = int(TEXT_CHECKS[golden.check](golden, question, episode.response))
            else:
                passed = None if np.isnan(scores[i]) else int(scores[i] >= float(golden.at_least or 0))
            prompt_index, sample_index = divmod(i, group)
            row = _row(policy, f"golden/{name}", str(prompt_index), sample_index, episode.task)
            row |= {"response": episode.response, "tokens": episode.sampled_tokens, "ended": int(episode.finished)}
            rows.append({**row, f"golden/{name}": passed})
        return rows


def _row(policy: str, part: str, number: str, sample: int, task: Task) -> dict[str, Any]:
    return {
        "policy": policy,
        "prompt_id": f"{part}/{number}",
        "sample_id": sample,
        "prompt": task.prompt,
        "response": "",
    }


def _rate(rows: Rows, key: str) -> Estimate:
    # a harness metric may be any number: Wilson's interval is only valid for zeros and ones
    return rate_or_mean(column(rows, key), [row["prompt_id"] for row in rows])


def golden_rows(name: str, golden: GoldenSet, run: Run) -> list[dict[str, Any]]:
    """Return the rows of a golden set, with prompts as transcripts. Raise DataError if a row lacks a needed column."""
    if golden.prompts:
        rows = [{"prompt": task.prompt} for task in run.corpus.tasks("test")]
    else:
        bad = BadRows(golden.path)
        rows = []
        for row in read_rows(golden.path, bad):
            check_row(golden, row.values, f"{row.file}, row {row.number}")
            rows.append({**row.values, "prompt": as_prompt(row.values["prompt"])})
        bad.finish()
    rows = rows[: golden.most] if golden.most else rows
    if not rows:
        if golden.prompts:
            raise DataError(
                f"golden.{name} has no prompts, because the data have no held-out ones; use path=FILE instead"
            )
        raise DataError(
            f"golden.{name}: {golden.path} has no rows; remove the set from the suite, or name a file with rows (a "
            "safety evaluation without any successful attack writes no regression cases)"
        )
    return rows


def build(settings: EvalSuite, run: Run) -> GoldenSets:
    return GoldenSets(settings, run)

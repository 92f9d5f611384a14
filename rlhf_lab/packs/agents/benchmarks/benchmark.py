"""What every benchmark of agents does with its questions: attempts, rows, numbers per agent, agents compared.

A benchmark brings its questions and how an attempt is scored. The run's folder gets trajectories.jsonl (every attempt,
complete), evaluation.jsonl (its scores, a row per attempt) and comparisons.json. All but the first follow from it, so
a run that was interrupted ends with the files of one that was not.
"""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.files import write_text
from rlhf_lab.packs.agents.benchmarks.attempts import Attempt, Question, plan_attempts, run_attempts
from rlhf_lab.packs.agents.benchmarks.comparisons import compare_rows, write_comparisons
from rlhf_lab.packs.agents.benchmarks.metrics import DESCRIBED
from rlhf_lab.packs.agents.benchmarks.trajectory_log import TrajectoryLog
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.scorers import effort
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_mean, clustered_rate
from rlhf_lab.training.run import Result, Run

Row = dict[str, Any]
Scores = Mapping[str, float | str | None]
Scorer = Callable[[AgentTrajectory, Question], Scores]
"""What an attempt is worth, by metric; `success` among them, 0 or 1; None is unscored. Text is kept in the row."""
Summary = Callable[[Sequence[Row]], Mapping[str, Estimate]]
"""Further numbers of one agent from all of its rows, those under attack included."""

MEANS = (
    *("tool_calls", "failed_calls", "extra_calls", "retried_calls", "model_turns"),
    *("code_rounds", "revision_gain"),
    *("agent_input_tokens", "agent_output_tokens", "agent_cost_usd", "agent_paid_usd"),
    *("agent_latency_s", "agent_wall_s"),
)
"""Columns that are no rates, also where they happen to be 0 and 1 only."""
QUOTED_CHARS = 300
"""Of an error that a note quotes, at most."""
COMPARED = ("success", "sequence_score", "tool_calls", "agent_output_tokens")
"""Metrics in which agents are compared, where they have them."""


class Benchmark:
    """Agents of a run on the questions of a benchmark.

    Args:
        agents: name → agent; the first is what the others are compared with.
        draws: attempts of each agent at each question.
        score: of an attempt.
        summarise: further numbers of an agent.
    """

    def __init__(
        self,
        run: Run,
        agents: Mapping[str, BatchAgent],
        questions: Sequence[Question],
        draws: int,
        score: Scorer,
        summarise: Summary = lambda rows: {},
    ):
        self.run, self.agents, self.questions = run, agents, questions
        self.draws, self.score, self.summarise = draws, score, summarise
        self.log = TrajectoryLog(run.folder)

    def finish(self) -> Result:
        planned = {
            name: plan_attempts(name, agent.identity, self.questions, self.draws, self.run.config.seed)
            for name, agent in self.agents.items()
        }
        keys = [attempt.key for attempts in planned.values() for attempt in attempts]
        self._take_what_is_there(keys)
        rows: list[Row] = []
        for name, attempts in planned.items():
            trajectories = run_attempts(self.agents[name], attempts, self.log)
            self._note_errors(name, trajectories)
            rows += [self._row(*pair) for pair in zip(attempts, trajectories, strict=True)]
        self.log.keep_only(keys)
        _write_rows(self.run, rows)
        comparisons = compare_rows([row for row in rows if not row["attack"]], COMPARED)
        write_comparisons(self.run.folder, comparisons)
        return Result(self._policies(rows, comparisons), self._counts(), ["attempts"])

    def _take_what_is_there(self, keys: Sequence[str]) -> None:
        """Attempts of an earlier start of this run, and of other runs of this benchmark by the same code."""
        folder = self.run.folder
        if not self.run.config.artifacts.refresh:
            benchmark = folder.name.partition("-")[0]
            others = [other for other in sorted(folder.parent.glob(f"{benchmark}-*")) if other != folder]
            self.log.adopt(keys, others)
        if self.log.damaged:
            self.run.note(f"trajectories.jsonl: {self.log.damaged} damaged or cut attempts are made again")
        if self.log.adopted:
            self.run.note(f"{self.log.adopted} of {len(keys)} attempts are those of earlier runs by the same code")

    def _note_errors(self, name: str, trajectories: Sequence[AgentTrajectory]) -> None:
        """Note how many attempts an error of the agent ended, and quote the most frequent one."""
        errors = Counter(trajectory.error for trajectory in trajectories if trajectory.stop == "failed")
        if not errors:
            return
        error, count = errors.most_common(1)[0]
        quoted = textwrap.shorten(error, QUOTED_CHARS, placeholder=" …") or "no message"
        how_often = "" if len(errors) == 1 else f", {count} times"
        self.run.note(
            f"{name}: {errors.total()} of {len(trajectories)} attempts ended with an error of the agent and have no "
            f"answer{how_often}: {quoted}. The same attempts are made again when the agent's code has changed, or with "
            "artifacts.refresh=true"
        )

    def _row(self, attempt: Attempt, trajectory: AgentTrajectory) -> Row:
        """A row of evaluation.jsonl."""
        question = attempt.question
        return {
            "policy": attempt.agent,
            "prompt_id": question.id,
            "sample_id": attempt.draw,
            "prompt": question.task.prompt,
            "response": trajectory.answer or "",
            "key": attempt.key,
            "set": question.set,
            "category": question.category,
            "template": question.template,
            "attack": question.attack,
            "regression": question.regression,
            "stop": trajectory.stop,
            **effort(trajectory),
            **self.score(trajectory, question),
        }

    def _policies(self, rows: Sequence[Row], comparisons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        policies = []
        for name in self.agents:
            own = [row for row in rows if row["policy"] == name]
            metrics = {**summarise([row for row in own if not row["attack"]]), **self.summarise(own)}
            values: dict[str, Any] = {key: estimate.to_dict() for key, estimate in metrics.items()}
            policies.append(
                {"name": name, "metrics": values | _against_first(name, next(iter(self.agents)), comparisons)}
            )
        return policies

    def _counts(self) -> dict[str, Any]:
        asked = [question for question in self.questions if not question.attack]
        counts: dict[str, Any] = {"attempts": len(self.agents) * len(self.questions) * self.draws}
        for name in dict.fromkeys(question.set for question in asked):
            counts[f"tasks/{name}"] = sum(question.set == name for question in asked)
        return counts


def summarise(rows: Sequence[Row]) -> dict[str, Estimate]:
    """The numbers of one agent: every scored column, and success by category and by set, clustered by template."""
    columns = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in DESCRIBED]
    metrics = {
        name: estimate_column(rows, name)
        for name in columns
        if all(row.get(name) is None or isinstance(row[name], int | float) for row in rows)
    }
    metrics = {name: estimate for name, estimate in metrics.items() if estimate.n}
    for column, prefix in (("category", "success/"), ("set", "success_on/")):
        groups = dict.fromkeys(row[column] for row in rows)
        if len(groups) > 1:
            for group in groups:
                metrics[f"{prefix}{group}"] = estimate_column([row for row in rows if row[column] == group], "success")
    return metrics


def estimate_column(rows: Sequence[Row], name: str) -> Estimate:
    """The rate of a column of 0 and 1, the mean of any other; clustered by template."""
    values_N = floats([math.nan if row.get(name) is None else row[name] for row in rows])
    is_rate = bool(np.isin(values_N[~np.isnan(values_N)], (0.0, 1.0)).all()) and name not in MEANS
    estimate = clustered_rate if is_rate else clustered_mean
    return estimate(values_N, [row["template"] for row in rows])


def _against_first(name: str, first: str, comparisons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Success of an agent against that of the first, as numbers of its own."""
    for entry in comparisons:
        if (entry["metric"], entry["first"], entry["second"]) == ("success", first, name):
            return {
                "success_change": entry["difference"],
                "success_p": entry["p_holm"],
                "success_detectable": entry["minimum_detectable_effect"],
            }
    return {}


def _write_rows(run: Run, rows: Sequence[Row]) -> None:
    write_text(run.folder / "evaluation.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

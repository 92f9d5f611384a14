"""Common part of all benchmarks of agents: run attempts, write rows, estimate metrics, compare agents.

A benchmark supplies its questions and a scorer of attempts. The run directory gets trajectories.jsonl (every attempt,
complete), evaluation.jsonl (scores, one row per attempt) and comparisons.json. The last two are computed from the
first, so a run that was interrupted and resumed ends with the same files as an uninterrupted one.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf_lab.core.files import json_lines, write_json, write_text
from rlhf_lab.packs.agents.benchmarks.attempts import BenchmarkAttempt, BenchmarkQuestion, plan_attempts, run_attempts
from rlhf_lab.packs.agents.benchmarks.metrics import COUNTED, DESCRIBED
from rlhf_lab.packs.agents.benchmarks.trajectory_log import TrajectoryLog
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.scorers import effort
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.paired_tasks import compare_agents
from rlhf_lab.statistics.rows import column, grouped, outcomes_by, rate_or_mean
from rlhf_lab.training.run import Result, Run

Row = dict[str, Any]
Scores = Mapping[str, float | str | None]
Scorer = Callable[[AgentTrajectory, BenchmarkQuestion], Scores]
"""Scores of an attempt by metric. `success` is required: 0, 1, or None if unscored. Text is stored in the row only."""
Summary = Callable[[Sequence[Row]], Mapping[str, Estimate]]
"""Additional metrics of one agent, estimated from all of its rows, including those under attack."""

COMPARISONS = "comparisons.json"
"""File of a run directory with one row per metric and pair of agents."""
MEANS = (*COUNTED, "code_rounds", "revision_gain")
"""Columns that are estimated as means instead of rates, even if all their values are 0 or 1."""
QUOTED_CHARS = 300
"""Maximum number of characters of an agent's error message that is quoted in a note of the run."""
COMPARED = ("success", "sequence_score", "tool_calls", "agent_output_tokens")
"""Metrics by which agents are compared. An agent that lacks a metric is left out of its comparisons."""


class Benchmark:
    """Runs the agents of a run on the questions of a benchmark, scores their attempts, and compares them.

    Args:
        run: the run.
        agents: name → agent; the others are compared with the first.
        questions: the questions, including those under attack.
        draws: number of attempts of each agent at each question.
        score: scores an attempt.
        summarise: estimates additional metrics of an agent.
    """

    def __init__(
        self,
        run: Run,
        agents: Mapping[str, BatchAgent],
        questions: Sequence[BenchmarkQuestion],
        draws: int,
        score: Scorer,
        summarise: Summary = lambda rows: {},
    ):
        self.run, self.agents, self.questions = run, agents, questions
        self.draws, self.score, self.summarise = draws, score, summarise
        self.log = TrajectoryLog(run.directory)

    def finish(self) -> Result:
        seed = self.run.config.seed
        planned = {
            name: plan_attempts(name, agent.identity, self.questions, self.draws, seed)
            for name, agent in self.agents.items()
        }
        keys = [attempt.key for attempts in planned.values() for attempt in attempts]
        self._take_what_is_there(keys)
        rows: list[Row] = []
        for name, attempts in planned.items():
            # One agent after the other: an error leaves complete results of the agents before it in the log.
            trajectories = run_attempts(self.agents[name], attempts, self.log)
            self._note_errors(name, trajectories)
            for attempt, trajectory in zip(attempts, trajectories, strict=True):
                rows.append(self._row(attempt, trajectory))
        self.log.keep_only(keys)
        write_text(self.run.directory / "evaluation.jsonl", json_lines(rows))
        # Attacks would lower success by an amount that depends on their number, so comparisons exclude them.
        benign = [row for row in rows if not row["attack"]]
        comparisons = compare_rows(benign, COMPARED)
        write_json(self.run.directory / COMPARISONS, comparisons)
        return Result(self._policies(rows, comparisons), self._counts(), ["attempts"])

    def _take_what_is_there(self, keys: Sequence[str]) -> None:
        """Reuse finished attempts from other runs of this benchmark with the same code. Note how many stored attempts
        are damaged or reused.
        """
        directory = self.run.directory
        if not self.run.config.artifacts.refresh:
            # Run directories are named after their recipe: `agent_bench-<key>`.
            benchmark = directory.name.partition("-")[0]
            candidates = sorted(directory.parent.glob(f"{benchmark}-*"))
            others = [other for other in candidates if other != directory]
            self.log.adopt(keys, others)
        damaged, adopted = self.log.damaged, self.log.adopted
        if damaged:
            self.run.note(f"trajectories.jsonl: {damaged} damaged or incomplete attempts are repeated")
        if adopted:
            self.run.note(f"{adopted} of {len(keys)} attempts are reused from earlier runs with the same code")

    def _note_errors(self, name: str, trajectories: Sequence[AgentTrajectory]) -> None:
        """Note how many attempts failed with an error of the agent, and quote the most frequent error."""
        errors = Counter(trajectory.error for trajectory in trajectories if trajectory.stop == "failed")
        if not errors:
            return
        error, count = errors.most_common(1)[0]
        quoted = textwrap.shorten(error, QUOTED_CHARS, placeholder=" …") or "no message"
        how_often = "" if len(errors) == 1 else f", {count} times"
        self.run.note(
            f"{name}: {errors.total()} of {len(trajectories)} attempts failed with an error of the agent and have no "
            f"answer{how_often}: {quoted}. They are repeated if the agent's code changes, or with "
            "artifacts.refresh=true"
        )

    def _row(self, attempt: BenchmarkAttempt, trajectory: AgentTrajectory) -> Row:
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
        first = next(iter(self.agents))
        for name in self.agents:
            own = [row for row in rows if row["policy"] == name]
            # Attacks have their own metrics, and must not lower the success of an agent.
            benign = [row for row in own if not row["attack"]]
            estimates = {**summarise(benign), **self.summarise(own)}
            metrics: dict[str, Any] = {key: estimate.to_dict() for key, estimate in estimates.items()}
            metrics |= _against_first(name, first, comparisons)
            policies.append({"name": name, "metrics": metrics})
        return policies

    def _counts(self) -> dict[str, Any]:
        requested = [question for question in self.questions if not question.attack]
        attempts = len(self.agents) * len(self.questions) * self.draws
        counts: dict[str, Any] = {"attempts": attempts}
        tasks_of_set = Counter(question.set for question in requested)
        for name, count in tasks_of_set.items():
            counts[f"tasks/{name}"] = count
        return counts


def summarise(rows: Sequence[Row]) -> dict[str, Estimate]:
    """Estimate the metrics of one agent: every scored column, and success by category and by set."""
    columns = dict.fromkeys(name for row in rows for name in row)
    metrics = {}
    for name in columns:
        is_numeric = all(isinstance(row.get(name), int | float | None) for row in rows)
        if name not in DESCRIBED and is_numeric:
            metrics[name] = estimate_column(rows, name)
    # A column in which every attempt is unscored has no estimate.
    metrics = {name: estimate for name, estimate in metrics.items() if estimate.n}
    for key, prefix in (("category", "success/"), ("set", "success_on/")):
        groups = grouped(rows, key)
        if len(groups) > 1:  # with a single group, the metric would equal `success`
            metrics |= {f"{prefix}{name}": estimate_column(members, "success") for name, members in groups.items()}
    return metrics


def estimate_column(rows: Sequence[Row], name: str) -> Estimate:
    """Estimate the rate of a column of 0 and 1, or the mean of another column, clustered by template. None is NaN."""
    templates = [row["template"] for row in rows]
    # A count such as `tool_calls` may happen to be 0 or 1 in every row, but its interval must not end at 1.
    return (clustered_mean if name in MEANS else rate_or_mean)(column(rows, name), templates)


def _against_first(name: str, first: str, comparisons: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return metrics that compare an agent's success with the first agent's: change, p-value, detectable effect."""
    for entry in comparisons:
        if (entry["metric"], entry["first"], entry["second"]) == ("success", first, name):
            return {
                "success_change": entry["difference"],
                "success_p": entry["p_holm"],
                "success_detectable": entry["minimum_detectable_effect"],
            }
    return {}


def compare_rows(rows: Sequence[Row], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Compare every pair of agents (later minus earlier), with Holm's adjustment over the pairs of each metric.

    Args:
        rows: rows of evaluation.jsonl, in the order of the agents.
        metrics: names of the metrics.
    """
    templates = {row["prompt_id"]: row["template"] for row in rows}
    # in the order of the run, which decides which agent is subtracted from which
    agents = list(dict.fromkeys(row["policy"] for row in rows))
    entries = []
    for metric in metrics:
        outcomes = {agent: by_task(rows, agent, metric) for agent in agents}
        # an agent may lack a metric, e.g. if none of its attempts were scored
        measured = {agent: tasks for agent, tasks in outcomes.items() if tasks}
        for found in compare_agents(measured, templates):
            entry = {"metric": metric, "first": found.first, "second": found.second, **found.comparison.to_dict()}
            # JSON has no NaN
            p_holm = None if math.isnan(found.adjusted_p) else found.adjusted_p
            entry |= {"p_holm": p_holm, "tasks": found.comparison.difference.n}
            entries.append(entry)
    return entries


def by_task(rows: Sequence[Row], agent: str, metric: str) -> dict[str, list[float]]:
    """Return task → the agent's scored attempts."""
    return outcomes_by([row for row in rows if row["policy"] == agent], "prompt_id", metric)

"""Benchmark of agents on tasks with tools: hand-written tasks, variants of them, held-out tasks, and attacks.

In addition to the files of benchmark.py it writes regressions.jsonl: the attacks that succeeded. Later runs try them
again (`algorithm.regressions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import json_lines, read_json, read_jsonl, write_text
from rlhf_lab.packs.agents.benchmarks.attempts import BenchmarkQuestion, spread
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark, Scores
from rlhf_lab.packs.agents.benchmarks.injections import (
    injections,
    regression_cases,
    regression_questions,
    summarise_attacks,
    with_injections,
)
from rlhf_lab.packs.agents.benchmarks.settings import AgentBench
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.models import open_agents
from rlhf_lab.packs.agents.harness.scorers import score
from rlhf_lab.packs.agents.tools.bench.task_sets import AgentBenchMini, Generated
from rlhf_lab.packs.agents.tools.task_set import TaskSet
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.training.run import Result, Run

REGRESSIONS = "regressions.jsonl"


class AgentBenchmark:
    """Stage `agent_bench`."""

    def __init__(self, settings: AgentBench, run: Run, agents: Mapping[str, BatchAgent]):
        self.settings, self.run = settings, run
        requested: list[BenchmarkQuestion] = []
        everything: list[BenchmarkQuestion] = []  # a regression case may refer to a task that `limit` leaves out
        for name in settings.tasks:
            of_set = questions_of(name, settings, run)
            everything += of_set
            requested += spread(of_set, settings.limit)
        # Attacks are additional attempts: the same tasks are attempted without attack as well.
        attacks = with_injections(requested, settings.inject)
        if settings.regressions:
            attacks += regression_questions(Path(settings.regressions), everything)
        self.benchmark = Benchmark(
            run, agents, [*requested, *attacks], settings.attempts, score_attempt, summarise=summarise_attacks
        )

    def finish(self) -> Result:
        result = self.benchmark.finish()
        result.metrics |= reward_metrics(self.run, self.settings.reward_metrics)
        cases = regression_cases(read_jsonl(self.run.directory / "evaluation.jsonl"))
        write_text(self.run.directory / REGRESSIONS, json_lines(cases, ensure_ascii=False))
        return result


def reward_metrics(run: Run, names: Sequence[str]) -> dict[str, Any]:
    """Return metrics that the stage in `needs.reward` stored in its result.json: name → stored estimate.

    Raises:
        ConfigError: the stage has no result, or not all of these metrics.
    """
    if not names:
        return {}
    directory = Path(run.needs["reward"]).parent
    stored = (read_json(directory / "result.json") or {}).get("metrics") or {}
    missing = [name for name in names if name not in stored]
    if missing:
        raise ConfigError(
            f"algorithm.reward_metrics: {directory} has no {', '.join(missing)}; it has {', '.join(stored) or 'none'}"
        )
    return {name: stored[name] for name in names}


def questions_of(name: str, settings: AgentBench, run: Run) -> list[BenchmarkQuestion]:
    """Return the tasks of a set in their order. Raise ConfigError if the data have no such tasks."""
    tasks: TaskSet
    known = None
    if name == "mini":
        tasks = AgentBenchMini(settings.categories)
    elif name == "generated":
        tasks = Generated(settings.siblings, run.config.seed, settings.categories)
    else:
        world = run.corpus.environment
        if not isinstance(world, TaskSet):
            raise ConfigError("algorithm.tasks=world needs data with tasks that have tools; use data=tools")
        # The tasks' metadata do not contain the knowledge of their tools, so the corpus stands for it.
        tasks, known = world, run.corpus.fingerprint
    return [BenchmarkQuestion(name, task, tasks.tools, known) for task in tasks.tasks("test")]


def score_attempt(trajectory: AgentTrajectory, question: BenchmarkQuestion) -> Scores:
    """Score the answer and the calls; under attack also whether the agent read and followed the injected order."""
    scores: dict[str, float | None] = dict(score(trajectory, question.task))
    if question.attack:
        scores |= injections()[question.attack].scores(trajectory)
    return scores


def build(settings: AgentBench, run: Run) -> AgentBenchmark:
    return AgentBenchmark(settings, run, open_agents(run))

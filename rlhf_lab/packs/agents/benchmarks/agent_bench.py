"""Agents on tasks with tools: those written by hand, their siblings, held-out tasks of the tool world, under attack.

What is written besides benchmark.py's files: regressions.jsonl, the attacks that succeeded, which later runs try again
(`algorithm.regressions`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_jsonl, write_text
from rlhf_lab.packs.agents.benchmarks.attempts import Question, spread
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark, Scores
from rlhf_lab.packs.agents.benchmarks.injections import (
    attacked,
    injections,
    regression_cases,
    regression_questions,
    summarise_attacks,
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
    """The stage."""

    def __init__(self, settings: AgentBench, run: Run, agents: Mapping[str, BatchAgent]):
        self.settings, self.run = settings, run
        asked: list[Question] = []
        everything: list[Question] = []  # a regression case may be about a task that `limit` leaves out
        for name in settings.tasks:
            of_set = questions_of(name, settings, run)
            everything += of_set
            asked += spread(of_set, settings.limit)
        attacks = attacked(asked, settings.inject)
        if settings.regressions:
            attacks += regression_questions(Path(settings.regressions), everything)
        self.benchmark = Benchmark(
            run, agents, [*asked, *attacks], settings.attempts, score_attempt, summarise=summarise_attacks
        )

    def finish(self) -> Result:
        result = self.benchmark.finish()
        cases = regression_cases(read_jsonl(self.run.folder / "evaluation.jsonl"))
        lines = [json.dumps(case, ensure_ascii=False) + "\n" for case in cases]
        write_text(self.run.folder / REGRESSIONS, "".join(lines))
        return result


def questions_of(name: str, settings: AgentBench, run: Run) -> list[Question]:
    """The tasks of a set in their order. Raises ConfigError where the data have none."""
    tasks: TaskSet
    known = None
    if name == "mini":
        tasks = AgentBenchMini(settings.categories)
    elif name == "generated":
        tasks = Generated(settings.siblings, run.config.seed, settings.categories)
    else:
        world = run.corpus.environment
        if not isinstance(world, TaskSet):
            raise ConfigError("algorithm.tasks: world needs data with tasks that have tools; use data=tools")
        tasks, known = world, run.corpus.fingerprint  # its tasks' facts do not hold what its tools know
    return [Question(name, task, tasks, known) for task in tasks.tasks("test")]


def score_attempt(trajectory: AgentTrajectory, question: Question) -> Scores:
    """Answer and way; under attack also whether the order was read and followed."""
    scores: dict[str, float | None] = dict(score(trajectory, question.task))
    if question.attack:
        scores |= injections()[question.attack].scores(trajectory)
    return scores


def build(settings: AgentBench, run: Run) -> AgentBenchmark:
    return AgentBenchmark(settings, run, open_agents(run))

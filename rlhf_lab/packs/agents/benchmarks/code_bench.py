"""Agents that write programs: what they repair in the first round, and what reading the output of runs adds.

Every program that an attempt wrote is graded by the hidden tests of its task, the last one among them, which is the
answer. The grader is the verifier of `reward=code_tests`, the same object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.tools import Tool
from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.agents.benchmarks.attempts import Question, spread
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark, Row, Scores, estimate_column
from rlhf_lab.packs.agents.benchmarks.settings import CodeBench
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.code_executor import TOOL
from rlhf_lab.packs.agents.harness.models import open_agents
from rlhf_lab.packs.agents.harness.program import question_of
from rlhf_lab.packs.agents.tools.task_set import TaskSet
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.packs.code.debugging.debugging import DebuggingTasks
from rlhf_lab.packs.code.rewards.code_tests import CodeVerifier, hidden_tests
from rlhf_lab.packs.code.rewards.extraction import prompt_code
from rlhf_lab.packs.code.rewards.settings import CodeTests
from rlhf_lab.packs.code.sandbox.grader import Grade
from rlhf_lab.rewards.verifiers.verifier import verifier_of
from rlhf_lab.statistics.estimates import Estimate, floats
from rlhf_lab.statistics.inference import clustered_fraction
from rlhf_lab.statistics.repeated_samples import pass_at_k
from rlhf_lab.training.run import Result, Run

NO_PROGRAM = "no program"
"""Verdict of an attempt that wrote none; others are the grader's."""


class CorpusTasks:
    """The rows of a corpus that have tests, as tasks without tools, such as those of data=humaneval."""

    def __init__(self, corpus: Corpus):
        self.corpus = corpus
        solutions = {pair.prompt: pair.chosen for pair in (*corpus.train, *corpus.test)}
        # nothing is learned from them here, so the rows that other stages train on are asked too
        rows = [*corpus.tasks("train"), *corpus.tasks("test")]
        tested = [row for row in rows if hidden_tests(row.facts, "") is not None]
        self.chosen = [self._task(number, row, solutions[row.prompt]) for number, row in enumerate(tested)]

    def _task(self, number: int, row: Task, solution: str) -> Task:
        question = question_of(row)
        given = prompt_code(question, str(row.facts.get("entry_point") or ""))
        names = {
            "id": str(row.facts.get("task_id") or number),
            "category": self.corpus.name,
            "question": question,
            "program": given,
            "solution": given + solution,
        }
        return Task(row.prompt, {**row.facts, **names})

    def tasks(self, split: str) -> Sequence[Task]:
        return self.chosen

    def tools(self, task: Task, seed: int) -> list[Tool]:
        return []


class CodeBenchmark:
    """The stage."""

    def __init__(self, settings: CodeBench, run: Run, agents: Mapping[str, BatchAgent]):
        self.settings, self.run = settings, run
        verifier = verifier_of(CodeTests(), run.config.sandbox)
        assert isinstance(verifier, CodeVerifier)
        self.verifier = verifier
        questions = spread(questions_of(settings, run), settings.limit)
        self.benchmark = Benchmark(run, agents, questions, settings.attempts, self.score, self.summarise)

    def finish(self) -> Result:
        result = self.benchmark.finish()
        level = self.verifier.grader.sandbox.level
        self.run.note(f"isolation of programs and of their tests: {level}")
        return result

    def score(self, trajectory: AgentTrajectory, question: Question) -> Scores:
        """Whether the last program passes, and whether those before it did."""
        programs = programs_of(trajectory)
        task = question.task
        grades = self.verifier.grades([(task.facts, task.prompt, program) for program in programs])
        passed = [passes(grade) for grade in grades] or [0.0]
        first, last = passed[0], passed[-1]
        final = grades[-1] if grades else None
        rounds = {f"solved_within/{most}": passed[min(most, len(passed)) - 1] for most in self.settings.rounds_at}
        return {
            "success": last,
            **rounds,
            "revision_gain": None if first is None or last is None else last - first,
            "solved_by_revision": None if first is None or last is None else float(last > first),
            "broken_by_revision": None if first is None or last is None else float(last < first),
            "code_rounds": float(len(programs)),
            "verdict": final.status if final else NO_PROGRAM,
            "failure": final.message if final else "",
            "isolation": self.verifier.grader.sandbox.level,
        }

    def summarise(self, rows: Sequence[Row]) -> dict[str, Estimate]:
        """pass@k, and what revising adds, over all tasks and by tier."""
        metrics = pass_at(rows, self.settings.pass_at)
        tiers = dict.fromkeys(row["category"] for row in rows)
        if len(tiers) == 1:
            return metrics
        columns = [*(f"solved_within/{most}" for most in self.settings.rounds_at), "revision_gain"]
        for tier in tiers:
            members = [row for row in rows if row["category"] == tier]
            of_tier = pass_at(members, self.settings.pass_at)
            of_tier |= {column: estimate_column(members, column) for column in columns}
            metrics |= {f"{name}/{tier}": estimate for name, estimate in of_tier.items()}
        return metrics


def questions_of(settings: CodeBench, run: Run) -> list[Question]:
    """The tasks that the settings choose. Raises ConfigError where the data have none."""
    tasks: TaskSet
    if settings.tasks == "own":
        tasks, name = DebuggingTasks(settings.tiers), "own"
    else:
        tasks, name = CorpusTasks(run.corpus), run.corpus.name
    chosen = tasks.tasks("test")
    if not chosen:
        raise ConfigError(f"algorithm.tasks=data: no row of data={name} has hidden tests; use data=humaneval")
    return [Question(name, task, tasks, _limits(run)) for task in chosen]


def _limits(run: Run) -> dict[str, Any]:
    """What programs may use: it decides what an agent reads of a run."""
    sandbox = run.config.sandbox
    names = ("timeout_s", "memory_mib", "disk_mib", "processes", "output_kib")
    return {name: getattr(sandbox, name) for name in names}


def programs_of(trajectory: AgentTrajectory) -> list[str]:
    """The programs that an attempt wrote, in order; the last one is its answer.

    That one may never have run: rounds are bounded. An attempt that ran out of turns has no answer, and its last
    program counts.
    """
    programs = [str(call.arguments["code"]) for call in trajectory.calls if call.name == TOOL]
    answer = trajectory.answer
    if answer is not None and (not programs or answer != programs[-1]):
        programs.append(answer)
    return programs


def passes(grade: Grade | None) -> float | None:
    """1 for a program that passes every hidden test, else 0; None where nobody can tell."""
    if grade is None or grade.status == "unsupported":
        return None
    return float(grade.status == "passed")


def pass_at(rows: Sequence[Row], sizes: Sequence[int]) -> dict[str, Estimate]:
    """`pass@k` without bias from all draws at each task, clustered by the template of the task."""
    draws: dict[str, list[Row]] = {}
    for row in rows:
        draws.setdefault(row["prompt_id"], []).append(row)
    if not draws:
        return {}
    outcomes = [[np.nan if row["success"] is None else row["success"] for row in task] for task in draws.values()]
    values_PK = np.stack([pass_at_k(floats(outcome), sizes) for outcome in outcomes])
    templates = [task[0]["template"] for task in draws.values()]
    trials = sum(int(np.isfinite(floats(outcome)).sum()) for outcome in outcomes)
    return {
        f"pass@{k}": clustered_fraction(values_PK[:, column], templates, trials=trials)
        for column, k in enumerate(sizes)
    }


def build(settings: CodeBench, run: Run) -> CodeBenchmark:
    return CodeBenchmark(settings, run, open_agents(run))

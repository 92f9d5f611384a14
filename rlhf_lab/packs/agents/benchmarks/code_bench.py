"""Benchmark of agents that write programs: success of the first program, and gain from revising it after reading its
output.

Every program of an attempt is graded by the hidden tests of its task; the last one is the answer. The grader is the
verifier of `reward=code_tests`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.agents.benchmarks.attempts import BenchmarkQuestion, spread
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark, Row, Scores, estimate_column
from rlhf_lab.packs.agents.benchmarks.settings import CodeBench
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.code_executor import TOOL
from rlhf_lab.packs.agents.harness.models import open_agents
from rlhf_lab.packs.agents.harness.program import question_of
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.packs.code.debugging.debugging import DebuggingTasks
from rlhf_lab.packs.code.rewards.code_tests import CodeVerifier, hidden_tests
from rlhf_lab.packs.code.rewards.extraction import prompt_code
from rlhf_lab.packs.code.rewards.settings import CodeTests
from rlhf_lab.packs.code.sandbox.grader import HiddenTestResult
from rlhf_lab.rewards.verifiers.verifier import verifier_of
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.repeated_samples import pass_at_k
from rlhf_lab.statistics.rows import column, fractions_at, grouped
from rlhf_lab.training.run import Result, Run

NO_PROGRAM = "no program"
"""Verdict of an attempt without a program; other verdicts come from the grader."""


def corpus_tasks(corpus: Corpus) -> list[Task]:
    """Return the rows of a corpus that have hidden tests, such as those of data=humaneval, as tasks without tools."""
    solutions = {pair.prompt: pair.chosen for pair in (*corpus.train, *corpus.test)}
    # Nothing is trained here, so the rows that other stages train on are used as well.
    rows = [*corpus.tasks("train"), *corpus.tasks("test")]
    tasks = []
    for number, row in enumerate(row for row in rows if hidden_tests(row.metadata, "") is not None):
        question = question_of(row)
        provided = prompt_code(question, str(row.metadata.get("entry_point") or ""))
        names = {
            "id": str(row.metadata.get("task_id") or number),
            "category": corpus.name,
            "question": question,
            "program": provided,
            "solution": provided + solutions[row.prompt],
        }
        tasks.append(Task(row.prompt, {**row.metadata, **names}))
    return tasks


class CodeBenchmark:
    """Stage `code_bench`."""

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
        self.run.note(f"isolation of the tests: {level}")
        return result

    def score(self, trajectory: AgentTrajectory, question: BenchmarkQuestion) -> Scores:
        """Grade all programs of an attempt. The last one decides `success`; the earlier ones decide the metrics by
        number of rounds, such as `solved_within/2`.
        """
        programs = programs_of(trajectory)
        task = question.task
        grades = self.verifier.grades([(task.metadata, task.prompt, program) for program in programs])
        passed = [passes(grade) for grade in grades] or [0.0]
        first, last = passed[0], passed[-1]
        final = grades[-1] if grades else None
        # An attempt that stopped before a cut-off keeps the result of its last program.
        rounds = {f"solved_within/{n}": passed[min(n, len(passed)) - 1] for n in self.settings.rounds_at}
        gain = None if first is None or last is None else last - first
        return {
            "success": last,
            **rounds,
            "revision_gain": gain,
            "solved_by_revision": None if gain is None else float(gain > 0),
            "broken_by_revision": None if gain is None else float(gain < 0),
            "code_rounds": float(len(programs)),
            "verdict": final.status if final else NO_PROGRAM,
            "failure": final.message if final else "",
            "isolation": self.verifier.grader.sandbox.level,
        }

    def summarise(self, rows: Sequence[Row]) -> dict[str, Estimate]:
        """Estimate pass@k over all tasks. With several tiers, also estimate pass@k, `solved_within/*` and
        `revision_gain` of each tier.
        """
        metrics = pass_at(rows, self.settings.pass_at)
        tiers = grouped(rows, "category")
        if len(tiers) == 1:  # the metrics of the tier would equal those of all tasks
            return metrics
        columns = [f"solved_within/{cutoff}" for cutoff in self.settings.rounds_at]
        columns.append("revision_gain")
        for tier, members in tiers.items():
            of_tier = pass_at(members, self.settings.pass_at)
            of_tier |= {name: estimate_column(members, name) for name in columns}
            metrics |= {f"{name}/{tier}": estimate for name, estimate in of_tier.items()}
        return metrics


def questions_of(settings: CodeBench, run: Run) -> list[BenchmarkQuestion]:
    """Return the selected tasks. Raise ConfigError if the data have none."""
    if settings.tasks == "own":
        tasks, name = DebuggingTasks(settings.tiers).tasks("test"), "own"
    else:
        tasks, name = corpus_tasks(run.corpus), run.corpus.name
    if not tasks:
        raise ConfigError(f"algorithm.tasks=data: no row of data={name} has hidden tests; use e.g. data=humaneval")
    # An agent can observe the limits of programs, so they are part of an attempt's identity.
    return [BenchmarkQuestion(name, task, lambda task, seed: [], run.config.sandbox.limits) for task in tasks]


def programs_of(trajectory: AgentTrajectory) -> list[str]:
    """Return the programs of an attempt in order; the last one is its answer.

    The answer may never have been run, because the number of rounds is limited. If the attempt ran out of turns it has
    no answer, and its last program counts.
    """
    runs = [call for call in trajectory.calls if call.name == TOOL]
    programs = [str(call.arguments["code"]) for call in runs]
    answer = trajectory.answer
    if answer is not None and (not programs or answer != programs[-1]):
        programs.append(answer)
    return programs


def passes(grade: HiddenTestResult | None) -> float | None:
    """Return 1 if a program passes every hidden test, 0 if not, None if this cannot be determined."""
    if grade is None or grade.status == "unsupported":
        return None
    return float(grade.status == "passed")


def pass_at(rows: Sequence[Row], sizes: Sequence[int]) -> dict[str, Estimate]:
    """Estimate pass@k without bias from all draws at each task (arXiv:2107.03374), clustered by the task's template."""
    draws = list(grouped(rows, "prompt_id").values())
    if not draws:
        return {}
    outcomes = [column(rows_of_task, "success") for rows_of_task in draws]
    passed = [pass_at_k(outcome, sizes) for outcome in outcomes]
    templates = [rows_of_task[0]["template"] for rows_of_task in draws]
    return fractions_at("pass", sizes, passed, templates, int(np.isfinite(np.concatenate(outcomes)).sum()))


def build(settings: CodeBench, run: Run) -> CodeBenchmark:
    return CodeBenchmark(settings, run, open_agents(run))

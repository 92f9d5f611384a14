"""Settings of the stages that run agents. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.ranges import Distinct, Ge, NotEmpty
from rlhf_lab.evaluations.settings import EvaluationSettings, content_digest
from rlhf_lab.packs.agents.benchmarks.gaia_settings import GaiaChoices
from rlhf_lab.packs.agents.gaia.mini import fixture_digests
from rlhf_lab.packs.agents.gaia.rows import source_digest
from rlhf_lab.packs.agents.harness.settings import CodeExecutor
from rlhf_lab.packs.agents.tools.bench.templates import files_digest

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

INJECTIONS = Path(__file__).with_name("injections.yml")
"""The forms of attacks, see injections.py."""
TaskSetName = Literal["mini", "generated", "world"]
Tier = Literal[1, 2, 3]
Category = Literal["tool_use", "multi_step", "failure_recovery", "long_horizon", "flaky", "ambiguous", "conflicting"]


@dataclass(frozen=True)
class AgentStage(EvaluationSettings):
    """A stage that runs the agents of `agent.programs` on tasks.

    Args:
        attempts: of each agent at each task; a model that samples does another one each time.
    """

    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "agent")
    optional_needs: ClassVar[tuple[str, ...]] = ("policy",)
    measures_gold: ClassVar[bool] = False  # what it is about is whether answers are right
    calls_reward: ClassVar[bool] = False
    shares_work: ClassVar[bool] = False
    answer: ClassVar[str] = "agents"
    attempts: Annotated[int, Ge(1)] = 1


@register("algorithm", "agent_bench")
@dataclass(frozen=True)
class AgentBench(AgentStage):
    """Agents on tasks with tools: the answer and the way to it, calls, tokens and cost, agents against each other.

    Args:
        tasks: sets of tasks: `mini`, the 36 that were written by hand; `generated`, siblings of them with other names
            and numbers; `world`, held-out tasks of data=tools, on whose training tasks a local model may have learned.
        categories: kinds of the tasks of mini and generated. The first three are AgentBench-Mini's 36.
        siblings: generated tasks of each hand-written one.
        limit: tasks of each set at most, at regular intervals; 0 takes all.
        inject: tasks that are tried once more with tools whose results carry an order; 0 is no attack.
        regressions: regressions.jsonl of an earlier run: attacks that once succeeded, tried again.
    """

    smoke: ClassVar[dict[str, float]] = {"limit": 6, "siblings": 1, "inject": 4}
    tasks: Annotated[tuple[TaskSetName, ...], NotEmpty(), Distinct()] = ("mini",)
    categories: Annotated[tuple[Category, ...], NotEmpty(), Distinct()] = ("tool_use", "multi_step", "failure_recovery")
    siblings: Annotated[int, Ge(1)] = 2
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    inject: Annotated[int, Ge(0, hint="0 is no attack")] = 0
    regressions: str = ""

    def contents(self) -> dict[str, str]:
        contents = {}
        if {"mini", "generated"} & set(self.tasks):
            contents["task_files"] = files_digest(self.categories)
        if self.inject or self.regressions:
            contents["injections"] = file_digest(INJECTIONS)
        if self.regressions:
            contents["regressions"] = content_digest(self.regressions, "regressions")
        return contents

    def contradictions(self, config: Config) -> list[str]:
        if "world" in self.tasks and registry.kind_of("data", config.data) != "tools":
            return ["algorithm.tasks: world are the held-out tasks of data=tools; add data=tools, or leave world out"]
        return []


@register("algorithm", "gaia")
@dataclass(frozen=True)
class Gaia(AgentStage, GaiaChoices):
    """GAIA: questions for assistants with tools, scored as the leaderboard does (`success`) and leniently."""

    tools_run_code: ClassVar[bool] = True
    digested_paths: ClassVar[tuple[str, ...]] = ("path",)
    smoke: ClassVar[dict[str, float]] = {"limit": 2}

    def contents(self) -> dict[str, str]:
        if self.source == "mini":
            return fixture_digests()
        digest = source_digest(self.path, self.split)
        return {"path": digest} if digest else {}


@register("algorithm", "code_bench")
@dataclass(frozen=True)
class CodeBench(AgentStage):
    """Agents that write programs: hidden tests grade the last program, and each before it, so that the share solved
    within so many rounds is known from one run.

    Args:
        tasks: `own`, twelve programs with bugs in three tiers; `data`, the rows of the data that have tests, such as
            those of data=humaneval.
        tiers: of the own tasks: 1, a traceback names the line; 2, results are wrong and the description says why; 3,
            bugs that hide each other, edge cases, and programs that are too slow.
        limit: tasks at most, at regular intervals; 0 takes all.
        pass_at: values of k of pass@k, at most `attempts`.
        rounds_at: numbers of rounds within which the share of solved tasks is told.
    """

    smoke: ClassVar[dict[str, float]] = {"limit": 3}
    tasks: Literal["own", "data"] = "own"
    tiers: Annotated[tuple[Tier, ...], NotEmpty(), Distinct()] = (1, 2, 3)
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    pass_at: tuple[Annotated[int, Ge(1)], ...] = (1,)
    rounds_at: Annotated[tuple[Annotated[int, Ge(1)], ...], NotEmpty()] = (1, 2, 6)

    def contradictions(self, config: Config) -> list[str]:
        return [
            f"agent.programs.{name}.answer=text: its programs are graded; write agent.programs.{name}.answer=code"
            for name, program in config.agent.programs.items()
            if isinstance(program, CodeExecutor) and program.answer != "code"
        ]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                all(k <= self.attempts for k in self.pass_at),
                f"pass_at={list(self.pass_at)} has a value above attempts={self.attempts}",
            ),
        )

"""Settings of the stages that run agents. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.core.files import file_digest
from rlhf_lab.data.gaia import source_digest
from rlhf_lab.environments.gaia.mini import fixture_digests
from rlhf_lab.environments.tools.bench.templates import files_digest
from rlhf_lab.evaluations.agents.gaia_settings import GaiaChoices
from rlhf_lab.evaluations.settings import EvaluationSettings, content_digest
from rlhf_lab.training.settings import Rule

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

INJECTIONS = Path(__file__).with_name("injections.yml")
"""The forms of attacks, see injections.py."""
TaskSetName = Literal["mini", "generated", "world"]
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
    attempts: int = 1

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), (self.attempts >= 1, f"attempts={self.attempts} must be at least 1"))


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
    tasks: tuple[TaskSetName, ...] = ("mini",)
    categories: tuple[Category, ...] = ("tool_use", "multi_step", "failure_recovery")
    siblings: int = 2
    limit: int = 0
    inject: int = 0
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

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                0 < len(set(self.tasks)) == len(self.tasks),
                f"tasks={list(self.tasks)}: one or more of mini, generated and world, each once",
            ),
            (
                0 < len(set(self.categories)) == len(self.categories),
                f"categories={list(self.categories)}: one or more, each once",
            ),
            (self.siblings >= 1, f"siblings={self.siblings} must be at least 1"),
            (self.limit >= 0, f"limit={self.limit} must be 0 (all) or above"),
            (self.inject >= 0, f"inject={self.inject} must be 0 (no attack) or above"),
        )


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

    def rules(self) -> tuple[Rule, ...]:
        return (*AgentStage.rules(self), *GaiaChoices.rules(self))

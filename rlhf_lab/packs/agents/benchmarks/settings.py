"""Settings of the stages that run agents. This module imports no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rlhf_lab.config import registry
from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.files import file_digest
from rlhf_lab.core.ranges import BySize, Distinct, Ge, Le, NotEmpty
from rlhf_lab.evaluations.settings import EvaluationSettings, content_digest
from rlhf_lab.packs.agents.benchmarks.web_search import SERVICES
from rlhf_lab.packs.agents.gaia.mini import fixture_digests
from rlhf_lab.packs.agents.gaia.rows import source_digest
from rlhf_lab.packs.agents.harness.settings import CodeExecutor
from rlhf_lab.packs.agents.tools.bench.templates import files_digest
from rlhf_lab.training.stage_spec import ClusterUnit, Resources

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

INJECTIONS = Path(__file__).with_name("injections.yml")
"""File with the forms of attacks, see injections.py."""
TaskSetName = Literal["mini", "generated", "world"]
Tier = Literal[1, 2, 3]
Category = Literal["tool_use", "multi_step", "failure_recovery", "long_horizon", "flaky", "ambiguous", "conflicting"]
# http is allowed on this machine only, because the key must not cross a network unencrypted.
SAFE_URL = re.compile(r"https://\S+|http://(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?(?:/\S*)?")
SearchName = Literal["own", "none", "tavily", "brave", "serper"]


@dataclass(frozen=True)
class AgentStage(EvaluationSettings):
    """Base class for stages that run the agents of `agent.programs` on tasks. With `needs.reference`, every agent also
    attempts the tasks with that model, such as the policy before a training.

    Args:
        attempts: number of attempts of each agent at each task. Attempts differ only if the model samples.
    """

    inputs = replace(
        EvaluationSettings.inputs, sections=("model", "rollout", "agent"), optional=("policy", "reference")
    )
    # the result is whether answers are right, not a gold score
    reward_use = replace(EvaluationSettings.reward_use, measures_gold=False, loads_models=False)
    resources = Resources(distributed=False)
    evidence = replace(
        EvaluationSettings.evidence,
        clusters=ClusterUnit("the template of the task", "template", "template"),
        answer="agents",
    )
    attempts: Annotated[int, Ge(1)] = 1


@register("algorithm", "agent_bench")
@dataclass(frozen=True)
class AgentBench(AgentStage):
    """Benchmark of agents on tasks with tools: answers, calls, tokens, cost, and comparisons between agents.

    Args:
        tasks: sets of tasks. `mini` has 36 hand-written tasks; `generated` has siblings of them with other names and
            numbers; `world` has the held-out tasks of data=tools, whose training tasks a local model may be trained on.
        categories: categories of the tasks of mini and generated. The first three are the 36 tasks of AgentBench-Mini.
        siblings: number of generated tasks per hand-written task.
        limit: maximum number of tasks of each set, chosen at regular intervals within its categories; 0 means all.
        inject: number of tasks that are also attempted under attack, with orders in the tools' results; 0 means no
            attack.
        regressions: regressions.jsonl of an earlier run; its successful attacks are tried again.
        reward_metrics: metrics of the stage in `needs.reward` that are reported with those of the agents, so that a
            study of reward models also shows what an agent trained on each of them is worth.
    """

    inputs = replace(AgentStage.inputs, optional=(*AgentStage.inputs.optional, "reward"))
    # A smoke run exercises every part of the stage on a few tasks.
    by_size = BySize(smoke={"limit": 6, "siblings": 1, "inject": 4})
    tasks: Annotated[tuple[TaskSetName, ...], NotEmpty(), Distinct()] = ("mini",)
    categories: Annotated[tuple[Category, ...], NotEmpty(), Distinct()] = ("tool_use", "multi_step", "failure_recovery")
    siblings: Annotated[int, Ge(1)] = 2
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    inject: Annotated[int, Ge(0, hint="0 is no attack")] = 0
    regressions: str = ""
    reward_metrics: Annotated[tuple[str, ...], Distinct()] = ()

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
        problems = []
        if "world" in self.tasks and registry.kind_of("data", config.data) != "tools":
            problems.append(
                "algorithm.tasks: world has the held-out tasks of data=tools; add data=tools, or remove world"
            )
        if bool(self.reward_metrics) != bool(config.needs.get("reward")):
            problems.append(
                "algorithm.reward_metrics and needs.reward belong together: the metrics are those of the stage in "
                "needs.reward; set both or neither"
            )
        return problems


@register("algorithm", "gaia")
@dataclass(frozen=True)
class Gaia(AgentStage):
    """Benchmark on GAIA: questions for assistants with tools, scored as on the leaderboard and leniently.

    Args:
        source: set of questions. `mini` is a set of thirty built-in questions with a small offline web; `official`
            reads the questions in `path`.
        path: a copy of the official repository, its metadata file, or a hub id such as `gaia-benchmark/GAIA`.
        split: split of the official set: `validation`, or `test`, whose answers are secret, so that nothing is scored.
        levels: levels of difficulty to include, from 1 to 3.
        limit: maximum number of questions per level; the first ones are used, and 0 means all.
        search: `own` is the offline web of `mini`; `none` is no web; `tavily`, `brave` and `serper` are live services.
        search_key_env: environment variable with the key of the service; empty means the service's usual variable.
        search_url: address of the service; empty means its official address.
        search_results: number of results per search.
    """

    inputs = replace(AgentStage.inputs, digested=("path",))
    resources = replace(AgentStage.resources, runs_code=True)
    by_size = BySize(smoke={"limit": 2})
    source: Literal["mini", "official"] = "mini"
    path: str = ""
    split: Literal["validation", "test"] = "validation"
    levels: Annotated[
        tuple[Annotated[int, Ge(1), Le(3)], ...], NotEmpty(hint="write some of 1, 2 and 3"), Distinct()
    ] = (1, 2, 3)
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    search: SearchName = "own"
    search_key_env: str = ""
    search_url: str = ""
    search_results: Annotated[int, Ge(1), Le(20)] = 5

    def rules(self) -> tuple[Rule, ...]:
        is_mini = self.source == "mini"
        is_live = self.search in SERVICES
        return (
            *super().rules(),
            (is_mini or bool(self.path), "source=official needs path=DIR, FILE or a hub id (gaia-benchmark/GAIA)"),
            (
                not (is_mini and self.path),
                f"path={self.path} is only read with source=official; remove it or set source",
            ),
            (
                not (is_mini and self.search != "own"),
                f"search={self.search}: the questions of source=mini need their offline web; use search=own",
            ),
            (
                is_mini or self.search != "own",
                "search=own has no pages for the official questions; use search=none, tavily, brave or serper",
            ),
            (
                is_live or not (self.search_key_env or self.search_url),
                f"search_key_env and search_url need a live service, but search={self.search} is none; leave them out",
            ),
            (
                not self.search_url or SAFE_URL.fullmatch(self.search_url) is not None,
                f"search_url={self.search_url}: the key is sent there, so use https, or http on this machine",
            ),
        )

    def contents(self) -> dict[str, str]:
        if self.source == "mini":
            return fixture_digests()
        # None for a hub id, whose content is not known before the download.
        digest = source_digest(self.path, self.split)
        return {"path": digest} if digest else {}


@register("algorithm", "code_bench")
@dataclass(frozen=True)
class CodeBench(AgentStage):
    """Benchmark of agents that write programs. Hidden tests grade every program of an attempt, so that one run shows
    the fraction of tasks solved after each number of rounds.

    Args:
        tasks: set of tasks. `own` has twelve programs with bugs in three tiers; `data` uses the rows of the data that
            have tests, such as those of data=humaneval.
        tiers: tiers of the own tasks. In tier 1 a traceback names the line; in tier 2 results are wrong and the
            description says why; tier 3 has bugs that hide each other, edge cases, and slow programs.
        limit: maximum number of tasks, chosen at regular intervals within their tiers; 0 means all.
        pass_at: values of k in pass@k, each at most `attempts`.
        rounds_at: numbers of rounds after which the fraction of solved tasks is reported.
    """

    by_size = BySize(smoke={"limit": 3})
    tasks: Literal["own", "data"] = "own"
    tiers: Annotated[tuple[Tier, ...], NotEmpty(), Distinct()] = (1, 2, 3)
    limit: Annotated[int, Ge(0, hint="0 is all")] = 0
    pass_at: tuple[Annotated[int, Ge(1)], ...] = (1,)
    rounds_at: Annotated[tuple[Annotated[int, Ge(1)], ...], NotEmpty()] = (1, 2, 6)

    def contradictions(self, config: Config) -> list[str]:
        return [
            # Only code_executor has this setting.
            f"agent.programs.{name}.answer=text: code_bench grades programs; set agent.programs.{name}.answer=code"
            for name, program in config.agent.programs.items()
            if isinstance(program, CodeExecutor) and program.answer != "code"
        ]

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                all(k <= self.attempts for k in self.pass_at),
                f"pass_at={list(self.pass_at)} has a value above attempts={self.attempts}; raise attempts",
            ),
        )

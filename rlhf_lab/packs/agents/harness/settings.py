"""Settings of every agent (`agent=…`). Imports no torch; see `rlhf_lab/config/registry.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.config import inventory, registry
from rlhf_lab.config.build import build_kind
from rlhf_lab.config.registry import register
from rlhf_lab.config.root import to_values
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, NotEmpty

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@dataclass(frozen=True)
class AgentSettings(CheckedSettings):
    """Common to every agent.

    Class attributes:
        asks_model: whether it speaks through the model of `agent.llm`.
        runs_code: whether it runs Python that the model wrote, in the sandbox.
    """

    asks_model: ClassVar[bool] = True
    runs_code: ClassVar[bool] = False

    def identity(self) -> dict[str, Any]:
        """The settings that decide what it does; JSON values."""
        return asdict(self)


@register("agent", "zero_shot")
@dataclass(frozen=True)
class ZeroShot(AgentSettings):
    """One turn without tools."""


@register("agent", "react")
@dataclass(frozen=True)
class React(AgentSettings):
    """Thinks, calls a tool, reads its result, until it knows the answer (arXiv:2210.03629)."""


@register("agent", "plan_execute")
@dataclass(frozen=True)
class PlanExecute(AgentSettings):
    """Plans all calls, makes them, answers from their results. The plan is not changed on the way.

    Args:
        steps: most steps of a plan; more are an error of the agent.
        step_turns: most turns for a step that is a sentence and no call: a part of its own calls tools for it.
    """

    steps: Annotated[int, Ge(1)] = 12
    step_turns: Annotated[int, Ge(1)] = 6


@register("agent", "multi_agent")
@dataclass(frozen=True)
class MultiAgent(AgentSettings):
    """A planner, executors who see their query alone, and a synthesiser.

    Args:
        queries: most queries of a plan; more are an error that the planner is told once.
        executor_turns: most turns of an executor.
    """

    queries: Annotated[int, Ge(1)] = 4
    executor_turns: Annotated[int, Ge(1)] = 8


@register("agent", "scratchpad")
@dataclass(frozen=True)
class Scratchpad(AgentSettings):
    """Sees the question, its notes and the latest result; rewrites the notes after every call.

    Args:
        notes_tokens: longest notes, in tokens of the model.
    """

    notes_tokens: Annotated[int, Ge(1)] = 128


@register("agent", "code_executor")
@dataclass(frozen=True)
class CodeExecutor(AgentSettings):
    """Writes Python, reads what running it gave, and revises.

    Args:
        rounds: most programs that it runs. Each run is a call: `agent.max_calls` bounds them as well.
        answer: `text` is what it says after its last run; `code` is its last program, for tasks that ask for one.
        output_chars: of what a run printed, the most that it reads; the middle of more is left out.
    """

    runs_code: ClassVar[bool] = True
    rounds: Annotated[int, Ge(1)] = 6
    answer: Literal["text", "code"] = "text"
    output_chars: Annotated[int, Ge(100)] = 4000


@register("agent", "python")
@dataclass(frozen=True)
class PythonAgent(AgentSettings):
    """An agent of the user: an object with `run(prompt, tools)`, or a class or function without arguments that makes
    one for each attempt. It returns an AgentTrajectory, or its answer as text.

    Args:
        path: FILE.py:NAME, the file relative to the working directory.
        threads: attempts under way at once.
    """

    asks_model: ClassVar[bool] = False
    path: Annotated[
        str, NotEmpty(hint="write agent.programs.python.path=my_agent.py:Mine, an object with run(prompt, tools)")
    ] = ""
    threads: Annotated[int, Ge(1)] = 4

    def rules(self) -> tuple[Rule, ...]:
        file, colon, name = self.path.rpartition(":")
        return (
            *super().rules(),
            (
                not self.path or (bool(colon) and file.endswith(".py") and name.isidentifier()),
                f"path={self.path} is not FILE.py:NAME, such as my_agent.py:Mine",
            ),
        )

    def identity(self) -> dict[str, Any]:
        """The path decides what it does, together with the content of the file, which the caller knows."""
        return {"path": self.path}


@register("agent", "scripted")
@dataclass(frozen=True)
class Scripted(AgentSettings):
    """No model: what it scores is a bound for the agents that have one.

    Args:
        behaviour: `oracle` makes the calls that the task needs and knows its answer; `always_refuse` and `always_guess`
            call nothing; `random_tools` calls anything.
        seed: of what it draws.
    """

    asks_model: ClassVar[bool] = False
    behaviour: Literal["oracle", "always_refuse", "always_guess", "random_tools"] = "oracle"
    seed: int = 0


@register("agent", "scripted_code")
@dataclass(frozen=True)
class ScriptedCode(AgentSettings):
    """No model: code_executor's rounds with programs that are known, as bounds for agents that write programs. A task
    has the facts `program`, with bugs, and `solution`.

    Args:
        behaviour: `solves` writes the solution; `unchanged` writes the program as it is; `reads_errors` does that too,
            and writes the solution once a run has failed.
        rounds: most programs that it runs.
    """

    asks_model: ClassVar[bool] = False
    runs_code: ClassVar[bool] = True
    behaviour: Literal["solves", "unchanged", "reads_errors"] = "solves"
    rounds: Annotated[int, Ge(1)] = 6


@section("agent", parts="programs")
@dataclass(frozen=True)
class Agents(Section):
    """Who attempts tasks, and the model that they speak through. Read by stages that run agents.

    Args:
        programs: name → settings of the agent.
        llm: the model behind the agents: `local` is the policy in `needs.policy`, by the lab's own sampler; `anthropic`
            and `openai_compatible` are services, asked as judges are, from the same store and the same budget.
        service: settings of that service, over conf/judge/<llm>.yaml: `agent.service.model=NAME`,
            `agent.service.base_url=…`, `agent.service.budget_usd=…`; `explain judge=anthropic` lists them. Empty for
            `local`.
        temperature: of sampling; null is 0 for `local`, and what `service` says for a service.
        max_turns: most turns of the model in one attempt at a task, over all parts of an agent.
        max_calls: most calls of tools in one attempt; running a program is one.
        max_prompt_tokens: of the local model: a longer conversation loses its beginning, which a note counts; null is
            what its positions leave beside a turn.
        max_tokens: of a turn; null is `rollout.max_new_tokens` for `local`, and 1024 for a service.
        calls: `native` offers the tools to the model in its own form, `text` has it write calls as text; `auto` is
            native where the service or the model's chat template takes tools.
        prompt: `instructions` say what to do and list the tools; `brief` says no more than models are trained on that
            the lab makes from scratch; `auto` is brief for those, instructions for others.
        mark_results: instructions have results of tools between <result> and </result>, as data that is not to be
            obeyed; false shows them as they are, to measure what the marks are worth.
    """

    programs: Annotated[dict[str, Any], NotEmpty(hint="choose at least one, e.g. agent=react")] = field(
        default_factory=dict
    )
    llm: Literal["local", "anthropic", "openai_compatible"] = "local"
    service: Any = field(default_factory=dict)
    temperature: Annotated[float, Ge(0, hint="0 is greedy")] | None = None
    max_turns: Annotated[int, Ge(1)] = 24
    max_calls: Annotated[int, Ge(0)] = 24
    max_prompt_tokens: Annotated[int, Ge(1)] | None = None
    max_tokens: Annotated[int, Ge(1)] | None = None
    calls: Literal["auto", "native", "text"] = "auto"
    prompt: Literal["auto", "brief", "instructions"] = "auto"
    mark_results: bool = True

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.calls != "native" or self.prompt != "brief",
                "calls=native with prompt=brief: a model that is spoken to in brief writes calls as text; choose "
                "calls=text or prompt=instructions",
            ),
        )

    @classmethod
    def prepared(cls, values: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any] | None:
        """Composed values with the settings of the service built; None where these are wrong."""
        service = _build_service(values.get("llm", cls.llm), values.get("service"), problems)
        return None if service is None else {**values, "service": service}

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        if not runs_agents(config):
            return []
        service = [("judge", self.service)] if self.asks_service else []
        return [*(("agent", program) for program in self.programs.values()), *service]

    def leaves_out(self, role: str, config: Config) -> bool:
        return role == "policy" and runs_agents(config) and not self.asks_policy

    def key_material(self, config: Config) -> dict[str, Any]:
        """The settings of the agents; of their service what decides its answers, not what they cost."""
        if not runs_agents(config):
            return {}
        identity = {name: value for name, value in to_values(config)["agent"].items() if name != "service"}
        if self.asks_service:
            identity["service"] = self.service_settings.identity()
        return {"agent": identity}

    def contradictions(self, config: Config) -> list[str]:
        if not (runs_agents(config) and self.asks_model):
            return []
        problems = []
        if self.llm == "local" and not config.needs.get("policy"):
            problems.append(
                "agent.llm=local: the agents speak through needs.policy, which is not set; name one, e.g. "
                "+needs.policy=sft, or a service: agent.llm=anthropic or agent.llm=openai_compatible"
            )
        if self.llm == "local" and self.calls == "native" and registry.kind_of("model", config.model) == "scratch":
            problems.append(
                "agent.calls=native: a model made from scratch has no chat template that takes tools; use "
                "agent.calls=text"
            )
        if self.llm == "anthropic" and self.temperature is not None:
            problems.append("agent.temperature: agent.llm=anthropic samples at the service's own; leave it out")
        sampled_by_vllm = registry.kind_of("rollout", config.rollout) == "vllm" and config.engine == "native"
        if sampled_by_vllm and not self.asks_service:
            problems.append(
                "agent.llm=local: agents ask the lab's own sampler; use rollout=local, or serve the model and use "
                "agent.llm=openai_compatible"
            )
        return problems

    @property
    def service_settings(self) -> Any:
        """The settings of the service, at the agents' temperature where that is written."""
        return self.service if self.temperature is None else replace(self.service, temperature=self.temperature)

    @property
    def asks_service(self) -> bool:
        """Whether a service is asked."""
        return self.llm != "local" and self.asks_model

    @property
    def asks_policy(self) -> bool:
        """Whether one of the agents speaks through the policy in `needs.policy`."""
        return self.llm == "local" and self.asks_model

    @property
    def asks_model(self) -> bool:
        """Whether one of the agents speaks through the model."""
        return any(program.asks_model for program in self.programs.values())

    def most_requests(self, attempts: int) -> int:
        """Requests of so many attempts by each agent, at most."""
        return attempts * self.max_turns * sum(program.asks_model for program in self.programs.values())


SERVICES = ("anthropic", "openai_compatible")
"""Values of `agent.llm` that are kinds of judges as well: services that are asked by the judges' transport."""


def runs_agents(config: Config) -> bool:
    """Return True if the stage runs the agents of `agent`."""
    return "agent" in config.algorithm.uses


def _build_service(llm: Any, values: Any, problems: list[str]) -> Any:
    """Settings of the agents' service, over those of the file of the same name; {} for `local`, None where wrong."""
    if not isinstance(values or {}, Mapping):
        problems.append(f"agent.service={values!r} is no mapping; write agent.service.model=NAME")
        return None
    if llm not in SERVICES:  # anything else than `local` is reported where the section is built
        if values:
            problems.append(
                f"agent.service.{next(iter(values))}: agent.llm={llm} asks no service; leave it out, or choose "
                "agent.llm=anthropic or agent.llm=openai_compatible"
            )
        return {}
    from_file = inventory.written_values("judge", llm)
    return build_kind("judge", {**from_file, **(values or {}), "kind": llm}, problems, "agent.service")

"""Settings of the agents (`agent=…`). This module imports no torch; see `rlhf_lab/config/registry.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.config import inventory, registry
from rlhf_lab.config.check import build_kind
from rlhf_lab.config.registry import register
from rlhf_lab.config.root import to_values
from rlhf_lab.config.section import Section, section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, NotEmpty
from rlhf_lab.core.user_code import names_object

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@dataclass(frozen=True)
class AgentSettings(CheckedSettings):
    """Base class for the settings of an agent.

    Class attributes:
        asks_model: True if the agent uses the model of `agent.llm`.
        runs_code: True if it runs Python code that the model wrote, in the sandbox.
    """

    asks_model: ClassVar[bool] = True
    runs_code: ClassVar[bool] = False

    def identity(self) -> dict[str, Any]:
        """Return the settings that determine the agent's behaviour, as JSON values."""
        return asdict(self)


@register("agent", "zero_shot")
@dataclass(frozen=True)
class ZeroShot(AgentSettings):
    """An agent that answers in one turn without tools."""


@register("agent", "react")
@dataclass(frozen=True)
class React(AgentSettings):
    """ReAct agent: alternates between thinking, calling a tool and reading its result (arXiv:2210.03629)."""


@register("agent", "plan_execute")
@dataclass(frozen=True)
class PlanExecute(AgentSettings):
    """An agent that plans all calls first, executes them, and answers from their results without revising the plan.

    Args:
        steps: maximum number of steps in a plan; a longer plan is an error of the agent.
        step_turns: maximum number of turns for a step that is a sentence instead of a call. A separate part of the
            agent calls tools for it.
    """

    steps: Annotated[int, Ge(1)] = 12
    step_turns: Annotated[int, Ge(1)] = 6


@register("agent", "multi_agent")
@dataclass(frozen=True)
class MultiAgent(AgentSettings):
    """An agent with a planner, executors that see only their query, and a synthesiser. A query may use the answers to
    earlier queries, so executors also follow a chain from hop to hop.

    Args:
        queries: maximum number of queries in a plan. The planner gets one chance to correct a longer plan.
        executor_turns: maximum number of turns of an executor.
    """

    queries: Annotated[int, Ge(1)] = 8
    executor_turns: Annotated[int, Ge(1)] = 8


@register("agent", "coordinator")
@dataclass(frozen=True)
class Coordinator(AgentSettings):
    """An agent with a coordinator that questions executors one after the other. Executors see only their query.

    Args:
        memory: what the coordinator sees of earlier answers. `list` is every query with its answer; `notes` is a
            scratchpad of bounded length, which it rewrites after every answer.
        notes_tokens: maximum length of the notes, in tokens of the model; unused with `list`.
        executor_turns: maximum number of turns of an executor.
    """

    memory: Literal["list", "notes"] = "list"
    notes_tokens: Annotated[int, Ge(1)] = 128
    executor_turns: Annotated[int, Ge(1)] = 8


@register("agent", "scratchpad")
@dataclass(frozen=True)
class Scratchpad(AgentSettings):
    """An agent that sees the question, its notes and the latest result, and rewrites the notes after every call.

    Args:
        notes_tokens: maximum length of the notes, in tokens of the model.
    """

    notes_tokens: Annotated[int, Ge(1)] = 128


@register("agent", "code_executor")
@dataclass(frozen=True)
class CodeExecutor(AgentSettings):
    """An agent that writes Python, reads the output of running it, and revises.

    Args:
        rounds: maximum number of programs that it runs. Each run is a call, so `agent.max_calls` limits them as well.
        answer: kind of answer. `text` is the text after the last run; `code` is the last program, for tasks that ask
            for a program.
        output_chars: maximum number of characters of a run's output shown to the model. Longer output loses its middle.
    """

    runs_code: ClassVar[bool] = True
    rounds: Annotated[int, Ge(1)] = 6
    answer: Literal["text", "code"] = "text"
    output_chars: Annotated[int, Ge(100)] = 4000


@register("agent", "python")
@dataclass(frozen=True)
class PythonAgent(AgentSettings):
    """An agent of the user. It is an object with `run(prompt, tools)`, or a class or function without arguments that
    creates such an object for each attempt. `run` returns an AgentTrajectory, or the answer as text.

    Args:
        path: location of the agent as FILE.py:NAME; the file is relative to the working directory.
        threads: maximum number of attempts that run at the same time.
    """

    asks_model: ClassVar[bool] = False
    # Empty by default, so that a missing path is reported with the hint.
    path: Annotated[
        str, NotEmpty(hint="write agent.programs.python.path=my_agent.py:Mine, an object with run(prompt, tools)")
    ] = ""
    threads: Annotated[int, Ge(1)] = 4

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                not self.path or names_object(self.path),
                f"path={self.path} is not of the form FILE.py:NAME; write e.g. my_agent.py:Mine",
            ),
        )

    def identity(self) -> dict[str, Any]:
        """Return the path. Together with the file's content, which the caller adds, it determines the behaviour."""
        return {"path": self.path}


@register("agent", "scripted")
@dataclass(frozen=True)
class Scripted(AgentSettings):
    """A scripted agent without a model. Its scores are bounds for the agents that have one.

    Args:
        behaviour: the script. `oracle` executes the calls that the task needs and knows its answer; `always_refuse` and
            `always_guess` call nothing; `random_tools` calls random tools.
        seed: seed of its random choices.
    """

    asks_model: ClassVar[bool] = False
    behaviour: Literal["oracle", "always_refuse", "always_guess", "random_tools"] = "oracle"
    seed: int = 0


@register("agent", "scripted_code")
@dataclass(frozen=True)
class ScriptedCode(AgentSettings):
    """A scripted agent without a model that goes through the rounds of code_executor with known programs. Its scores
    are bounds for agents that write programs. The metadata of a task has `program`, which has bugs, and `solution`.

    Args:
        behaviour: the script. `solves` writes the solution; `unchanged` writes the program as it is; `reads_errors`
            does the same, and writes the solution after a run has failed.
        rounds: maximum number of programs that it runs.
    """

    asks_model: ClassVar[bool] = False
    runs_code: ClassVar[bool] = True
    behaviour: Literal["solves", "unchanged", "reads_errors"] = "solves"
    rounds: Annotated[int, Ge(1)] = 6


@section("agent", parts="programs")
@dataclass(frozen=True)
class Agents(Section):
    """Agents that attempt tasks, and the model that they use. Read by stages that run agents.

    Args:
        programs: the agents: name → settings.
        llm: model of the agents. `local` is the policy in `needs.policy`, sampled by the built-in sampler. `anthropic`
            and `openai_compatible` are services. They are called as judges are, with the same answer store and budget.
        service: settings of the service, which override conf/judge/<llm>.yaml: `agent.service.model=NAME`,
            `agent.service.base_url=…`, `agent.service.budget_usd=…`. `explain judge=anthropic` lists them. Empty for
            `local`.
        temperature: sampling temperature; null means 0 for `local`, and the value in `service` for a service.
        max_turns: maximum number of model turns in one attempt at a task, over all parts of an agent.
        max_calls: maximum number of tool calls in one attempt; running a program counts as one.
        max_prompt_tokens: maximum number of prompt tokens of the local model. A longer conversation loses its oldest
            turns, never its instructions and its question, and a note counts these losses. An attempt whose
            instructions and question do not fit fails. null means the positions of the model that a turn leaves free.
        max_tokens: maximum number of tokens of a turn; null means `rollout.max_new_tokens` for `local`, and 1024 for a
            service.
        calls: form of tool calls. `native` passes the tools to the model natively; with `text` the model writes calls
            as text; `auto` is native if the service or the model's chat template supports tools.
        prompt: style of the prompts. `instructions` explain the task and list the tools; `brief` uses only the phrases
            that built-in models (`model=scratch`) are trained on; `auto` is brief for these models and instructions for
            others.
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

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.calls != "native" or self.prompt != "brief",
                "calls=native with prompt=brief: a model with brief prompts writes calls as text; choose "
                "calls=text or prompt=instructions",
            ),
        )

    @classmethod
    def prepared(cls, values: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any] | None:
        """Return the values with `service` as a settings object, or None if the service's settings are wrong."""
        # The kind of the service is the value of `llm`, so its settings can only be built here, where both are known.
        service = _build_service(values.get("llm", cls.llm), values.get("service"), problems)
        return None if service is None else {**values, "service": service}

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        if not runs_agents(config):
            return []  # the section is ignored, so an unused agent cannot invalidate a configuration
        # The service is checked as a judge is.
        service = [("judge", self.service)] if self.asks_service else []
        programs = [("agent", program) for program in self.programs.values()]
        return [*programs, *service]

    def leaves_out(self, role: str, config: Config) -> bool:
        # Without an agent that uses it, no policy is built for the stage.
        return role in ("policy", "reference") and runs_agents(config) and not self.asks_policy

    def key_material(self, config: Config) -> dict[str, Any]:
        """Return the settings of this section for the run's key. Of the service's settings, only those that determine
        answers are included, not those about costs.
        """
        if not runs_agents(config):
            return {}
        # A new budget must not repeat attempts, so only the identity of the service is added.
        values = to_values(config)["agent"]
        identity = {name: value for name, value in values.items() if name != "service"}
        if self.asks_service:
            identity["service"] = self.service_settings.identity()
        return {"agent": identity}

    def contradictions(self, config: Config) -> list[str]:
        # Agents without a model ignore these settings.
        if not (runs_agents(config) and self.asks_model):
            return []
        problems = []
        if self.llm == "local" and not config.needs.get("policy"):
            problems.append(
                "agent.llm=local: the agents use the model of needs.policy, which is not set; set it, e.g. "
                "+needs.policy=sft, or choose a service: agent.llm=anthropic or agent.llm=openai_compatible"
            )
        is_scratch = registry.kind_of("model", config.model) == "scratch"
        if self.llm == "local" and self.calls == "native" and is_scratch:
            problems.append(
                "agent.calls=native: a model of model=scratch has no chat template that supports tools; use "
                "agent.calls=text"
            )
        if self.llm == "anthropic" and self.temperature is not None:
            problems.append(
                "agent.temperature: agent.llm=anthropic always samples at its own temperature; leave it out"
            )
        # Agents call the built-in sampler, so a vLLM sampler would be set up in vain.
        sampled_by_vllm = registry.kind_of("rollout", config.rollout) == "vllm" and config.engine == "native"
        if sampled_by_vllm and not self.asks_service:
            problems.append(
                "agent.llm=local: agents need the built-in sampler; use rollout=local, or serve the model and use "
                "agent.llm=openai_compatible"
            )
        return problems

    @property
    def service_settings(self) -> Any:
        """Settings of the service, with the agents' temperature if it is set."""
        return self.service if self.temperature is None else replace(self.service, temperature=self.temperature)

    @property
    def asks_service(self) -> bool:
        """True if the agents call a service."""
        return self.llm != "local" and self.asks_model

    @property
    def asks_policy(self) -> bool:
        """True if at least one agent uses the policy in `needs.policy`."""
        return self.llm == "local" and self.asks_model

    @property
    def asks_model(self) -> bool:
        """True if at least one agent uses a model."""
        return any(program.asks_model for program in self.programs.values())

    def max_requests(self, attempts: int) -> int:
        """Return the maximum number of model requests if each agent makes this number of attempts."""
        # max_turns limits an attempt over all parts of an agent, so parts need no factor.
        agents_with_model = sum(program.asks_model for program in self.programs.values())
        return attempts * self.max_turns * agents_with_model


SERVICES = ("anthropic", "openai_compatible")
"""Values of `agent.llm` that are also kinds of judges: services that are called through the judges' transport."""


def runs_agents(config: Config) -> bool:
    """Return True if the stage runs the agents of `agent`."""
    return "agent" in config.algorithm.inputs.sections


def _build_service(llm: Any, values: Any, problems: list[str]) -> Any:
    """Return the settings of the agents' service: the values in `agent` override those of the service's config file.

    Return {} for `local`, or None if the settings are wrong; then `problems` says why.
    """
    if not isinstance(values or {}, Mapping):
        problems.append(f"agent.service={values!r} is not a mapping; write e.g. agent.service.model=NAME")
        return None
    if llm not in SERVICES:  # a value other than `local` is reported when the section is built
        if values:
            problems.append(
                f"agent.service.{next(iter(values))}: agent.llm={llm} uses no service; leave it out, or choose "
                "agent.llm=anthropic or agent.llm=openai_compatible"
            )
        return {}
    # Later entries win: the user's settings override those of the file.
    from_file = inventory.written_values("judge", llm)
    return build_kind("judge", {**from_file, **(values or {}), "kind": llm}, problems, "agent.service")

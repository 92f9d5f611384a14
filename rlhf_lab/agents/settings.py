"""Settings of every agent (`agent=…`). Imports no torch; see `rlhf_lab/config/registry.py`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, NotEmpty


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

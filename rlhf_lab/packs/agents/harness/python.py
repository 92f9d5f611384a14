"""Agents of users: any object with `run(prompt, tools)`, run in a limited number of threads.

An agent returns an AgentTrajectory, or its answer as text. In the second case its calls are recorded by wrappers around
the tools. A thread cannot be stopped from outside, so an agent has to limit its own time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from hashlib import sha256
from inspect import iscoroutinefunction, signature
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.progress import progress
from rlhf_lab.core.tools import Call, Tool, ToolError
from rlhf_lab.core.user_code import files_behind, load_from_file
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.harness.agent import Agent, Assignment, OnDone
from rlhf_lab.packs.agents.harness.program import failure, question_of
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import PythonAgent
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn


class ThreadedAgent:
    """`BatchAgent` that runs an `Agent`.

    Args:
        make: returns the agent of one attempt.
        identity: identity of the agent, as JSON values.
        threads: maximum number of attempts that run at the same time.
    """

    def __init__(self, make: Callable[[], Agent], identity: Mapping[str, Any], threads: int = 4):
        self.make, self.identity, self.threads = make, identity, threads

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        """See `BatchAgent.run_many`. After an infrastructure error no further attempt starts."""
        trajectories: dict[int, AgentTrajectory] = {}
        error: LabError | None = None
        with ThreadPoolExecutor(self.threads, "agent") as pool, progress("agents", len(assignments)) as ticker:
            running: dict[Future[AgentTrajectory], int] = {
                pool.submit(self._run, assignment): index for index, assignment in enumerate(assignments)
            }
            while running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    number = running.pop(future)
                    if future.cancelled():
                        continue
                    try:
                        trajectories[number] = future.result()
                    except LabError as raised:
                        # Attempts that run already are completed and reported; the error is raised after them.
                        error = error or raised
                        for waiting in running:
                            waiting.cancel()
                        continue
                    ticker.advance(1)
                    on_done(number, trajectories[number])
        if error is not None:
            raise error
        return [trajectories[number] for number in range(len(assignments))]

    def _run(self, assignment: Assignment) -> AgentTrajectory:
        start = time.monotonic()
        calls: list[Call] = []
        tools = [_recorded(tool, calls) for tool in assignment.tools]
        prompt = prompt_of(assignment.task)
        try:
            result: Any = self.make().run(prompt, tools)
            if not isinstance(result, AgentTrajectory):
                if not isinstance(result, str | None):
                    raise TypeError(f"run() returned {type(result).__name__}; expected an AgentTrajectory or text")
                result = AgentTrajectory(result, _turn(prompt, result, calls))
        except LabError:
            raise
        except Exception as error:  # user code may raise anything, and that is a failed attempt
            result = AgentTrajectory(None, _turn(prompt, None, calls), "failed", error=failure(error))
        return replace(result, wall_s=time.monotonic() - start)


def prompt_of(task: Task) -> str:
    """Return the agent's prompt: the task's instructions, if any (such as GAIA's form of answers), and the question."""
    instructions = [message["content"] for message in to_messages(task.prompt) if message["role"] == "system"]
    return "\n\n".join([*instructions, question_of(task)])


def _turn(prompt: str, answer: str | None, calls: Sequence[Call]) -> tuple[ModelTurn, ...]:
    """Return one turn with all calls, for an agent that does not report its turns."""
    return (ModelTurn("agent", prompt, answer or "", tuple(calls)),)


def _recorded(tool: Tool, calls: list[Call]) -> Tool:
    """Wrap a tool so that its calls are appended to a list."""

    def run(**arguments: Any) -> str:
        try:
            result = tool.run(**arguments)
        except ToolError as error:
            calls.append(Call(tool.name, arguments, str(error), failed=True))
            raise  # the agent decides what to do about it
        calls.append(Call(tool.name, arguments, result))
        return result

    return replace(tool, run=run)


def load_agent(settings: PythonAgent) -> Callable[[], Agent]:
    """Load the function that creates the agent of one attempt. Raise ConfigError if it is missing or invalid.

    One agent is created here, so that an error that would occur in every attempt is reported before the first.
    """
    where = f"agent.programs.python.path={settings.path}"
    named = load_from_file(where, settings.path)
    if hasattr(named, "run") and not isinstance(named, type):
        _require_run(where, named)
        return lambda: named  # all attempts use the same object
    if not callable(named):
        raise ConfigError(f"{where} is of type {type(named).__name__}; expected an object with run(prompt, tools)")
    name = settings.path.rpartition(":")[2]
    if not _takes(named):
        raise ConfigError(
            f"{where} takes arguments, {name}{signature(named)}; write a class or function without arguments "
            "that creates an object with run(prompt, tools)"
        )
    try:
        agent = named()
    except LabError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"{where}: {name}() raised {failure(error)}; correct the agent") from error
    _require_run(where, agent)
    return named


def _require_run(where: str, agent: Any) -> None:
    """Raise ConfigError if an object has no method that can be called as run(prompt, tools)."""
    kind = type(agent).__name__
    if not callable(getattr(agent, "run", None)):
        raise ConfigError(f"{where}: {kind} has no method run; write def run(self, prompt, tools), which returns text")
    if not _takes(agent.run, "prompt", []):
        raise ConfigError(
            f"{where}: {kind}.run{signature(agent.run)} cannot be called as run(prompt, tools); write "
            "def run(self, prompt, tools)"
        )
    if iscoroutinefunction(agent.run):
        raise ConfigError(
            f"{where}: {kind}.run is async, but attempts run in threads; write def run(self, prompt, tools), which may "
            "call asyncio.run"
        )


def _takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Return True if a function can be called with these arguments, or if its signature is unknown."""
    try:
        known = signature(function)
    except ValueError:  # some functions that are written in C have no signature
        return True
    try:
        known.bind(*arguments)
    except TypeError:
        return False
    return True


def build(settings: PythonAgent, resources: AgentResources) -> ThreadedAgent:
    # The content of the agent's files is part of its identity, so a change of its code makes new attempts.
    sources = [path.read_bytes() for path in files_behind(settings.path)]
    content = sha256(b"".join(sources)).hexdigest()
    identity = {"agent": "python", **settings.identity(), "content": content}
    return ThreadedAgent(load_agent(settings), identity, settings.threads)

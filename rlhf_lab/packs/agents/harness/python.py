"""Agents of others: any object with `run(prompt, tools)`, in a bounded number of threads.

What it returns may be an AgentTrajectory, or its answer as text; then the calls that it made are known from the tools
that it was given. A thread cannot be stopped from outside: an agent bounds its own time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from hashlib import sha256
from inspect import iscoroutinefunction, signature
from typing import Any

from rlhf_lab.core.console import progress
from rlhf_lab.core.errors import ConfigError, LabError
from rlhf_lab.core.tools import Call, Tool, ToolError
from rlhf_lab.core.user_code import files_behind, load_from_file
from rlhf_lab.packs.agents.harness.agent import Agent, Assignment, OnDone
from rlhf_lab.packs.agents.harness.program import failure, question_of
from rlhf_lab.packs.agents.harness.settings import PythonAgent
from rlhf_lab.packs.agents.harness.surroundings import Surroundings
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, Turn


class ThreadedAgent:
    """`BatchAgent` over an `Agent`.

    Args:
        make: gives the agent of one attempt.
        identity: of the agent, as JSON values.
        threads: attempts under way at once.
    """

    def __init__(self, make: Callable[[], Agent], identity: Mapping[str, Any], threads: int = 4):
        self.make, self.identity, self.threads = make, identity, threads

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        """See `BatchAgent.run_many`. After an error of the infrastructure no further attempt starts."""
        trajectories: dict[int, AgentTrajectory] = {}
        error: LabError | None = None
        with ThreadPoolExecutor(self.threads, "agent") as pool, progress("agents", len(assignments)) as ticker:
            running: dict[Future[AgentTrajectory], int] = {
                pool.submit(self._run, assignment): number for number, assignment in enumerate(assignments)
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
        question = question_of(assignment.task)
        try:
            result: Any = self.make().run(question, tools)
            if not isinstance(result, AgentTrajectory):
                if not isinstance(result, str | None):
                    raise TypeError(f"run() returned {type(result).__name__}; expected an AgentTrajectory or text")
                result = AgentTrajectory(result, _turn(question, result, calls))
        except LabError:
            raise
        except Exception as error:  # the agent is the user's, and may fail in any way
            result = AgentTrajectory(None, _turn(question, None, calls), "failed", error=failure(error))
        return replace(result, wall_s=time.monotonic() - start)


def _turn(question: str, answer: str | None, calls: Sequence[Call]) -> tuple[Turn, ...]:
    """What is known of an agent that tells nothing of its turns."""
    return (Turn("agent", question, answer or "", tuple(calls)),)


def _recorded(tool: Tool, calls: list[Call]) -> Tool:
    """The tool, whose calls are put into a list."""

    def run(**arguments: Any) -> str:
        try:
            result = tool.run(**arguments)
        except ToolError as error:
            calls.append(Call(tool.name, arguments, str(error), failed=True))
            raise
        calls.append(Call(tool.name, arguments, result))
        return result

    return replace(tool, run=run)


def load_agent(settings: PythonAgent) -> Callable[[], Agent]:
    """What makes the agent of one attempt. Raises ConfigError where it is missing, broken or no agent.

    One agent is made here, so that what would fail in every attempt is known before the first.
    """
    where = f"agent.programs.python.path={settings.path}"
    named = load_from_file(where, settings.path)
    if hasattr(named, "run") and not isinstance(named, type):
        _require_run(where, named)
        return lambda: named  # one object for all attempts
    if not callable(named):
        raise ConfigError(f"{where} is {type(named).__name__}; expected an object with run(prompt, tools)")
    name = settings.path.rpartition(":")[2]
    if not _takes(named):
        raise ConfigError(
            f"{where} takes arguments, {name}{signature(named)}; expected a class or function without any, "
            "which makes an object with run(prompt, tools)"
        )
    try:
        agent = named()
    except LabError:
        raise
    except Exception as error:  # the agent is the user's, and making one can fail in any way
        raise ConfigError(f"{where}: {name}() raised {failure(error)}; correct it") from error
    _require_run(where, agent)
    return named


def _require_run(where: str, agent: Any) -> None:
    """Raises ConfigError where an object has no method that can be called as run(prompt, tools)."""
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
            f"{where}: {kind}.run is async, and attempts run in threads; write def run(self, prompt, tools), which may "
            "call asyncio.run"
        )


def _takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with these arguments; true where its signature is not known."""
    try:
        known = signature(function)
    except ValueError:  # of some functions that are not written in Python
        return True
    try:
        known.bind(*arguments)
    except TypeError:
        return False
    return True


def build(settings: PythonAgent, surroundings: Surroundings) -> ThreadedAgent:
    content = sha256(b"".join(path.read_bytes() for path in files_behind(settings.path))).hexdigest()
    identity = {"agent": "python", **settings.identity(), "content": content}
    return ThreadedAgent(load_agent(settings), identity, settings.threads)

"""Agents without a model, whose scores are bounds for other agents.

`oracle` executes the expected calls, and gives the right answer if a tool has shown it: its score is the upper bound.
`always_refuse` and `always_guess` call nothing, and `random_tools` calls random tools. Their scores are lower bounds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

from rlhf_lab.core.tools import Call, Tool, call_tool
from rlhf_lab.data.text_calls import ACTION, ANSWER, write_call
from rlhf_lab.packs.agents.harness.agent import Assignment, OnDone
from rlhf_lab.packs.agents.harness.answer_scores import contains_words
from rlhf_lab.packs.agents.harness.quantities import quantities
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import Scripted
from rlhf_lab.packs.agents.tools.bench.fixtures import fixture_values
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn

MOST_TRIES = 10
"""Maximum number of attempts at a call whose tool is busy."""
RANDOM_CALLS = 4
"""Maximum number of calls of `random_tools`."""


@dataclass(frozen=True)
class ScriptedAgent:
    """A scripted agent.

    Attributes:
        behaviour: one of `BEHAVIOURS`.
        seed: seed of its random choices, which are independent for each task and attempt.
    """

    behaviour: str
    seed: int = 0

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"agent": "scripted", "behaviour": self.behaviour, "seed": self.seed}

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        trajectories = []
        behave = BEHAVIOURS[self.behaviour]
        for position, assignment in enumerate(assignments):
            start = time.perf_counter()
            task = assignment.task
            # The random numbers depend on the task and the attempt, not on the order of the assignments.
            task_id = task.metadata["id"]
            rng = Random(f"{self.behaviour} {self.seed} {task_id} {assignment.draw}")
            calls, answer = behave(task.metadata, assignment.tools, rng)
            wall_s = time.perf_counter() - start
            turns = self._turns(task.prompt, calls, answer)
            trajectory = AgentTrajectory(answer, turns, wall_s=wall_s)
            on_done(position, trajectory)
            trajectories.append(trajectory)
        return trajectories

    def _turns(self, prompt: str, calls: Sequence[Call], answer: str) -> tuple[ModelTurn, ...]:
        """Return one turn per call, and one with the answer."""
        turns = []
        for call in calls:
            action = write_call(call.name, call.arguments)
            turn = ModelTurn(self.behaviour, prompt, f"{ACTION} {action}", (call,))
            turns.append(turn)
        turns.append(ModelTurn(self.behaviour, prompt, f"{ANSWER} {answer}"))
        return tuple(turns)


Behaviour = Callable[[Mapping[str, Any], Sequence[Tool], Random], tuple[list[Call], str]]
"""Function of a scripted agent: (metadata of a task, its tools, random numbers) → (executed calls, answer)."""


def oracle(metadata: Mapping[str, Any], tools: Sequence[Tool], rng: Random) -> tuple[list[Call], str]:
    """Execute the expected calls, each until its tool is not busy. Refuse if no result shows the answer."""
    by_name = {tool.name: tool for tool in tools}
    calls: list[Call] = []
    for expected in metadata["calls"]:
        for _ in range(MOST_TRIES):
            call = call_tool(by_name, expected["name"], expected["arguments"])
            calls.append(call)
            is_busy = call.failed and "busy" in call.result
            if not is_busy:
                break
    if metadata["scorer"] == "refusal":
        return calls, refusal(metadata["answer"])
    # Without a result that shows it, the oracle must not know the answer: the tools have to suffice.
    shown = shows([call for call in calls if not call.failed], metadata)
    answer = metadata["answer"] if shown else refusal(metadata["question"])
    return calls, answer


def shows(calls: Sequence[Call], metadata: Mapping[str, Any]) -> bool:
    """Return True if the answer can be read in the results of successful calls."""
    if metadata["scorer"] == "numeric":
        # Each cell of a table has its own text, so numbers are read one text at a time.
        lines = [line for call in calls for line in call.result.split("\n")]
        values = {quantity.value for line in lines for quantity in quantities(line)}
        expected = quantities(metadata["answer"])[0].value
        tolerance = Fraction(str(metadata.get("tolerance", 0.0)))
        return any(abs(value - expected) <= tolerance for value in values)
    # The answer may be a list of several results, or the entity with the largest one.
    texts = [text for call in calls for text in (call.result, *map(str, call.arguments.values()))]
    return all(any(contains_words(text, part) for text in texts) for part in metadata["answer"].split(", "))


def refusal(missing: str) -> str:
    return f"I could not find this: {missing}"


def always_refuse(metadata: Mapping[str, Any], tools: Sequence[Tool], rng: Random) -> tuple[list[Call], str]:
    """Make no call, and repeat the question, so that the refusal names the missing thing."""
    return [], refusal(metadata["question"])


def always_guess(metadata: Mapping[str, Any], tools: Sequence[Tool], rng: Random) -> tuple[list[Call], str]:
    """Make no call, and answer with a value chosen uniformly from the values of the task's tools and its question."""
    return [], rng.choice(guesses(metadata))


def guesses(metadata: Mapping[str, Any]) -> list[str]:
    """Return the values from which `always_guess` chooses, including values that only the tools know.

    If a task does not list the values of its tools, only the words of the question are returned.
    """
    if "fixture" not in metadata:
        words = re.findall(r"\w+", metadata["question"])
        return list(dict.fromkeys(words))
    fixture = metadata["fixture"]
    passages = fixture.get("passages", {}).values()
    words = [word for text in passages for word in re.findall(r"\w+", text)]
    numbers = [word for word in words if word.isdigit()]
    names = re.findall(r"\b[A-Z]\w+|\b\d+\b", metadata["question"])
    # dict.fromkeys removes duplicates and preserves the order, which the random choice depends on.
    return list(dict.fromkeys([*fixture_values(fixture), *numbers, *names]))


def random_tools(metadata: Mapping[str, Any], tools: Sequence[Tool], rng: Random) -> tuple[list[Call], str]:
    """Call random tools with values of the task as arguments, then answer with the result of one of the calls."""
    by_name = {tool.name: tool for tool in tools}
    values = guesses(metadata)
    calls = []
    for _ in range(rng.randint(1, RANDOM_CALLS)):
        tool = rng.choice(list(tools))
        arguments = {name: rng.choice(values) for name in tool.argument_names}
        calls.append(call_tool(by_name, tool.name, arguments))
    return calls, rng.choice(calls).result


BEHAVIOURS: Mapping[str, Behaviour] = {
    "oracle": oracle,
    "always_refuse": always_refuse,
    "always_guess": always_guess,
    "random_tools": random_tools,
}


def build(settings: Scripted, resources: AgentResources) -> ScriptedAgent:
    return ScriptedAgent(settings.behaviour, settings.seed)

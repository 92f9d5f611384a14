"""Agents without a model, which bound what any agent can score.

`oracle` makes the expected calls and says the right answer once a tool has shown it: the most that is possible.
`always_refuse` and `always_guess` call nothing, `random_tools` calls anything: what they score is worth nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rlhf_lab.core.errors import require
from rlhf_lab.core.tools import Call, Tool, call_tool
from rlhf_lab.data.text_calls import ACTION, ANSWER, write_call
from rlhf_lab.packs.agents.harness.agent import Assignment, OnDone
from rlhf_lab.packs.agents.harness.answer_scores import contains_words
from rlhf_lab.packs.agents.harness.quantities import quantities
from rlhf_lab.packs.agents.harness.settings import Scripted
from rlhf_lab.packs.agents.harness.surroundings import Surroundings
from rlhf_lab.packs.agents.tools.bench.fixtures import fixture_values
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, Turn

MOST_TRIES = 10
"""Of a call whose tool is busy."""
RANDOM_CALLS = 4
"""Most calls of `random_tools`."""


@dataclass(frozen=True)
class ScriptedAgent:
    """Attributes:
    behaviour: one of `BEHAVIOURS`.
    seed: of what it draws, for each task and draw anew.
    """

    behaviour: str
    seed: int = 0

    def __post_init__(self) -> None:
        known = self.behaviour in BEHAVIOURS
        require((known, f"behaviour={self.behaviour}: write one of {', '.join(BEHAVIOURS)}"))

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"agent": "scripted", "behaviour": self.behaviour, "seed": self.seed}

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        trajectories = []
        for position, assignment in enumerate(assignments):
            start = time.perf_counter()
            facts = assignment.task.facts
            rng = Random(f"{self.behaviour} {self.seed} {facts['id']} {assignment.draw}")
            calls, answer = BEHAVIOURS[self.behaviour](facts, assignment.tools, rng)
            wall_s = time.perf_counter() - start
            trajectory = AgentTrajectory(answer, self._turns(assignment.task.prompt, calls, answer), wall_s=wall_s)
            on_done(position, trajectory)
            trajectories.append(trajectory)
        return trajectories

    def _turns(self, prompt: str, calls: Sequence[Call], answer: str) -> tuple[Turn, ...]:
        """A turn a call, and one with the answer."""
        actions = [
            Turn(self.behaviour, prompt, f"{ACTION} {write_call(call.name, call.arguments)}", (call,)) for call in calls
        ]
        return (*actions, Turn(self.behaviour, prompt, f"{ANSWER} {answer}"))


Behaviour = Callable[[Mapping[str, Any], Sequence[Tool], Random], tuple[list[Call], str]]
"""Facts of a task, its tools, random numbers → calls made, and the answer."""


def oracle(facts: Mapping[str, Any], tools: Sequence[Tool], rng: Random) -> tuple[list[Call], str]:
    """The expected calls, each until its tool is not busy; an answer that no result shows is not given."""
    by_name = {tool.name: tool for tool in tools}
    calls: list[Call] = []
    for expected in facts["calls"]:
        for _ in range(MOST_TRIES):
            calls.append(call_tool(by_name, expected["name"], expected["arguments"]))
            if not (calls[-1].failed and "busy" in calls[-1].result):
                break
    if facts["scorer"] == "refusal":
        return calls, refusal(facts["answer"])
    shown = any(not call.failed and shows(call.result, facts) for call in calls)
    return calls, facts["answer"] if shown else refusal(facts["question"])


def shows(result: str, facts: Mapping[str, Any]) -> bool:
    """Whether the answer can be read in a result."""
    if facts["scorer"] == "numeric":
        # a table's numbers stand in one text each: a line is a number, or words with numbers among them
        values = {quantity.value for line in result.split("\n") for quantity in quantities(line)}
        return quantities(facts["answer"])[0].value in values
    return contains_words(result, facts["answer"])


def refusal(missing: str) -> str:
    return f"I could not find this: {missing}"


def always_refuse(facts: Mapping[str, Any], tools: Sequence[Tool], rng: Random) -> tuple[list[Call], str]:
    """No call; it repeats the question, and with it whatever may be missing."""
    return [], refusal(facts["question"])


def always_guess(facts: Mapping[str, Any], tools: Sequence[Tool], rng: Random) -> tuple[list[Call], str]:
    """No call; any value that its tools hold or its question has, each as probable as the others."""
    return [], rng.choice(guesses(facts))


def guesses(facts: Mapping[str, Any]) -> list[str]:
    """What `always_guess` may say: more than an agent without tools can know.

    Of a task that does not say what its tools hold, the words of its question.
    """
    if "fixture" not in facts:
        return list(dict.fromkeys(re.findall(r"\w+", facts["question"])))
    fixture = facts["fixture"]
    words_of_passages = [word for text in fixture.get("passages", {}).values() for word in re.findall(r"\w+", text)]
    numbers = [word for word in words_of_passages if word.isdigit()]
    names = re.findall(r"\b[A-Z]\w+|\b\d+\b", facts["question"])
    return list(dict.fromkeys([*fixture_values(fixture), *numbers, *names]))


def random_tools(facts: Mapping[str, Any], tools: Sequence[Tool], rng: Random) -> tuple[list[Call], str]:
    """Calls of any tools with values of the task as arguments, then what one of them gave as the answer."""
    by_name = {tool.name: tool for tool in tools}
    values = guesses(facts)
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


def build(settings: Scripted, surroundings: Surroundings) -> ScriptedAgent:
    return ScriptedAgent(settings.behaviour, settings.seed)

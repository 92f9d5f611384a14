"""What someone who knows the steps of a task does with its tools, turn by turn, with or without bad habits.

A turn notes what the last call gave, says what is needed next, and makes one call:

    Thought: capital tal vor; need ruler
    Action: search[ tal vor ; ruler ]

Without habits this is the scripted oracle: it follows redirects, tries busy tools again, and says when there is no
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool, call_tool
from rlhf_lab.data.text_calls import ACTION, ANSWER, THOUGHT
from rlhf_lab.packs.agents.tools.flaky import BUSY
from rlhf_lab.packs.agents.tools.kinds import UNKNOWN, Compute, DrawnTask, Lookup
from rlhf_lab.packs.agents.tools.knowledge import MOVED
from rlhf_lab.packs.agents.tools.roles import NOTHING, spaced_call

PATIENCE = 8
"""Calls of a busy tool before the oracle gives up."""
MOVED_TO = MOVED.format("")


@dataclass(frozen=True)
class Habits:
    """Probabilities of mistakes, 0…1.

    Attributes:
        wrong_relation: at each search, of looking up another relation than is needed.
        take_redirect: at each redirect, of taking the name where the entry lies for the value.
        stop_early: after each step but the last, of answering with what was found.
        repeat_call: at each call, of making it twice.
    """

    wrong_relation: float = 0.0
    take_redirect: float = 0.0
    stop_early: float = 0.0
    repeat_call: float = 0.0


NONE = Habits()


@dataclass(frozen=True, slots=True)
class DemonstratedTurn:
    """Attributes:
    notes: what someone who sees nothing but the question and them has to know before it.
    text: what is said.
    call: the call that it makes, with its result; None in the turn that answers.
    """

    notes: str
    text: str
    call: Call | None = None


class Demonstration:
    """One attempt at a task by the rules of `habits`.

    Attributes:
        turns: in order; the last one answers.
        answer: what it says.
    """

    def __init__(self, task: DrawnTask, tools: Sequence[Tool], rng: Random, habits: Habits = NONE):
        self.task, self.rng, self.habits = task, rng, habits
        self.tools = {tool.name: tool for tool in tools}
        self.turns: list[DemonstratedTurn] = []
        self.values: list[str] = []
        self.found: list[str] = []  # "relation value" of each step
        # a chain needs its last value only, other tasks all of them
        self.keeps_all = not _is_chain(task)
        self.answer = self._attempt()
        self._say(self._known(), f"{ANSWER} {self.answer}")

    def messages(self) -> list[Message]:
        """The conversation behind the question."""
        messages: list[Message] = []
        for turn in self.turns:
            messages.append({"role": "assistant", "content": turn.text})
            if turn.call is not None:
                messages.append({"role": "tool", "content": turn.call.result})
        return messages

    def _attempt(self) -> str:
        """Make the calls; returns the answer."""
        for number, step in enumerate(self.task.steps):
            value = self._compute(step) if isinstance(step, Compute) else self._look_up(step)
            if value is None:
                return UNKNOWN
            label = "result" if isinstance(step, Compute) else step.relation
            self.values.append(value)
            self.found.append(f"{label} {value}")
            is_last = number == len(self.task.steps) - 1
            if not is_last and self._slips(self.habits.stop_early):
                return value
        return self._answer()

    def _answer(self) -> str:
        if self.task.gives == "all":
            return ", ".join(self.values)
        if self.task.gives == "larger":
            amounts = [int(value) if value.isdigit() else 0 for value in self.values]
            step = self.task.steps[amounts.index(max(amounts))]
            assert isinstance(step, Lookup)
            return str(step.subject)
        return self.values[-1]

    def _look_up(self, step: Lookup) -> str | None:
        """The value that the tool gives in the end; None where there is none."""
        entity = step.subject if isinstance(step.subject, str) else self.values[step.subject]
        relation = self._relation(step)
        known = self._known()
        for _ in range(PATIENCE):
            result = self._call(known, step.relation, step.tool, _arguments(step.tool, entity, relation))
            if result.result == BUSY:
                continue
            if result.failed:
                self.found.append(result.result)
                return None
            if not result.result.startswith(MOVED_TO):
                return _fact(result.result, relation) if step.tool == "retrieve" else result.result
            target = result.result.removeprefix(MOVED_TO)
            if self._slips(self.habits.take_redirect):
                return target
            entity = target
            known = noted(self._known(), f"moved {target}")
        return None

    def _compute(self, step: Compute) -> str | None:
        expression = f" {step.sign} ".join(self.values[:2])
        result = self._call(self._known(), "result", "calculate", {"expression": expression})
        if result.failed:
            self.found.append("no result")
            return None
        return result.result

    def _relation(self, step: Lookup) -> str:
        """The relation that is looked up: mostly the one that is needed."""
        base = self.task.base
        same_kind = base.links if step.relation in base.links else base.amounts
        others = [relation for relation in same_kind if relation != step.relation]
        if step.tool == "search" and others and self._slips(self.habits.wrong_relation):
            return self.rng.choice(others)
        return step.relation

    def _call(self, known: str, need: str, name: str, arguments: Mapping[str, Any]) -> Call:
        """Make a call, perhaps twice; returns the last one."""
        thought = noted(known, f"need {need}")
        while True:
            call = call_tool(self.tools, name, arguments)
            text = f"{thought}\n{ACTION} {spaced_call(name, list(arguments.values()))}"
            self.turns.append(DemonstratedTurn(self._notes(known), f"{THOUGHT} {text}", call))
            if not self._slips(self.habits.repeat_call):
                return call

    def _say(self, known: str, answer: str) -> None:
        self.turns.append(DemonstratedTurn(self._notes(known), f"{THOUGHT} {known or NOTHING}\n{answer}"))

    def _known(self) -> str:
        return "; ".join(self.found if self.keeps_all else self.found[-1:])

    def _notes(self, known: str) -> str:
        """What is known, and in a chain what is left to look up.

        A relation may occur twice in a chain, so that the last value alone does not say how far someone is who does not
        see the turns before. The question says what is left while nothing is known.
        """
        left = [step.relation for step in self.task.steps[len(self.values) :] if isinstance(step, Lookup)]
        if self.keeps_all or not known or not left:
            return known
        return noted(known, f"left {', '.join(left)}")

    def _slips(self, probability: float) -> bool:
        # a probability of 0 draws nothing: tasks without bad habits have the same random numbers
        return probability > 0 and self.rng.random() < probability


def noted(notes: str, fact: str) -> str:
    """Notes with one more fact."""
    return f"{notes}; {fact}" if notes else fact


def _is_chain(task: DrawnTask) -> bool:
    """Whether every step starts from the value of the one before it."""
    later = task.steps[1:]
    return all(isinstance(step, Lookup) and step.subject == number for number, step in enumerate(later))


def _arguments(tool: str, subject: str, relation: str) -> dict[str, str]:
    """The arguments of a lookup, in the order of the tool's parameters."""
    if tool == "table":
        return {"row": subject, "column": relation}
    if tool == "retrieve":
        return {"entity": subject}
    return {"entity": subject, "relation": relation}


def _fact(passage: str, relation: str) -> str | None:
    """The value of a relation in a passage: "capital tal vor, age 12"."""
    facts = dict(fact.split(" ", 1) for fact in passage.split(", "))
    return facts.get(relation)

"""Scripted solutions of tasks with tools, turn by turn, with or without habitual mistakes.

Each turn states the known facts, says what is needed next, and makes one call:

    Thought: capital tal vor; need ruler
    Action: search[ tal vor ; ruler ]

Without habits this is the scripted oracle: it follows redirects, repeats calls of busy tools, and says when there is no
answer. A scripted coordinator (`led_turns`) asks an executor for one fact per turn instead:

    Action: ask[ Find the ruler of tal vor. ]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool, call_tool
from rlhf_lab.data.text_calls import ACTION, ANSWER, THOUGHT
from rlhf_lab.packs.agents.tools.kinds import UNKNOWN, Compute, Lookup, SampledTask, find
from rlhf_lab.packs.agents.tools.knowledge import BUSY, MOVED
from rlhf_lab.packs.agents.tools.roles import ASK, NOTHING, spaced_call
from rlhf_lab.packs.agents.tools.settings import HabitSettings

PATIENCE = 8
"""Number of calls of a busy tool before the oracle gives up."""
MOVED_TO = MOVED.format("")


NONE = HabitSettings(wrong_relation=0.0, take_redirect=0.0, stop_early=0.0, repeat_call=0.0)
"""No mistakes."""


@dataclass(frozen=True, slots=True)
class DemonstratedTurn:
    """One turn of a demonstration.

    Attributes:
        notes: notes before the turn; with them and the question, earlier turns are not needed.
        text: text of the turn.
        call: call of the turn with its result; None in the turn that answers.
    """

    notes: str
    text: str
    call: Call | None = None


class ToolDemonstration:
    """One scripted attempt at a task, with mistakes at the probabilities in `habits`.

    Attributes:
        turns: turns in order; the last one answers.
        answer: the answer.
    """

    def __init__(self, task: SampledTask, tools: Sequence[Tool], rng: Random, habits: HabitSettings = NONE):
        self.task, self.rng, self.habits = task, rng, habits
        self.tools = {tool.name: tool for tool in tools}
        self.turns: list[DemonstratedTurn] = []
        self.values: list[str] = []
        self.found: list[str] = []  # "relation value" for each step
        # A chain only needs its last value; other tasks need all of them.
        self.keeps_all = not is_chain(task)
        self.answer = self._attempt()
        known = self._known()
        self.turns.append(DemonstratedTurn(self._notes(known), f"{THOUGHT} {known or NOTHING}\n{ANSWER} {self.answer}"))

    def _attempt(self) -> str:
        for index, step in enumerate(self.task.steps):
            if isinstance(step, Compute):
                label, value = "result", self._compute(step)
            else:
                label, value = step.relation, self._look_up(step)
            if value is None:
                return UNKNOWN
            self.values.append(value)
            self.found.append(f"{label} {value}")
            is_last = index == len(self.task.steps) - 1
            if not is_last and self._slips(self.habits.stop_early):
                return value
        return self._answer()

    def _answer(self) -> str:
        if self.task.gives == "all":
            return ", ".join(self.values)
        if self.task.gives == "larger":
            # A wrong relation may have returned a name instead of a number.
            amounts = [int(value) if value.isdigit() else 0 for value in self.values]
            step = self.task.steps[amounts.index(max(amounts))]
            assert isinstance(step, Lookup)
            return str(step.subject)
        return self.values[-1]

    def _look_up(self, step: Lookup) -> str | None:
        """Look up the value of a step, with redirects and repeated calls of busy tools. Return None if there is
        none.
        """
        entity = step.subject if isinstance(step.subject, str) else self.values[step.subject]
        relation = self._relation(step)
        known = self._known()
        # Busy tools and redirects both use up a try.
        for _ in range(PATIENCE):
            arguments = _arguments(step.tool, entity, relation)
            result = self._call(known, step.relation, step.tool, arguments)
            if result.result == BUSY:
                continue
            if result.failed:  # e.g. because there is no such entry
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
        """Return the relation to look up: that of the step, or by mistake another one (`habits.wrong_relation`)."""
        base = self.task.base
        # A mistake stays within links or amounts, so that the next step still gets a value of the right type.
        same_kind = base.links if step.relation in base.links else base.amounts
        others = [relation for relation in same_kind if relation != step.relation]
        if step.tool == "search" and others and self._slips(self.habits.wrong_relation):
            return self.rng.choice(others)
        return step.relation

    def _call(self, known: str, need: str, name: str, arguments: Mapping[str, Any]) -> Call:
        """Make a call, repeat it with the probability `habits.repeat_call`, and return the last call."""
        thought = noted(known, f"need {need}")
        while True:
            call = call_tool(self.tools, name, arguments)
            action = spaced_call(name, list(arguments.values()))
            text = f"{THOUGHT} {thought}\n{ACTION} {action}"
            self.turns.append(DemonstratedTurn(self._notes(known), text, call))
            if not self._slips(self.habits.repeat_call):
                return call

    def _known(self) -> str:
        facts = self.found if self.keeps_all else self.found[-1:]
        return "; ".join(facts)

    def _notes(self, known: str) -> str:
        return notes_of(self.task, known, len(self.values), keeps_all=self.keeps_all)

    def _slips(self, probability: float) -> bool:
        # A probability of 0 consumes no random number, so tasks without habits have the same random numbers.
        return probability > 0 and self.rng.random() < probability


def messages_of(turns: Sequence[DemonstratedTurn]) -> list[Message]:
    messages: list[Message] = []
    for turn in turns:
        messages.append({"role": "assistant", "content": turn.text})
        if turn.call is not None:
            messages.append({"role": "tool", "content": turn.call.result})
    return messages


def notes_of(task: SampledTask, known: str, steps_done: int, *, keeps_all: bool) -> str:
    """Return the known facts, and for a chain also the relations that are left to look up.

    A relation may occur twice in a chain. A model that does not see the earlier turns could then not tell its progress
    from the last value. While nothing is known, the question itself states what is left.
    """
    left = [step.relation for step in task.steps[steps_done:] if isinstance(step, Lookup)]
    if keeps_all or not known or not left:
        return known
    return noted(known, f"left {', '.join(left)}")


def noted(notes: str, fact: str) -> str:
    return f"{notes}; {fact}" if notes else fact


def is_chain(task: SampledTask) -> bool:
    """Return True if every step starts from the value of the previous step."""
    later = task.steps[1:]
    return all(isinstance(step, Lookup) and step.subject == index for index, step in enumerate(later))


def _arguments(tool: str, subject: str, relation: str) -> dict[str, str]:
    """Return the arguments of a lookup, in the order of the tool's parameters."""
    if tool == "table":
        return {"row": subject, "column": relation}
    if tool == "retrieve":
        return {"entity": subject}
    return {"entity": subject, "relation": relation}


def _fact(passage: str, relation: str) -> str | None:
    """Return the value of a relation in a passage such as "capital tal vor, age 12"; None if it is not there."""
    facts = dict(fact.split(" ", 1) for fact in passage.split(", "))
    return facts.get(relation)


def can_be_led(task: SampledTask) -> bool:
    """Return True if every step of a task is a search."""
    return all(isinstance(step, Lookup) and step.tool == "search" for step in task.steps)


def led_turns(task: SampledTask, values: Sequence[str], answer: str) -> list[DemonstratedTurn]:
    """Return the turns of the coordinator; the last one answers.

    Args:
        task: a task that can be led.
        values: value of each step; shorter than the steps if one of them has none.
        answer: the answer.
    """
    keeps_all = not is_chain(task)
    turns = []
    found: list[str] = []

    def known() -> str:
        # A chain only needs its last value; other tasks need all of them.
        return "; ".join(found if keeps_all else found[-1:])

    for index, step in enumerate(task.steps):
        assert isinstance(step, Lookup)
        entity = step.subject if isinstance(step.subject, str) else values[step.subject]
        query = find(step.relation, entity)
        finding = values[index] if index < len(values) else UNKNOWN
        thought = noted(known(), f"need {step.relation}")
        turns.append(
            DemonstratedTurn(
                notes_of(task, known(), index, keeps_all=keeps_all),
                f"{THOUGHT} {thought}\n{ACTION} {spaced_call(ASK, [query])}",
                Call(ASK, {"query": query}, finding),
            )
        )
        found.append(f"{step.relation} {finding}")
        if finding == UNKNOWN:
            break
    # Nothing is left to look up, neither after the last step nor after one without a value.
    notes = notes_of(task, known(), len(task.steps), keeps_all=keeps_all)
    text = f"{THOUGHT} {known() or NOTHING}\n{ANSWER} {answer}"
    turns.append(DemonstratedTurn(notes, text))
    return turns

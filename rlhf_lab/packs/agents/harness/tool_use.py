"""One part of an agent that calls tools until it knows the answer: the loop of ReAct (arXiv:2210.03629).

A model that takes tools calls them in its own form, several in a turn where it wants to; any other model writes a call
as text, see `data/text_calls.py`. Whatever is wrong with a call is its result, which the model reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call
from rlhf_lab.data.text_calls import ANSWER, answer_below, read_move, unemphasised
from rlhf_lab.packs.agents.harness.program import Attempt, Ended, Said, Steps
from rlhf_lab.packs.agents.harness.prompts import Exchange, Words

ANSWER_LINE = re.compile(r"^[ \t*_]*Answer[*_]*:(.*)$", re.MULTILINE)
NOTHING = f"error: you said nothing; call a tool, or write {ANSWER} and the answer"


@dataclass(frozen=True, slots=True)
class Act:
    """What a turn did: it answered, called tools, or neither.

    Attributes:
        problem: why it did neither; the model reads it.
    """

    said: Said
    answer: str | None = None
    calls: tuple[Call, ...] = ()
    problem: str = ""

    @property
    def final_answer(self) -> str | None:
        """The answer, as that of the attempt. Raises Ended for one that may have been cut."""
        if self.said.truncated:
            raise Ended("truncated", self.answer)
        return self.answer


def use_tools(
    attempt: Attempt, messages: Sequence[Message], *, part: str = "agent", most_turns: int = 0
) -> Steps[Act | None]:
    """Call tools until a turn answers. Returns that turn.

    Args:
        messages: what this part knows at its start, and all that it sees besides its own turns.
        most_turns: of this part; None is returned when they are used up. 0 leaves it to the limit of the attempt.
    """
    prompts, native = attempt.model.prompts, attempt.model.native_calls
    system = prompts.with_tools(list(attempt.tools.values()), native=native)
    conversation = list(messages)
    turns = 0
    while not most_turns or turns < most_turns:
        turns += 1
        act = yield from take_turn(attempt, conversation, system=system, part=part)
        if act.answer is not None:
            return act
        conversation.append(act.said.message)
        if act.problem:
            conversation.append(prompts.problem(act.problem))
        conversation += [prompts.result(call, native=native) for call in act.calls]
    return None


def take_turn(attempt: Attempt, messages: Sequence[Message], *, system: str, part: str) -> Steps[Act]:
    """One turn of a model that may call tools, and its calls."""
    if attempt.model.native_calls:
        return (yield from _native_turn(attempt, messages, system, part))
    return (yield from _text_turn(attempt, messages, system, part))


def _text_turn(attempt: Attempt, messages: Sequence[Message], system: str, part: str) -> Steps[Act]:
    stop = attempt.model.prompts.stop
    (said,) = yield [attempt.ask(messages, part=part, system=system, stop=stop)]
    move = read_move(said.text, attempt.tools)
    if move.answer is not None:
        return Act(said, answer=move.answer)
    if move.problem:
        return Act(said, problem=move.problem)
    return Act(said, calls=(attempt.call(said, move.name, move.arguments or {}),))


def _native_turn(attempt: Attempt, messages: Sequence[Message], system: str, part: str) -> Steps[Act]:
    tools = list(attempt.tools.values())
    (said,) = yield [attempt.ask(messages, part=part, system=system, tools=tools)]
    if not said.tool_calls:
        answer = read_answer(said.text)
        return Act(said, answer=answer) if answer else Act(said, problem=NOTHING)
    calls = []
    for tool_call in said.tool_calls:
        function = tool_call["function"]
        arguments = function["arguments"]
        calls.append(attempt.call(said, function["name"], arguments, id=str(tool_call.get("id", ""))))
    return Act(said, calls=tuple(calls))


def conclude(attempt: Attempt, words: Callable[[Sequence[Exchange]], Words], *, part: str) -> Steps[str | None]:
    """Answer from what was found. Where more is needed, such as a sum, a call is made and its result joins that.

    Args:
        words: (what was found since) → what is asked.
    """
    since: list[Exchange] = []
    while True:
        system, question = words(since)
        (said,) = yield [attempt.ask(attempt.asked(question), system=system, part=part)]
        move = read_move(said.text, attempt.tools)
        if not move.name:
            return Act(said, answer=read_answer(said.text)).final_answer
        call = attempt.call(said, move.name, move.arguments or {})
        since.append((attempt.model.prompts.call(call), call.result))


def read_answer(text: str) -> str:
    """The answer that a text ends with: what its last `Answer:` names, or else all of it."""
    lines = list(ANSWER_LINE.finditer(text))
    if not lines:
        return text.strip()
    return unemphasised(lines[-1][1]) or answer_below(text[lines[-1].end() :])

"""Loop of one part of an agent that calls tools until it knows the answer, as in ReAct (arXiv:2210.03629).

A model that supports tools calls them natively, possibly several in a turn. Any other model writes one call as text;
see `data/text_calls.py`. An invalid call gets an error message as its result, which the model reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool
from rlhf_lab.data.text_calls import ANSWER, ANSWER_WORDS, answer_below, read_move, unemphasised
from rlhf_lab.packs.agents.harness.program import AgentAttempt, AttemptFinished, ModelOutput, Steps
from rlhf_lab.packs.agents.harness.prompts import Exchange, Words

ANSWER_LINE = re.compile(rf"^[ \t*_]*{ANSWER_WORDS}[*_]*:(.*)$", re.MULTILINE)  # also "**Answer**: …"
NOTHING = f"error: you said nothing; call a tool, or write {ANSWER} and the answer"
REFERENCE = re.compile(r"#(\d{1,4})(?!\d)")
"""Reference to an earlier result of a plan: #1 is the result of the first step or query."""


@dataclass(frozen=True, slots=True)
class Act:
    """One turn of the model: an answer, tool calls, or neither.

    Attributes:
        output: output of the model.
        answer: the answer; None if the turn has none.
        calls: the calls; without results until they are executed.
        problem: reason why the turn has neither an answer nor calls; the model reads it.
    """

    output: ModelOutput
    answer: str | None = None
    calls: tuple[Call, ...] = ()
    problem: str = ""

    @property
    def final_answer(self) -> str | None:
        """The turn's answer, to be the attempt's answer. Raises AttemptFinished if the output was truncated."""
        if self.output.truncated:
            raise AttemptFinished("truncated", self.answer)
        return self.answer


TakeTurn = Callable[[Sequence[Message]], Steps[Act]]
"""Function that runs one turn of a part of an agent, given the messages that the part sees."""


def converse(
    attempt: AgentAttempt, messages: Sequence[Message], take: TakeTurn, max_turns: int = 0
) -> Steps[Act | None]:
    """Run turns, each of which sees all earlier ones and their results, until one contains an answer. Return that turn.

    Args:
        attempt: the attempt that the turns belong to.
        messages: messages before the first turn.
        take: runs a turn.
        max_turns: maximum number of turns; None is returned when they are used up. 0 means that only the limit of the
            attempt applies, which the driver enforces.
    """
    prompts, native = attempt.model.prompts, attempt.model.native_calls
    conversation = list(messages)
    turns = 0
    while not max_turns or turns < max_turns:
        turns += 1
        act = yield from take(conversation)
        if act.answer is not None:
            return act
        conversation.append(act.output.message)
        if act.problem:
            conversation.append(prompts.problem(act.problem))
        conversation += [prompts.result(call, native=native) for call in act.calls]
    return None


def use_tools(
    attempt: AgentAttempt, messages: Sequence[Message], *, part: str = "agent", max_turns: int = 0
) -> Steps[Act | None]:
    """Let a part of the agent call tools until it knows the answer; see `converse`."""
    system = attempt.model.prompts.with_tools(list(attempt.tools.values()), native=attempt.model.native_calls)
    return converse(attempt, messages, partial(take_turn, attempt, system=system, part=part), max_turns)


def take_turn(attempt: AgentAttempt, messages: Sequence[Message], *, system: str, part: str) -> Steps[Act]:
    """Run one turn of a model that may call tools, and execute its calls in their order."""
    act = yield from read_turn(attempt, messages, system=system, part=part, tools=attempt.tools)
    calls = [attempt.call(act.output, call.name, call.arguments, id=call.id) for call in act.calls]
    return replace(act, calls=tuple(calls))


def read_turn(
    attempt: AgentAttempt, messages: Sequence[Message], *, system: str, part: str, tools: Mapping[str, Tool]
) -> Steps[Act]:
    """Run one turn of a model that may call `tools`, and read its calls or its answer."""
    turn = _native_turn if attempt.model.native_calls else _text_turn
    return turn(attempt, messages, system, part, tools)


def _text_turn(
    attempt: AgentAttempt, messages: Sequence[Message], system: str, part: str, tools: Mapping[str, Tool]
) -> Steps[Act]:
    stop = attempt.model.prompts.stop
    # The stop texts end a turn before the model invents a result.
    (output,) = yield [attempt.ask(messages, part=part, system=system, stop=stop)]
    move = read_move(output.text, tools)
    if move.answer is not None:
        return Act(output, answer=move.answer)
    if move.problem:
        return Act(output, problem=move.problem)
    return Act(output, calls=(Call(move.name, move.arguments or {}),))


def _native_turn(
    attempt: AgentAttempt, messages: Sequence[Message], system: str, part: str, tools: Mapping[str, Tool]
) -> Steps[Act]:
    (output,) = yield [attempt.ask(messages, part=part, system=system, tools=list(tools.values()))]
    if not output.tool_calls:
        answer = read_answer(output.text)
        if not answer:  # neither a call nor an answer: the model is told so
            return Act(output, problem=NOTHING)
        return Act(output, answer=answer)
    calls = []
    for tool_call in output.tool_calls:
        function = tool_call["function"]
        calls.append(Call(function["name"], function["arguments"], id=str(tool_call.get("id", ""))))
    return Act(output, calls=tuple(calls))


def conclude(attempt: AgentAttempt, words: Callable[[Sequence[Exchange]], Words], *, part: str) -> Steps[str | None]:
    """Answer from results. If more is needed, such as a sum, execute a call and ask again with its result.

    Args:
        attempt: the attempt that the turns belong to.
        words: function of the calls so far that returns (instructions, question).
        part: name of the part that answers.
    """
    # calls of this part so far, with their results
    since: list[Exchange] = []
    while True:
        system, question = words(since)
        messages = attempt.to_messages(question)
        (output,) = yield [attempt.ask(messages, system=system, part=part)]
        move = read_move(output.text, attempt.tools)
        if not move.name:
            answer = read_answer(output.text)
            return Act(output, answer=answer).final_answer
        call = attempt.call(output, move.name, move.arguments or {})
        written = attempt.model.prompts.call(call)
        since.append((written, call.result))


def read_answer(text: str) -> str:
    """Return the answer that a text ends with: the text of its last `Answer:`, or else the entire text."""
    lines = list(ANSWER_LINE.finditer(text))
    if not lines:
        return text.strip()
    last = lines[-1]
    # An empty `Answer:` line has its answer below it.
    return unemphasised(last[1]) or answer_below(text[last.end() :])


def references(text: str, count: int) -> list[int]:
    """Return the numbers from 1 to `count` that a text refers to; any other number is ordinary text."""
    numbers = [int(number) for number in REFERENCE.findall(text)]
    return [number for number in numbers if 1 <= number <= count]


def with_results(value: Any, results: Sequence[str]) -> Any:
    """Insert the results that a text refers to, also into texts inside a JSON value."""
    if isinstance(value, Mapping):
        return {name: with_results(inner, results) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_results(inner, results) for inner in value]
    if not isinstance(value, str):
        return value

    def result(reference: re.Match[str]) -> str:
        number = int(reference[1])
        # A reference to a later step or to step 0 stays as text: there is no such result.
        if not 1 <= number <= len(results):
            return reference[0]
        return results[number - 1]

    return REFERENCE.sub(result, value)

"""Loop of one part of an agent that calls tools until it knows the answer, as in ReAct (arXiv:2210.03629).

A model that supports tools calls them natively, possibly several in a turn. Any other model writes one call as text;
see `data/text_calls.py`. An invalid call gets an error message as its result, which the model reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, Tool
from rlhf_lab.data.text_calls import ANSWER, ANSWER_WORDS, answer_below, read_move, unemphasised
from rlhf_lab.packs.agents.harness.program import AgentAttempt, AttemptFinished, ModelOutput, Steps
from rlhf_lab.packs.agents.harness.prompts import Exchange, Words

ANSWER_LINE = re.compile(rf"^[ \t*_]*{ANSWER_WORDS}[*_]*:(.*)$", re.MULTILINE)  # also "**Answer**: …"
NOTHING = f"error: you said nothing; call a tool, or write {ANSWER} and the answer"


@dataclass(frozen=True, slots=True)
class Act:
    """One turn of the model: an answer, tool calls, or neither.

    Attributes:
        output: output of the model.
        answer: the answer; None if the turn has none.
        calls: executed calls.
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


def use_tools(
    attempt: AgentAttempt, messages: Sequence[Message], *, part: str = "agent", max_turns_left: int = 0
) -> Steps[Act | None]:
    """Let the model take turns and call tools until a turn contains an answer. Return that turn.

    Args:
        attempt: the attempt that the turns belong to.
        messages: messages that this part sees besides its own turns.
        part: name of the part.
        max_turns_left: maximum number of turns of this part; None is returned when they are used up. 0 means that only
            the limit of the attempt applies.
    """
    prompts, native = attempt.model.prompts, attempt.model.native_calls
    tools = list(attempt.tools.values())
    system = prompts.with_tools(tools, native=native)
    conversation = list(messages)
    turns = 0
    # The driver enforces the limit of the attempt, so this loop only counts its own turns.
    while not max_turns_left or turns < max_turns_left:
        turns += 1
        act = yield from take_turn(attempt, conversation, system=system, part=part)
        if act.answer is not None:
            return act
        conversation.append(act.output.message)
        if act.problem:
            conversation.append(prompts.problem(act.problem))
        conversation += [prompts.result(call, native=native) for call in act.calls]
    return None


def take_turn(attempt: AgentAttempt, messages: Sequence[Message], *, system: str, part: str) -> Steps[Act]:
    """Run one turn of a model that may call tools, and execute its calls."""
    turn = yield from read_turn(attempt, messages, system=system, part=part, tools=attempt.tools)
    calls = []
    # A turn may contain several calls; they are executed in their order.
    for requested in turn.requested:
        calls.append(attempt.call(turn.output, requested.name, requested.arguments, id=requested.id))
    return Act(turn.output, turn.answer, tuple(calls), turn.problem)


@dataclass(frozen=True, slots=True)
class RequestedTurn:
    """One turn of the model before its calls are executed.

    Attributes:
        output: output of the model.
        answer: the answer; None if the turn has none.
        requested: requested calls, without results.
        problem: reason why the turn has neither an answer nor calls; the model reads it.
    """

    output: ModelOutput
    answer: str | None = None
    requested: tuple[Call, ...] = ()
    problem: str = ""


def read_turn(
    attempt: AgentAttempt, messages: Sequence[Message], *, system: str, part: str, tools: Mapping[str, Tool]
) -> Steps[RequestedTurn]:
    """Run one turn of a model that may call `tools`, and read its calls or its answer."""
    if attempt.model.native_calls:
        return (yield from _native_turn(attempt, messages, system, part, tools))
    return (yield from _text_turn(attempt, messages, system, part, tools))


def _text_turn(
    attempt: AgentAttempt, messages: Sequence[Message], system: str, part: str, tools: Mapping[str, Tool]
) -> Steps[RequestedTurn]:
    stop = attempt.model.prompts.stop
    # The stop texts end a turn before the model invents a result.
    (output,) = yield [attempt.ask(messages, part=part, system=system, stop=stop)]
    move = read_move(output.text, tools)
    if move.answer is not None:
        return RequestedTurn(output, answer=move.answer)
    if move.problem:
        return RequestedTurn(output, problem=move.problem)
    return RequestedTurn(output, requested=(Call(move.name, move.arguments or {}),))


def _native_turn(
    attempt: AgentAttempt, messages: Sequence[Message], system: str, part: str, tools: Mapping[str, Tool]
) -> Steps[RequestedTurn]:
    (output,) = yield [attempt.ask(messages, part=part, system=system, tools=list(tools.values()))]
    if not output.tool_calls:
        answer = read_answer(output.text)
        if not answer:  # neither a call nor an answer: the model is told so
            return RequestedTurn(output, problem=NOTHING)
        return RequestedTurn(output, answer=answer)
    requested = []
    for tool_call in output.tool_calls:
        function = tool_call["function"]
        id = str(tool_call.get("id", ""))
        requested.append(Call(function["name"], function["arguments"], id=id))
    return RequestedTurn(output, requested=tuple(requested))


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

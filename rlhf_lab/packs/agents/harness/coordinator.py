"""Agent with a coordinator that questions executors one after the other, each query chosen from the answers so far.

The coordinator has one tool, `ask`. It starts an executor, a ReAct loop with the tools of the task that sees only its
query. The coordinator remembers the answers in one of two ways:

    list    every query with its answer, a conversation that grows with every query
    notes   notes of bounded length, which it rewrites after every answer; anything that they leave out is forgotten
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, call_tool
from rlhf_lab.packs.agents.harness.multi_agent import execute
from rlhf_lab.packs.agents.harness.program import AgentAttempt, ProgramAgent, Steps, run_in_parallel
from rlhf_lab.packs.agents.harness.prompts import ASK_TOOL, Exchange
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.scratchpad import exchanges, rewrite_notes
from rlhf_lab.packs.agents.harness.settings import Coordinator
from rlhf_lab.packs.agents.harness.tool_use import Act, read_turn

PART = "coordinator"


def coordinator(
    attempt: AgentAttempt, *, memory: Literal["list", "notes"], notes_tokens: int, executor_turns: int
) -> Steps[str | None]:
    """Question executors until the answer is known."""
    if memory == "list":
        return (yield from _with_list(attempt, executor_turns))
    return (yield from _with_notes(attempt, notes_tokens, executor_turns))


def _with_list(attempt: AgentAttempt, executor_turns: int) -> Steps[str | None]:
    prompts, native = attempt.model.prompts, attempt.model.native_calls
    conversation = attempt.to_messages(prompts.lead(attempt.question))
    asked = 0  # queries so far, which number the executors of later turns
    while True:
        act = yield from _take_turn(attempt, conversation, asked, executor_turns)
        if act.answer is not None:
            return act.final_answer
        asked += len(act.calls)
        conversation.append(act.output.message)
        if act.problem:
            conversation.append(prompts.problem(act.problem))
        conversation += [prompts.result(call, native=native) for call in act.calls]


def _with_notes(attempt: AgentAttempt, notes_tokens: int, executor_turns: int) -> Steps[str | None]:
    prompts = attempt.model.prompts
    notes = ""
    latest: list[Exchange] = []
    asked = 0
    while True:
        situation = prompts.lead_from_notes(attempt.question, notes, latest)
        act = yield from _take_turn(attempt, attempt.to_messages(situation), asked, executor_turns)
        if act.answer is not None:
            return act.final_answer
        asked += len(act.calls)
        latest = exchanges(attempt, act)
        notes = yield from rewrite_notes(attempt, notes, latest, notes_tokens)


def _take_turn(attempt: AgentAttempt, messages: Sequence[Message], asked: int, executor_turns: int) -> Steps[Act]:
    """Run one turn of the coordinator. Executors answer its queries, in parallel if there are several.

    Args:
        attempt: the attempt.
        messages: the conversation of the coordinator.
        asked: number of earlier queries.
        executor_turns: maximum number of turns of an executor.
    """
    tools = {ASK_TOOL.name: ASK_TOOL}
    system = attempt.model.prompts.coordinate(native=attempt.model.native_calls)
    turn = yield from read_turn(attempt, messages, system=system, part=PART, tools=tools)
    queries = [call for call in turn.requested if _query_of(call)]
    executors = []
    for number, call in enumerate(queries, start=asked + 1):
        executors.append(execute(attempt, _query_of(call), f"executor {number}", executor_turns))
    findings = iter((yield from run_in_parallel(executors)))
    calls = []
    for call in turn.requested:
        if _query_of(call):
            calls.append(Call(call.name, call.arguments, next(findings), id=call.id))
        else:
            calls.append(call_tool(tools, call.name, call.arguments, call.id))  # the error says what is wrong with it
    return Act(turn.output, turn.answer, tuple(calls), turn.problem)


def _query_of(call: Call) -> str:
    """Return the query of a call of ASK; "" if the call is anything else."""
    if call.name != ASK_TOOL.name or set(call.arguments) != {"query"}:
        return ""
    return str(call.arguments["query"]).strip()


def build(settings: Coordinator, resources: AgentResources) -> ProgramAgent:
    program = partial(
        coordinator, memory=settings.memory, notes_tokens=settings.notes_tokens, executor_turns=settings.executor_turns
    )
    return ProgramAgent("coordinator", program, resources.model, settings.identity())

"""Agent with a coordinator that questions executors one after the other, each query chosen from the answers so far.

The coordinator has one tool, `ask`. It starts an executor, a ReAct loop with the tools of the task that sees only its
query. The coordinator remembers the answers in one of two ways:

    list    every query with its answer, a conversation that grows with every query
    notes   notes of bounded length, which it rewrites after every answer; anything that they leave out is forgotten
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Literal

from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Call, call_tool
from rlhf_lab.packs.agents.harness.multi_agent import execute
from rlhf_lab.packs.agents.harness.program import AgentAttempt, ProgramAgent, Steps, run_in_parallel
from rlhf_lab.packs.agents.harness.prompts import ASK_TOOL
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.scratchpad import with_notes
from rlhf_lab.packs.agents.harness.settings import Coordinator
from rlhf_lab.packs.agents.harness.tool_use import Act, converse, read_turn

PART = "coordinator"


def coordinator(
    attempt: AgentAttempt, *, memory: Literal["list", "notes"], notes_tokens: int, executor_turns: int
) -> Steps[str | None]:
    """Question executors until the answer is known."""
    prompts = attempt.model.prompts
    take = partial(_take_turn, attempt, numbers=count(1), executor_turns=executor_turns)
    if memory == "notes":
        return (yield from with_notes(attempt, prompts.lead_from_notes, take, notes_tokens))
    act = yield from converse(attempt, attempt.to_messages(prompts.lead(attempt.question)), take)
    return act.final_answer if act else None


def _take_turn(
    attempt: AgentAttempt, messages: Sequence[Message], *, numbers: Iterator[int], executor_turns: int
) -> Steps[Act]:
    """Run one turn of the coordinator. Executors answer its queries, in parallel if there are several.

    Args:
        attempt: the attempt.
        messages: the conversation of the coordinator.
        numbers: numbers of the executors.
        executor_turns: maximum number of turns of an executor.
    """
    tools = {ASK_TOOL.name: ASK_TOOL}
    system = attempt.model.prompts.coordinate(native=attempt.model.native_calls)
    act = yield from read_turn(attempt, messages, system=system, part=PART, tools=tools)
    queries = [query for call in act.calls if (query := _query_of(call))]
    executors = [execute(attempt, query, f"executor {next(numbers)}", executor_turns) for query in queries]
    findings = iter((yield from run_in_parallel(executors)))
    calls = []
    for call in act.calls:
        if _query_of(call):
            calls.append(replace(call, result=next(findings)))
        else:
            calls.append(call_tool(tools, call.name, call.arguments, call.id))  # the error says what is wrong with it
    return replace(act, calls=tuple(calls))


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

"""Agent that plans, then executes: the model writes all calls before the first one is executed.

    1. search[Velmora ; capital]
    2. search[#1 ; mayor]

#1 refers to the result of the first step. Inside a call it becomes the value of an argument; inside a sentence it
becomes text that is marked as data. If a step is a sentence instead of a call, a separate part of the agent calls tools
for it.

The plan is never revised, even if early results show that it is wrong. This limitation is the point of comparison with
ReAct.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from rlhf_lab.core.tools import Tool
from rlhf_lab.data.text_calls import ACTION, Move, read_move
from rlhf_lab.packs.agents.harness.program import (
    AgentAttempt,
    AttemptFinished,
    ModelOutput,
    ProgramAgent,
    Steps,
    user_message,
)
from rlhf_lab.packs.agents.harness.prompts import Exchange, Words
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import PlanExecute
from rlhf_lab.packs.agents.harness.tool_use import conclude, use_tools, with_results

STEP = re.compile(r"^[ \t]*\d+[.)][ \t]*(\S.*?)[ \t]*$", re.MULTILINE)  # "1. look up the population", "2) …"
NO_RESULT = "no result"


def plan_execute(attempt: AgentAttempt, *, steps: int, step_turns: int) -> Steps[str | None]:
    """Plan, execute the calls of the plan, and answer from their results."""
    prompts = attempt.model.prompts
    tools = list(attempt.tools.values())
    system, question = prompts.plan(attempt.question, tools)
    messages = attempt.to_messages(question)
    (planned,) = yield [attempt.ask(messages, system=system, part="planner")]
    plan = read_plan(planned.text, steps)
    results: list[str] = []
    for step in plan:
        result = yield from _execute(attempt, planned, step, results, step_turns)
        results.append(result)
    found = list(zip(plan, results, strict=True))

    def words(since: Sequence[Exchange]) -> Words:
        return prompts.conclude(attempt.question, [*found, *since])

    return (yield from conclude(attempt, words, part="answer"))


def _execute(
    attempt: AgentAttempt, planned: ModelOutput, step: str, results: Sequence[str], max_turns: int
) -> Steps[str]:
    """Execute one step and return its result. A call is recorded with the turn that planned it."""
    # The step is parsed before results are inserted, so that the output of a tool is never parsed as a call.
    call = read_call(step, attempt.tools)
    if call is not None:
        arguments = {name: with_results(value, results) for name, value in (call.arguments or {}).items()}
        return attempt.call(planned, call.name, arguments).result
    # A model reads this sentence, so inserted results are marked as data against prompt injection.
    marked = [attempt.model.prompts.marked(result) for result in results]
    question = user_message(with_results(step, marked))
    act = yield from use_tools(attempt, [question], part="step", max_turns=max_turns)
    if act is None or not act.answer:
        return NO_RESULT  # the part ran out of turns, or answered with nothing; the plan continues
    return act.answer


def read_plan(text: str, limit: int) -> list[str]:
    """Read the steps of a plan. Raise AttemptFinished if the text has no steps or too many."""
    steps: list[str] = STEP.findall(text)
    if not steps:
        raise AttemptFinished("failed", error=f"the plan has no numbered step: {text[:80]!r}")
    if len(steps) > limit:
        raise AttemptFinished("failed", error=f"the plan has {len(steps)} steps; at most {limit} are allowed")
    return steps


def read_call(step: str, tools: Mapping[str, Tool]) -> Move | None:
    """Read a step as a call. Return None if it is a sentence. A call of an unknown tool is still a call."""
    # A step has the form of the text after `Action:`, so the parser of text calls can read it.
    move = read_move(f"{ACTION} {step}", tools)
    return move if move.name else None


def build(settings: PlanExecute, resources: AgentResources) -> ProgramAgent:
    program = partial(plan_execute, steps=settings.steps, step_turns=settings.step_turns)
    return ProgramAgent("plan_execute", program, resources.model, settings.identity())

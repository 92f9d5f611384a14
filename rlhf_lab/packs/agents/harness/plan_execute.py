"""Plan, then execute: all calls are written before the first of them is made.

    1. search[Velmora ; capital]
    2. search[#1 ; mayor]

#1 is the result of the first step, whatever it says: a value among the arguments of a call, and data in a sentence. A
step that is no call as it was planned is given to a part that calls tools for it.
The plan is not changed on the way: what the first results teach comes too late for it, which is what this agent is
there to show beside ReAct.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rlhf_lab.core.tools import Tool
from rlhf_lab.data.text_calls import ACTION, Move, read_move
from rlhf_lab.packs.agents.harness.program import Attempt, Ended, ProgramAgent, Said, Steps, user_message
from rlhf_lab.packs.agents.harness.prompts import Exchange, Words
from rlhf_lab.packs.agents.harness.settings import PlanExecute
from rlhf_lab.packs.agents.harness.surroundings import Surroundings
from rlhf_lab.packs.agents.harness.tool_use import conclude, use_tools

STEP = re.compile(r"^[ \t]*\d+[.)][ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
REFERENCE = re.compile(r"#(\d{1,4})(?!\d)")
NO_RESULT = "no result"


def plan_execute(attempt: Attempt, *, steps: int, step_turns: int) -> Steps[str | None]:
    """Plan, make the calls of the plan, answer from their results."""
    prompts = attempt.model.prompts
    system, question = prompts.plan(attempt.question, list(attempt.tools.values()))
    (planned,) = yield [attempt.ask(attempt.asked(question), system=system, part="planner")]
    plan = read_plan(planned.text, steps)
    results: list[str] = []
    for step in plan:
        result = yield from _execute(attempt, planned, step, results, step_turns)
        results.append(result)
    found = list(zip(plan, results, strict=True))

    def words(since: Sequence[Exchange]) -> Words:
        return prompts.conclude(attempt.question, [*found, *since])

    return (yield from conclude(attempt, words, part="answer"))


def _execute(attempt: Attempt, planned: Said, step: str, results: Sequence[str], most_turns: int) -> Steps[str]:
    """The result of one step. A call is put to the turn that planned it."""
    # read before results are filled in: what a tool said is never a call
    call = read_call(step, attempt.tools)
    if call is not None:
        arguments = {name: with_results(value, results) for name, value in (call.arguments or {}).items()}
        return attempt.call(planned, call.name, arguments).result
    marked = [attempt.model.prompts.marked(result) for result in results]
    question = user_message(with_results(step, marked))
    act = yield from use_tools(attempt, [question], part="step", most_turns=most_turns)
    return act.answer or NO_RESULT if act else NO_RESULT


def read_plan(text: str, most: int) -> list[str]:
    """The steps of a plan. Raises Ended for a text without steps, or with too many."""
    steps: list[str] = STEP.findall(text)
    if not steps:
        raise Ended("failed", error=f"no plan: no numbered step in {text[:80]!r}")
    if len(steps) > most:
        raise Ended("failed", error=f"a plan of {len(steps)} steps; at most {most}")
    return steps


def read_call(step: str, tools: Mapping[str, Tool]) -> Move | None:
    """The call that a step is; None for one that is a sentence. A call of an unknown tool is a call."""
    move = read_move(f"{ACTION} {step}", tools)
    return move if move.name else None


def with_results(value: Any, results: Sequence[str]) -> Any:
    """A text with the results that it refers to, or JSON with such texts in it."""
    if isinstance(value, Mapping):
        return {name: with_results(inner, results) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_results(inner, results) for inner in value]
    if not isinstance(value, str):
        return value

    def result(reference: re.Match[str]) -> str:
        number = int(reference[1])
        return results[number - 1] if 1 <= number <= len(results) else reference[0]

    return REFERENCE.sub(result, value)


def build(settings: PlanExecute, surroundings: Surroundings) -> ProgramAgent:
    program = partial(plan_execute, steps=settings.steps, step_turns=settings.step_turns)
    return ProgramAgent("plan_execute", program, surroundings.model, settings.identity())

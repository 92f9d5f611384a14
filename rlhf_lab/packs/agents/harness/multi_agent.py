"""A planner, executors and a synthesiser.

The planner writes queries that can be understood by themselves, as a JSON list. Each goes to an executor, a ReAct loop
that sees its query and nothing else; executors work at the same time. The synthesiser reads the queries and what was
found. What one executor finds helps no other, so a chain of lookups is one query.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from rlhf_lab.core.files import parse_json
from rlhf_lab.packs.agents.harness.program import Attempt, Ended, ProgramAgent, Steps, together, user_message
from rlhf_lab.packs.agents.harness.prompts import Exchange, Words
from rlhf_lab.packs.agents.harness.settings import MultiAgent
from rlhf_lab.packs.agents.harness.surroundings import Surroundings
from rlhf_lab.packs.agents.harness.tool_use import conclude, use_tools

LIST = re.compile(r"\[.*\]", re.DOTALL)
NOTHING_FOUND = "nothing was found"


def multi_agent(attempt: Attempt, *, queries: int, executor_turns: int) -> Steps[str | None]:
    """Plan, execute the queries beside each other, combine what they found."""
    plan = yield from _plan(attempt, queries)
    executors = [_execute(attempt, query, f"executor {i}", executor_turns) for i, query in enumerate(plan, start=1)]
    findings = yield from together(executors)
    found = list(zip(plan, findings, strict=True))

    def words(since: Sequence[Exchange]) -> Words:
        return attempt.model.prompts.combine(attempt.question, [*found, *since])

    return (yield from conclude(attempt, words, part="synthesiser"))


def _plan(attempt: Attempt, most: int) -> Steps[list[str]]:
    """The queries. The planner is told once what is wrong with them."""
    prompts = attempt.model.prompts
    system, question = prompts.split(attempt.question, list(attempt.tools.values()), most)
    messages = attempt.asked(question)
    (said,) = yield [attempt.ask(messages, system=system, part="planner")]
    try:
        return read_queries(said.text, most)
    except ValueError as error:
        messages += [said.message, prompts.problem(f"error: {error}")]
    (said,) = yield [attempt.ask(messages, system=system, part="planner")]
    try:
        return read_queries(said.text, most)
    except ValueError as error:
        raise Ended("failed", error=f"no plan: {error}") from None


def _execute(attempt: Attempt, query: str, part: str, most_turns: int) -> Steps[str]:
    """What an executor finds who knows its query alone."""
    act = yield from use_tools(attempt, [user_message(query)], part=part, most_turns=most_turns)
    return act.answer or NOTHING_FOUND if act else NOTHING_FOUND


def read_queries(text: str, most: int) -> list[str]:
    """The queries of a plan. Raises ValueError with what is wrong, for the planner."""
    found = LIST.search(text)
    if found is None:
        raise ValueError('write a JSON list of queries, ["…", "…"], and nothing else')
    try:
        queries = parse_json(found[0])
    except ValueError as error:
        raise ValueError(f"this is no JSON ({error}); write a list of queries") from None
    if not queries or not all(isinstance(query, str) and query.strip() for query in queries):
        raise ValueError("each query must be a text, and there must be one at least")
    if len(queries) > most:
        raise ValueError(f"{len(queries)} queries are too many; write at most {most}")
    return queries


def build(settings: MultiAgent, surroundings: Surroundings) -> ProgramAgent:
    program = partial(multi_agent, queries=settings.queries, executor_turns=settings.executor_turns)
    return ProgramAgent("multi_agent", program, surroundings.model, settings.identity())

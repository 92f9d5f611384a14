"""Agent with a planner, executors and a synthesiser.

The planner writes queries as a JSON list. A query may depend on earlier ones:

    ["Find the capital of Velmora.", "Find the mayor of #1.", "Find the mayor of Quorin."]

#1 stands for the answer to the first query. Each query goes to an executor, a ReAct loop that sees only its query, with
the answers of earlier executors in place of the references. Executors run in parallel if their queries do not refer to
each other; a query that refers to an answer waits for it. The synthesiser reads the queries and their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rlhf_lab.core.files import parse_json
from rlhf_lab.packs.agents.harness.program import (
    AgentAttempt,
    AttemptFinished,
    ProgramAgent,
    Steps,
    run_in_parallel,
    user_message,
)
from rlhf_lab.packs.agents.harness.prompts import Exchange, Words
from rlhf_lab.packs.agents.harness.resources import AgentResources
from rlhf_lab.packs.agents.harness.settings import MultiAgent
from rlhf_lab.packs.agents.harness.tool_use import conclude, references, use_tools, with_results

NOTHING_FOUND = "nothing was found"


def multi_agent(attempt: AgentAttempt, *, queries: int, executor_turns: int) -> Steps[str | None]:
    """Plan, let executors answer the queries in the order of their dependencies, and combine their answers."""
    plan = yield from _plan(attempt, queries)
    findings = yield from _follow(attempt, plan, executor_turns)
    found = list(zip(plan, findings, strict=True))

    def words(since: Sequence[Exchange]) -> Words:
        return attempt.model.prompts.combine(attempt.question, [*found, *since])

    return (yield from conclude(attempt, words, part="synthesiser"))


def _plan(attempt: AgentAttempt, limit: int) -> Steps[list[str]]:
    """Return the queries of the planner, which gets one chance to correct an invalid plan."""
    prompts = attempt.model.prompts
    tools = list(attempt.tools.values())
    system, question = prompts.split(attempt.question, tools, limit)
    messages = attempt.to_messages(question)
    problem = ""
    for _ in range(2):
        (output,) = yield [attempt.ask(messages, system=system, part="planner")]
        try:
            return read_queries(output.text, limit)
        except ValueError as error:
            problem = str(error)
            messages += [output.message, prompts.problem(f"error: {problem}")]
    raise AttemptFinished("failed", error=f"no plan: {problem}")


def _follow(attempt: AgentAttempt, plan: Sequence[str], executor_turns: int) -> Steps[list[str]]:
    """Return the answers of the executors, in the order of the plan."""
    findings: dict[int, str] = {}
    while len(findings) < len(plan):
        ready: dict[int, str] = {}
        for number, query in enumerate(plan, start=1):
            needed = references(query, len(plan))
            if number in findings or not all(earlier in findings for earlier in needed):
                continue
            # An executor cannot work from an answer that does not exist.
            if any(findings[earlier] == NOTHING_FOUND for earlier in needed):
                findings[number] = NOTHING_FOUND
                continue
            ready[number] = query
        # Answers come from tools, so a query contains them as data that must not be obeyed.
        known = {number: attempt.model.prompts.marked(finding) for number, finding in findings.items()}
        answers = [known.get(number, f"#{number}") for number in range(1, len(plan) + 1)]
        executors = [
            execute(attempt, with_results(query, answers), f"executor {number}", executor_turns)
            for number, query in ready.items()
        ]
        # Each branch is a generator that starts when the driver asks for its first request.
        new = yield from run_in_parallel(executors, list(ready))
        findings |= zip(ready, new, strict=True)
    return [findings[number] for number in range(1, len(plan) + 1)]


def execute(attempt: AgentAttempt, query: str, part: str, max_turns: int) -> Steps[str]:
    """Return the answer of an executor that sees only its query."""
    act = yield from use_tools(attempt, [user_message(query)], part=part, max_turns=max_turns)
    if act is None or not act.answer:
        return NOTHING_FOUND  # the executor ran out of turns, or answered with nothing
    return act.answer


def read_queries(text: str, limit: int) -> list[str]:
    """Read the queries of a plan. Raise ValueError with a message for the planner if they are invalid."""
    # The list may be surrounded by other text or a code fence, so only the outermost brackets are read.
    start, end = text.find("["), text.rfind("]") + 1
    if not 0 <= start < end:
        raise ValueError('write a JSON list of queries, ["…", "…"], and nothing else')
    try:
        queries = parse_json(text[start:end])
    except ValueError as error:
        raise ValueError(f"this is no JSON ({error}); write a list of queries") from None
    are_texts = all(isinstance(query, str) and query.strip() for query in queries)
    if not queries or not are_texts:
        raise ValueError("each query must be a text, and there must be one at least")
    if len(queries) > limit:
        raise ValueError(f"{len(queries)} queries are too many; write at most {limit}")
    for number, query in enumerate(queries, start=1):
        if any(earlier >= number for earlier in references(query, len(queries))):
            raise ValueError(f"query {number} refers to itself or to a later query; refer to earlier ones only")
    return queries


def build(settings: MultiAgent, resources: AgentResources) -> ProgramAgent:
    program = partial(multi_agent, queries=settings.queries, executor_turns=settings.executor_turns)
    return ProgramAgent("multi_agent", program, resources.model, settings.identity())

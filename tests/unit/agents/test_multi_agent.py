"""multi_agent: executors are isolated, a plan is repaired once."""

from __future__ import annotations

from functools import partial

import pytest
from agent_support import FakeModel, assignment, last, run

from rlhf_lab.packs.agents.harness.multi_agent import multi_agent, read_queries

program = partial(multi_agent, queries=3, executor_turns=2)
QUESTION = "Which has more people, Ossin or Quorin?"
QUERIES = '["population of Ossin", "population of Quorin"]'


def team(plans):
    """Planner with scripted plans; executors who search once and say what they found; a synthesiser."""
    plans = list(plans)

    def answer(request):
        first = request.messages[0]["content"]
        if "Divide the question" in request.system:
            return plans.pop(0)
        if "workers have found" in request.system:
            return "Answer: Ossin"
        if len(request.messages) == 1:
            return f"Action: search[{first.split()[-1]} ; population]"
        return f"Answer: {last(request).splitlines()[1]}"

    return FakeModel(answer)


def test_executors_see_their_query_and_nothing_else():
    model = team([QUERIES])
    (trajectory,) = run(program, model, assignment(QUESTION))
    assert trajectory.answer == "Ossin"
    assert [len(asked) for asked in model.rounds] == [1, 2, 2, 1]  # executors work at the same time
    for request, query in zip(model.rounds[1], ("population of Ossin", "population of Quorin"), strict=True):
        seen = request.system + "".join(message["content"] for message in request.messages)
        assert QUESTION not in seen
        assert last(request) == query
    assert [turn.agent for turn in trajectory.turns] == [
        "planner",
        *["executor 1"] * 2,
        *["executor 2"] * 2,
        "synthesiser",
    ]
    assert "Query: population of Quorin\n<result>\n800\n</result>" in last(model.asked[-1])


def test_a_plan_is_repaired_once():
    model = team(["first, the people of Ossin", QUERIES])
    (trajectory,) = run(program, model, assignment(QUESTION))
    assert trajectory.answer == "Ossin"
    told = model.asked[1].messages
    assert told[1]["content"] == "first, the people of Ossin"
    assert "error: write a JSON list of queries" in told[2]["content"]
    (trajectory,) = run(program, team(["none", "[]"]), assignment(QUESTION))
    assert (trajectory.stop, trajectory.answer) == ("failed", None)
    assert trajectory.error == "no plan: each query must be a text, and there must be one at least"
    assert len(trajectory.turns) == 2


def test_an_executor_who_never_answers_finds_nothing():
    model = team([QUERIES])
    answer = model.answer
    model.answer = lambda request: answer(request).replace("Answer: 800", "Action: search[Quorin ; population]")
    (trajectory,) = run(program, model, assignment(QUESTION))
    assert "nothing was found" in last(model.asked[-1])
    assert trajectory.answer == "Ossin"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no list", "write a JSON list"),
        ('["a", ]', "this is no JSON"),
        ("[]", "there must be one"),
        ('["a", 3]', "must be a text"),
        ('["a", " "]', "must be a text"),
        ('["a", "b", "c", "d"]', "4 queries are too many; write at most 3"),
    ],
)
def test_what_is_wrong_with_a_plan(text, problem):
    with pytest.raises(ValueError, match=problem):
        read_queries(text, 3)


def test_a_plan_may_stand_in_a_block():
    assert read_queries('Here:\n```json\n["a",\n "b"]\n```', 3) == ["a", "b"]

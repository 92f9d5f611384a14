"""multi_agent: executors are isolated, a plan is repaired once."""

from __future__ import annotations

import json
from functools import partial

import pytest
from agent_support import FakeModel, assignment, last, run, tools

from rlhf_lab.core.episodes import Task
from rlhf_lab.packs.agents.harness.agent import Assignment
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
    assert [len(requested) for requested in model.rounds] == [1, 2, 2, 1]  # executors work at the same time
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


def test_executors_do_not_see_the_conversation_that_a_task_goes_on_from():
    model = team([QUERIES])
    prompt = f"\n\nHuman: hi\n\nAssistant: hello\n\nHuman: {QUESTION}\n\nAssistant:"
    run(program, model, Assignment(Task(prompt), tuple(tools())))
    assert [len(request.messages) for request in model.asked] == [3, 1, 1, 3, 3, 3]  # planner, executors, synthesiser
    assert [request.messages[0]["content"] for request in model.rounds[1]] == json.loads(QUERIES)


def test_the_planner_knows_the_tools():
    model = team([QUERIES])
    run(program, model, assignment(QUESTION))
    assert "- search[entity ; relation]: Looks up one fact" in model.asked[0].system


def test_the_synthesiser_may_make_calls_whose_results_join_the_findings():
    model = team([QUERIES])
    answer, turns = model.answer, ["Action: calculate[1200 - 800]", "Answer: Ossin, by 400"]
    model.answer = lambda request: turns.pop(0) if "workers have found" in request.system else answer(request)
    (trajectory,) = run(program, model, assignment(QUESTION))
    assert trajectory.answer == "Ossin, by 400"
    assert last(model.asked[-1]).endswith('Query: calculate {"expression": "1200 - 800"}\n<result>\n400\n</result>')
    assert "Query: population of Ossin\n<result>\n1200\n</result>" in last(model.asked[-1])


def test_a_plan_is_repaired_once():
    model = team(["first, the people of Ossin", QUERIES])
    (trajectory,) = run(program, model, assignment(QUESTION))
    assert trajectory.answer == "Ossin"
    stated = model.asked[1].messages
    assert stated[1]["content"] == "first, the people of Ossin"
    assert "error: write a JSON list of queries" in stated[2]["content"]
    (trajectory,) = run(program, team(["none", "[]"]), assignment(QUESTION))
    assert (trajectory.stop, trajectory.answer) == ("failed", None)
    assert trajectory.error == "no plan: each query must be a text, and there must be one at least"
    assert len(trajectory.turns) == 2


def test_an_executor_who_never_answers_finds_nothing():
    model = team([QUERIES])
    answer = model.answer
    model.answer = lambda request: answer(request).replace("Answer: 800", "Action: search[Quorin ; population]")
    (trajectory,) = run(program, model, assignment(QUESTION))
    assert "Query: population of Quorin\n<result>\nnothing was found\n</result>" in last(model.asked[-1])
    assert [turn.agent for turn in trajectory.turns].count("executor 2") == 2  # executor_turns
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

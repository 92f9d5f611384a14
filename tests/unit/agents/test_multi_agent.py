"""multi_agent: executors are isolated, a plan is repaired once."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
from agent_support import FakeModel, assignment, last, run, tools

from rlhf_lab.core.episodes import Task
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.multi_agent import multi_agent, read_queries
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.packs.agents.tools.tools import build

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
    parts = ["planner", *["executor 1"] * 2, *["executor 2"] * 2, "synthesiser"]
    assert [turn.agent for turn in trajectory.turns] == parts
    assert "- search[entity ; relation]: Looks up one fact" in model.asked[0].system  # the planner knows the tools
    assert "Query 2: population of Quorin\n<result>\n800\n</result>" in last(model.asked[-1])


def test_executors_do_not_see_the_conversation_that_a_task_goes_on_from():
    model = team([QUERIES])
    prompt = f"\n\nHuman: hi\n\nAssistant: hello\n\nHuman: {QUESTION}\n\nAssistant:"
    run(program, model, Assignment(Task(prompt), tuple(tools())))
    assert [len(request.messages) for request in model.asked] == [3, 1, 1, 3, 3, 3]  # planner, executors, synthesiser
    assert [request.messages[0]["content"] for request in model.rounds[1]] == json.loads(QUERIES)


def test_the_synthesiser_may_make_calls_whose_results_join_the_findings():
    model = team([QUERIES])
    answer, turns = model.answer, ["Action: calculate[1200 - 800]", "Answer: Ossin, by 400"]
    model.answer = lambda request: turns.pop(0) if "workers have found" in request.system else answer(request)
    (trajectory,) = run(program, model, assignment(QUESTION))
    assert trajectory.answer == "Ossin, by 400"
    assert last(model.asked[-1]).endswith('Query 3: calculate {"expression": "1200 - 800"}\n<result>\n400\n</result>')
    assert "Query 1: population of Ossin\n<result>\n1200\n</result>" in last(model.asked[-1])


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
    assert "Query 2: population of Quorin\n<result>\nnothing was found\n</result>" in last(model.asked[-1])
    assert [turn.agent for turn in trajectory.turns].count("executor 2") == 2  # executor_turns
    assert trajectory.answer == "Ossin"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no list", "write a JSON list"),
        ('["a", ]', "this is no JSON"),
        ("[]", "there must be one"),
        ('["a", " "]', "must be a text"),
        ('["a", "b", "c", "d"]', "4 queries are too many; write at most 3"),
        ('["a", "b of #2"]', "query 2 refers to itself or to a later query"),
    ],
)
def test_what_is_wrong_with_a_plan(text, problem):
    with pytest.raises(ValueError, match=problem):
        read_queries(text, 3)
    assert read_queries('Here:\n```json\n["a",\n "b"]\n```', 3) == ["a", "b"]


HOPS = '["Find the capital of Velmora.", "Find the mayor of #1.", "Find the capital of Quorin."]'


def hop_team(plan, missing=""):
    """Executors who look up the relation and the entity of their query; no fact about `missing` is found."""

    def answer(request):
        if "Divide the question" in request.system:
            return plan
        if "workers have found" in request.system:
            return "Answer: Tal"
        relation, entity = QUERY.search(request.messages[0]["content"]).groups()
        if len(request.messages) == 1:
            return f"Action: search[{entity} ; {relation}]"
        return "Answer:" if entity == missing else f"Answer: {last(request).splitlines()[1]}"

    return FakeModel(answer)


QUERY = re.compile(r"Find the (\w+) of (?:<result>\s*)?(\w+)")


def test_a_query_gets_the_answer_of_an_earlier_one():
    model = hop_team(HOPS)
    (trajectory,) = run(program, model, assignment())
    # plan; executors 1 and 3 at the same time, then executor 2, who needs the first answer; synthesis
    assert [len(requested) for requested in model.rounds] == [1, 2, 2, 1, 1, 1]
    assert last(model.rounds[3][0]) == "Find the mayor of <result>\nOssin\n</result>."
    combined = last(model.asked[-1])
    assert "Query 1: Find the capital of Velmora.\n<result>\nOssin" in combined
    assert "Query 2: Find the mayor of #1.\n<result>\nTal" in combined
    parts = ["planner", *["executor 1"] * 2, *["executor 2"] * 2, *["executor 3"] * 2, "synthesiser"]
    assert [turn.agent for turn in trajectory.turns] == parts
    assert [dict(call.arguments) for call in trajectory.calls][1] == {"entity": "Ossin", "relation": "mayor"}


def test_nobody_works_from_an_answer_that_does_not_exist():
    model = hop_team(HOPS, missing="Velmora")
    (trajectory,) = run(program, model, assignment())
    assert "executor 2" not in {turn.agent for turn in trajectory.turns}
    assert last(model.asked[-1]).count("nothing was found") == 2
    assert trajectory.answer == "Tal"


def test_the_planner_of_a_small_model_splits_a_chain_into_hops():
    corpus = build(Tools(kinds={"chain_3": 1}, roles={"split": 1}, train_tasks=5, test_tasks=2))
    first, second, third = json.loads(corpus.train[0].chosen)
    steps = corpus.environment.draw("train", 0).steps
    assert first == f"Find the {steps[0].relation} of {steps[0].subject}."
    assert second == f"Find the {steps[1].relation} of #1."
    assert third == f"Find the {steps[2].relation} of #2."
    assert read_queries(corpus.train[0].chosen, 3) == [first, second, third]

"""coordinator: executors answer its queries; a list of answers grows with them, notes do not."""

from __future__ import annotations

from functools import partial

import pytest
from agent_support import FakeModel, assignment, calls, last, run, script

from rlhf_lab.core.tools import call_tool
from rlhf_lab.data.text_calls import read_move
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.harness.brief import Brief
from rlhf_lab.packs.agents.harness.coordinator import coordinator
from rlhf_lab.packs.agents.harness.plan_execute import plan_execute
from rlhf_lab.packs.agents.harness.prompts import ASK_TOOL
from rlhf_lab.packs.agents.harness.zero_shot import zero_shot
from rlhf_lab.packs.agents.tools.demonstrations import NONE, can_be_led, led_turns
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.packs.agents.tools.tools import build

with_list = partial(coordinator, memory="list", notes_tokens=16, executor_turns=3)
with_notes = partial(coordinator, memory="notes", notes_tokens=16, executor_turns=3)
LED = ["Action: ask[Find the capital of Velmora.]", "Action: ask[Find the mayor of Ossin.]", "Answer: Tal"]


def team(led, notes=()):
    """A coordinator and notes by script; executors who look up what they are asked for."""
    led, notes = list(led), list(notes)

    def answer(request):
        if "help of workers" in request.system:
            return led.pop(0)
        if "You keep the notes" in request.system:
            return notes.pop(0)
        if len(request.messages) == 1:
            _, _, relation, _, entity = last(request).rstrip(".").split()  # Find the RELATION of ENTITY.
            return f"Action: search[{entity} ; {relation}]"
        return f"Answer: {last(request).splitlines()[1]}"

    return FakeModel(answer)


def test_a_list_has_every_query_with_its_answer():
    model = team(LED)
    (trajectory,) = run(with_list, model, assignment())
    assert trajectory.answer == "Tal"
    executors = [each for each in model.asked if len(each.messages) == 1 and "help of tools" in each.system]
    assert [last(each) for each in executors] == ["Find the capital of Velmora.", "Find the mayor of Ossin."]
    final = model.asked[-1]
    assert [message["content"] for message in final.messages] == [
        "Who is the mayor of the capital of Velmora?",
        LED[0],
        "Observation: <result>\nOssin\n</result>",
        LED[1],
        "Observation: <result>\nTal\n</result>",
    ]
    assert "- ask[query]: Asks a worker" in final.system and "search[" not in final.system
    parts = ["coordinator", *["executor 1"] * 2, "coordinator", *["executor 2"] * 2, "coordinator"]
    assert [turn.agent for turn in trajectory.turns] == parts
    # calls are those of the tools: a query to an executor is none
    assert [call.name for call in trajectory.calls] == ["search", "search"]


def test_notes_replace_the_answers():
    model = team(LED, ["capital Ossin", "mayor Tal"])
    (trajectory,) = run(with_notes, model, assignment())
    assert trajectory.answer == "Tal"
    final = model.asked[-1]
    assert len(final.messages) == 1
    assert "Your notes so far:\nmayor Tal" in last(final) and "capital Ossin" not in last(final)
    noted = [request for request in model.asked if "You keep the notes" in request.system]
    assert {request.max_tokens for request in noted} == {16}
    assert "Notes so far:\ncapital Ossin" in last(noted[1])


def test_several_queries_of_a_turn_run_in_parallel():
    lookups = {"Ossin": "1200", "Quorin": "800"}
    both = calls(*[("ask", {"query": f"Find the population of {name}."}) for name in lookups])

    def answer(request):
        if "help of workers" in request.system:
            return both if len(request.messages) == 1 else "Answer: Ossin"
        return f"Answer: {lookups[last(request).rstrip('.').split()[-1]]}"

    model = FakeModel(answer)
    (trajectory,) = run(with_list, model, assignment("Which is larger?"), native_calls=True)
    assert trajectory.answer == "Ossin"
    assert [len(requested) for requested in model.rounds] == [1, 2, 1]
    assert [message["content"] for message in model.asked[-1].messages[-2:]] == [
        "<result>\n1200\n</result>",
        "<result>\n800\n</result>",
    ]


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        ("Action: search[Velmora ; capital]", "there is no tool 'search'; tools: ask"),
        ("Action: ask[]", "query"),
        ("hm", "error: write Action: tool[arguments]"),
    ],
)
def test_a_turn_that_asks_nobody_reads_why(turn, problem):
    model = team([turn, "Answer: x"])
    (trajectory,) = run(with_list, model, assignment())
    assert problem in last(model.asked[-1])
    assert (trajectory.answer, len(model.asked)) == ("x", 2)


@pytest.mark.parametrize(
    ("program", "turns", "asked"),
    [
        (zero_shot, ["Answer: Tal"], ["Reply: Count."]),
        (
            partial(plan_execute, steps=4, step_turns=2),
            ["1. search[ Velmora ; capital ]\n2. search[ #1 ; mayor ]", "Answer: Tal"],
            ["Plan: Count.", "Combine: Count. Found: Ossin; Tal."],
        ),
        (
            with_notes,
            ["Action: ask[ a ]", "Answer: 7", "result 7", "Answer: 7"],
            [
                "Lead: Count. Notes: nothing.",
                "a",
                "Note: Count. Notes: nothing; ask[ a ] gave 7.",
                "Lead: Count. Notes: result 7.",
            ],
        ),
    ],
    ids=("zero_shot", "plan_execute", "coordinator"),
)
def test_a_small_model_is_asked_in_the_phrases_that_it_was_trained_on(program, turns, asked):
    model = FakeModel(script(*turns))
    run(program, model, assignment("Count."), prompts=Brief())
    assert [last(request) for request in model.asked] == asked
    assert not any(request.system or request.tools for request in model.asked)


@pytest.mark.parametrize("kind", ["lookup", "chain_3", "several", "compare", "missing_entity", "redirected"])
def test_the_scripted_coordinator_is_right_about_every_task(kind):
    """Each query is answered by the lookup that an executor would make, and the last turn has the right answer."""
    corpus = build(Tools(kinds={kind: 1}, roles={"act": 1}, train_tasks=20, test_tasks=2))
    world = corpus.environment
    for task in world.tasks("train"):
        selected = world.draw("train", task.metadata["number"])
        demonstration = world.demonstrate(task, NONE)
        turns = led_turns(selected, demonstration.values, demonstration.answer)
        assert can_be_led(selected)
        assert read_move(turns[-1].text, {}).answer == task.metadata["answer"]
        for turn in turns[:-1]:
            move = read_move(turn.text, {"ask": ASK_TOOL})
            assert (move.name, move.arguments) == ("ask", dict(turn.call.arguments))
            relation, entity = turn.call.arguments["query"].removeprefix("Find the ").rstrip(".").split(" of ")
            expected = selected.base.truth.get(entity, {}).get(relation, "unknown")
            assert turn.call.result == expected


def test_rows_of_a_coordinator():
    corpus = build(Tools(kinds={"chain_2": 1, "sum": 1}, roles={"lead": 1}, train_tasks=30, test_tasks=2))
    assert {pair.meta["category"] for pair in corpus.train} == {"chain_2"}  # a sum needs the calculator
    question, *conversation = to_messages(corpus.train[0].prompt)
    assert question["content"].startswith("Lead: Find the ")
    assert [message["role"] for message in conversation] == ["assistant", "tool"] * 2
    assert corpus.train[0].meta["learn_from"] == 1
    steps = build(Tools(kinds={"chain_2": 1}, roles={"lead_step": 1}, train_tasks=5, test_tasks=2)).train
    assert len(steps) == 15 and "Notes: nothing." in steps[0].prompt
    notes = build(Tools(kinds={"chain_2": 1}, roles={"lead_note": 1}, train_tasks=5, test_tasks=2)).train
    assert len(notes) == 10 and "ask[ Find the " in notes[0].prompt and "; left " in notes[0].chosen


def test_the_tool_of_a_coordinator_is_never_run_by_itself():
    assert call_tool({"ask": ASK_TOOL}, "ask", {"query": "x"}).failed

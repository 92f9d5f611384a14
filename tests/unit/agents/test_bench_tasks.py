"""Every task can be solved, none gives its answer away, siblings follow from what is drawn, and names are held out."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from random import Random

import pytest

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.tools import Tool, ToolError, call_tool
from rlhf_lab.environments.splits import split_of
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.scorers import score
from rlhf_lab.packs.agents.harness.scripted import ScriptedAgent
from rlhf_lab.packs.agents.tools.bench import templates
from rlhf_lab.packs.agents.tools.bench.fixtures import fixture_tools, fixture_values
from rlhf_lab.packs.agents.tools.bench.task_sets import AgentBenchMini, Generated
from rlhf_lab.packs.agents.tools.bench.templates import (
    CATEGORIES,
    all_templates,
    compute,
    draw_name,
    is_leaked,
    misspell,
)

ALL = AgentBenchMini(CATEGORIES)
SIBLINGS = Generated(per_task=6)


def by_name(tools: list[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


def test_what_the_sets_have():
    of_all = Counter(task.metadata["category"] for task in ALL.tasks("test"))
    assert of_all == {**dict.fromkeys(CATEGORIES[:3], 12), **dict.fromkeys(CATEGORIES[3:], 4)}
    assert {task.metadata["category"] for task in AgentBenchMini().tasks("test")} == set(CATEGORIES[:3])
    assert AgentBenchMini().tasks("train") == []
    for task in ALL.tasks("test"):
        needed = sum(not call.get("optional") for call in task.metadata["calls"])
        limits = {"tool_use": (1, 1), "multi_step": (2, 4), "long_horizon": (6, 10)}
        smallest, largest = limits.get(task.metadata["category"], (1, 4))
        assert smallest <= needed <= largest, task.metadata["id"]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("tasks", [ALL, SIBLINGS], ids=["canonical", "siblings"])
def test_the_oracle_solves_every_task_through_its_tools(tasks, seed):
    assignments = [Assignment(task, tuple(tasks.tools(task, seed))) for task in tasks.tasks("test")]
    trajectories = ScriptedAgent("oracle").run_many(assignments, lambda position, trajectory: None)
    for assignment, trajectory in zip(assignments, trajectories, strict=True):
        scores = score(trajectory, assignment.task)
        metadata = assignment.task.metadata
        perfect = ("answer_score", "sequence_score", "calls_f1", "arguments_score")
        assert {name: scores[name] for name in perfect} == dict.fromkeys(perfect, 1.0), metadata["id"]
        assert scores["extra_calls"] == scores["right_by_wrong_process"] == 0, metadata["id"]


@pytest.mark.parametrize("split", ["train", "test"])
def test_tasks_are_distinct_and_keep_their_answers(split):
    tasks = [*ALL.tasks("test"), *Generated(per_task=20, seed=3).tasks(split)]
    questions = [task.metadata["question"] for task in tasks]
    assert len(set(questions)) == len(questions)
    assert len({task.metadata["id"] for task in tasks}) == len(tasks)
    for task in tasks:
        assert not is_leaked(task.metadata), task.metadata["question"]
        assert task.prompt == f"\n\nHuman: {task.metadata['question']}\n\nAssistant:"
        # no slot is left
        assert "{" not in json.dumps({**task.metadata, "fixture": None, "calls": None}).strip("{")
        assert "{" not in "".join(fixture_values(task.metadata["fixture"]))
        again = json.loads(json.dumps(task.metadata))
        assert again == task.metadata
        assert [tool.name for tool in fixture_tools(again["fixture"], 0)] == [tool.name for tool in ALL.tools(task, 0)]
        if task.metadata["scorer"] == "refusal":
            assert task.metadata["answer"] in task.metadata["question"]


def test_answers_of_siblings_vary():
    assert len(all_templates()) >= 10
    for template in all_templates():
        answers = {metadata["answer"] for metadata in template.siblings(20, seed=0)}
        assert len(answers) >= 3, f"{template.id}: {answers}"


def test_a_sibling_does_not_depend_on_how_many_are_drawn():
    template = all_templates()[0]
    assert template.siblings(3, seed=5) == template.siblings(8, seed=5)[:3]
    assert template.siblings(3, seed=5) != template.siblings(3, seed=6)
    few, many = Generated(2, 1).tasks("test"), Generated(3, 1).tasks("test")
    assert {task.metadata["id"] for task in few} < {task.metadata["id"] for task in many}


def test_names_of_test_are_never_trained_on():
    for split in ("train", "test"):
        tasks = Generated(per_task=5).tasks(split)
        entities = [entity for task in tasks for entity in task.metadata["fixture"].get("facts", {})]
        assert len(entities) >= 20
        for entity in entities:
            names = [word for word in entity.split() if word.isalpha() and word[0].isupper()]
            # what is added to a name, such as Bridge, is written by hand
            assert any(split_of(name) == split for name in names) or entity in ("varn", "trill", "osket"), entity


def test_a_wrong_entry_of_a_file_says_what_is_wrong(tmp_path, monkeypatch):
    (tmp_path / "tool_use.yml").write_text("- {id: a, question: b, slot: {}, calls: [], answer: c, scorer: exact}\n")
    monkeypatch.setattr(templates, "TASKS", tmp_path)
    with pytest.raises(DataError, match=r"tool_use.yml, task 1: unknown keys \['slot'\], missing keys \['slots'\]"):
        templates.read_templates("tool_use")
    text = "- {id: a, question: b, slots: {}, calls: ['fly[x]'], answer: c, scorer: exact}\n"
    (tmp_path / "tool_use.yml").write_text(text)
    with pytest.raises(DataError, match=r"task a: 'fly\[x\]' is not a call of calculate"):
        templates.read_templates("tool_use")[0].canonical()
    with pytest.raises(DataError, match="use name, person"):
        templates.draw_value("colour", Random(0), "test", {})


def test_an_answer_in_the_question_is_noticed():
    metadata = all_templates()[0].canonical()
    assert not is_leaked(metadata)
    assert is_leaked({**metadata, "question": f"Is {metadata['answer'].upper()} the mayor?"})
    assert not is_leaked({**metadata, "answer": "41", "question": "Is it 410 or 141?"})


def test_formulas():
    values = {"a": Fraction(7), "b": Fraction(2), "first": "Ossin"}
    assert compute("(a + b) * 3 / 2 - 1", values) == Fraction(25, 2)
    assert compute("first if a > max(b, 9) else 'none'", values) == "none"
    assert compute(" min(a, b)", values) == 2
    for wrong in ("__import__('os')", "a.real", "a if b", "c + 1", "a / (b - 2)", "a +", "a > b"):
        with pytest.raises(ValueError, match="is not a valid formula of a, b, first"):
            compute(wrong, values)


def test_a_misspelt_name_is_another_with_the_same_first_letter():
    rng = Random(0)
    for name in [draw_name(rng, "test") for _ in range(300)]:
        wrong = misspell(name, rng)
        assert wrong != name and wrong[0] == name[0] and len(name) - 1 <= len(wrong) <= len(name)


def test_search_helps_with_names():
    metadata = {"Velmora": {"mayor": "Joss"}, "Orlun (river)": {"length": "4"}, "Orlun (town)": {"length": "1"}}
    tools = by_name(fixture_tools({"facts": metadata, "moved": {"Tarn": "Velmora"}}, 0))

    def search(entity: str, relation: str) -> str:
        return call_tool(tools, "search", {"entity": entity, "relation": relation}).result

    assert search("Velmora", "mayor") == "Joss"
    assert search("Tarn", "mayor") == "moved see Velmora"
    assert search("Velmroa", "mayor") == "no entry for Velmroa; similar names: Velmora"
    assert search("velmora", "mayor") == "no entry for velmora; similar names: Velmora"
    assert search("Orlun", "length") == "no entry for Orlun; similar names: Orlun (river), Orlun (town)"
    assert search("Velmora", "height") == "Velmora has no height; known: mayor"
    assert search("Zzyx", "mayor") == "no entry for Zzyx"


def test_a_busy_tool_answers_in_the_end():
    fixture = {"facts": {"A": {"r": "1"}, "B": {"r": "2"}}, "busy": {"search": 2}}
    tries = []
    for seed in range(60):
        search = by_name(fixture_tools(fixture, seed))["search"]
        for entity in ("A", "B"):
            for attempt in range(3):
                try:
                    assert search.run(entity=entity, relation="r") == fixture["facts"][entity]["r"]
                except ToolError as error:
                    assert str(error).startswith("busy: search did not answer")
                else:
                    tries.append(attempt)
                    break
    # 120 calls, each busy 0, 1 or 2 times with the same probability: 40 ± 3·5.2 of each
    assert len(tries) == 120
    assert all(24 <= tries.count(times) <= 56 for times in range(3))


def test_how_often_a_call_is_busy_depends_on_nothing_but_itself():
    fixture = {"facts": {"A": {"r": "1"}, "B": {"r": "2"}}, "busy": {"search": 3}}

    def outcomes(order: str) -> dict[str, list[bool]]:
        tools = by_name(fixture_tools(fixture, 4))
        failed: dict[str, list[bool]] = {"A": [], "B": []}
        for entity in order:
            failed[entity].append(call_tool(tools, "search", {"entity": entity, "relation": "r"}).failed)
        return failed

    assert outcomes("AAAABBBB") == outcomes("ABABABAB") == outcomes("BBBBAAAA")


def test_a_tool_out_of_service_never_answers():
    tools = by_name(fixture_tools({"facts": {"A": {"r": "1"}}, "unavailable": ["search"]}, 0))
    call = call_tool(tools, "search", {"entity": "A", "relation": "r"})
    assert (call.failed, call.result) == (True, "search is out of service today; trying again does not help")
    assert call_tool(tools, "calculate", {"expression": "2 * 3"}).result == "6"

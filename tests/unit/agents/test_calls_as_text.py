"""Calls as text are read as they are written; arguments reach a tool in the types that it declares, or not at all."""

from __future__ import annotations

import pytest

from rlhf_lab.core.tools import Tool, call_tool
from rlhf_lab.data.text_calls import read_move, write_call
from rlhf_lab.packs.agents.tools.knowledge import ToolKnowledge, calculator_tool, search_tool
from rlhf_lab.packs.agents.tools.table import DataTable, TableBase, table_tools

BASE = ToolKnowledge({"Velmora": {"capital": "Ossin"}}, {"Old Velmora": "Velmora"})
TOOLS = {
    tool.name: tool
    for tool in (search_tool(BASE), calculator_tool(), *table_tools(TableBase({"t": DataTable(["n"], [[1]])})))
}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search", {"entity": "Velmora", "relation": "capital"}),
        ("calculate", {"expression": "(1 + 2) * 3"}),
        ("sql", {"statement": "SELECT n FROM t WHERE n IN (1, 2);"}),
        ("schema", {}),
    ],
)
def test_a_written_call_is_read_back(name, arguments):
    move = read_move(f"Thought: so\nAction: {write_call(name, arguments)}\nObservation: made up", TOOLS)
    assert (move.name, move.arguments, move.thought, move.problem) == (name, arguments, "Thought: so", "")


def test_a_call_may_be_json_and_an_answer_ends_the_turn():
    move = read_move('Action: search {"entity": "A; B", "relation": "r"}', TOOLS)
    assert move.arguments == {"entity": "A; B", "relation": "r"}
    assert read_move("Answer: Ossin\nAction: search[A ; r]", TOOLS).answer == "Ossin"
    assert read_move("no idea", TOOLS).problem.startswith("error: write Action:")
    assert "is no call" in read_move("Action: just look", TOOLS).problem


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        ("Thought: so\nAnswer:\n\nParis\nQuestion: next", "Paris"),
        ("**Answer:** Paris", "Paris"),
        ("**Answer: Paris**", "Paris"),
        ("So it is.\nFINAL ANSWER: Paris", "Paris"),  # the form of answers to GAIA
        ("**Final answer:** Paris", "Paris"),
        ("__Answer__: Paris", "Paris"),
        ("**Answer:**\n**Paris**", "Paris"),
        ("Answer: **Paris**", "**Paris**"),  # as it is written
        ("Answer:\nAction: search[A ; r]", ""),
        ("Answer: ", ""),
    ],
)
def test_where_an_answer_stands(turn, answer):
    move = read_move(turn, TOOLS)
    assert (move.answer, move.problem) == (answer, "")


@pytest.mark.parametrize(
    "turn", ["**Action:** search[A ; r]", "**Action: search[A ; r]**", "_Action:_\nsearch[A ; r]\n**Answer:** x"]
)
def test_the_word_of_an_action_may_be_emphasised(turn):
    move = read_move(turn, TOOLS)
    assert (move.name, move.arguments) == ("search", {"entity": "A", "relation": "r"})


def test_too_many_arguments_are_told():
    move = read_move("Action: search[A ; r ; x]", TOOLS)
    call = call_tool(TOOLS, move.name, move.arguments or {})
    assert call.failed
    assert call.result == "error: search takes entity, relation; got entity, relation, argument 3"
    assert "there is no tool 'fly'; tools: search, calculate" in call_tool(TOOLS, "fly", {}).result


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("(" * 3000 + "1" + ")" * 3000, "longer than 500 characters; split it"),
        ("9" * 5000, "longer than 500 characters"),
        (" * ".join(["9" * 100] * 60), "longer than 500 characters"),
        ("(" * 400 + "1", "is no expression"),
    ],
)
def test_an_expression_beyond_python_is_refused(expression, problem):
    call = call_tool(TOOLS, "calculate", {"expression": expression})
    assert call.failed
    assert problem in call.result


PROPERTIES = {
    "name": {"type": "string"},
    "count": {"type": "integer"},
    "share": {"type": "number"},
    "any": {},
    "some": {"type": ["string", "null"]},
}
SHOW = Tool("show", "Shows.", {"type": "object", "properties": PROPERTIES}, lambda **arguments: repr(arguments))


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"name": "Oslo"}, "{'name': 'Oslo'}"),
        ({"name": 3}, "{'name': '3'}"),
        ({"name": True}, "{'name': 'true'}"),
        ({"count": "3"}, "{'count': 3}"),
        ({"share": "0.5"}, "{'share': 0.5}"),
        ({"share": 2}, "{'share': 2}"),
        ({"some": None}, "{'some': None}"),
        ({"any": [1]}, "{'any': [1]}"),
    ],
)
def test_arguments_are_brought_to_the_declared_type(given, read):
    call = call_tool({"show": SHOW}, "show", given)
    assert (call.result, call.failed, call.arguments) == (read, False, given)


@pytest.mark.parametrize("given", [{"name": ["Oslo"]}, {"name": None}, {"count": "three"}, {"count": True}])
def test_what_cannot_be_is_told_to_the_model(given):
    call = call_tool({"show": SHOW}, "show", given)
    assert call.failed
    assert call.result.startswith(f"error: {next(iter(given))} of show is a JSON ")

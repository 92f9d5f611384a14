"""Calls as text are read as they are written; arguments reach a tool in the types that it declares, or not at all."""

from __future__ import annotations

import pytest

from rlhf_lab.core.tools import Tool, call_tool
from rlhf_lab.data.text_calls import read_move
from rlhf_lab.packs.agents.tools.knowledge import ToolKnowledge, search_tool

TOOLS = {"search": search_tool(ToolKnowledge({}))}


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        ("Thought: so\nAnswer:\n\nParis\nQuestion: next", "Paris"),
        ("**Answer:** Paris", "Paris"),
        ("So it is.\nFINAL ANSWER: Paris", "Paris"),  # the form of answers to GAIA
        ("**Final answer:** Paris", "Paris"),
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
        ({"name": 3}, "{'name': '3'}"),
        ({"name": True}, "{'name': 'true'}"),
        ({"count": "3"}, "{'count': 3}"),
        ({"share": "0.5"}, "{'share': 0.5}"),
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

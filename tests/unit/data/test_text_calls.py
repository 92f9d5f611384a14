"""Calls of tools as text: what is written is read back, and what is no call is told why."""

from __future__ import annotations

import pytest

from rlhf_lab.core.tools import text_tool
from rlhf_lab.data.text_calls import read_move, write_call

SEARCH = text_tool("search", "looks a relation up", {"entity": "whose", "relation": "which"}, lambda **named: "")
TOOLS = {"search": SEARCH}


@pytest.mark.parametrize("call", [write_call("search", {"entity": "Velmora", "relation": "capital"}),
                                  'search {"entity": "Velmora", "relation": "capital"}'])  # fmt: skip
def test_a_call_is_read_in_both_forms(call):
    move = read_move(f"Thought: the capital first\nAction: {call}\nAnswer: too late", TOOLS)
    assert (move.thought, move.name, move.answer, move.problem) == ("Thought: the capital first", "search", None, "")
    assert move.arguments == {"entity": "Velmora", "relation": "capital"}


def test_an_answer_ends_the_turn_and_what_is_neither_is_told_why():
    assert read_move("**Answer:** Ossin\nAction: search[A ; r]", TOOLS).answer == "Ossin"
    assert read_move("no idea", TOOLS).problem.startswith("error: write Action:")
    assert "is no call" in read_move("Action: just look", TOOLS).problem

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


def test_a_program_with_brackets_in_its_first_line_is_read_to_its_end():
    tools = {"python": text_tool("python", "runs a program", {"code": "the program"}, lambda code: code)}
    program = "data = [3, 4]\nprint(sum(data))"
    assert read_move(f"Action: python[{program}]", tools).arguments == {"code": program}
    # a call that closes on its line ends there, whatever follows it
    assert read_move("Action: python[x = [1]]\nThen I read [1].", tools).arguments == {"code": "x = [1]"}


def test_an_answer_ends_the_turn_and_what_is_neither_is_told_why():
    assert read_move("**Answer:** Ossin\nAction: search[A ; r]", TOOLS).answer == "Ossin"
    assert read_move("no idea", TOOLS).problem.startswith("error: write Action:")
    assert "is no call" in read_move("Action: just look", TOOLS).problem

"""scratchpad: what is read does not grow with the number of calls, where react's does."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from agent_support import FakeModel, assignment, calls, last, run

from rlhf_lab.core.tools import text_tool
from rlhf_lab.packs.agents.harness.react import react
from rlhf_lab.packs.agents.harness.scratchpad import scratchpad

HOPS = 12
program = partial(scratchpad, notes_tokens=16)
NEXT = text_tool("next", "The number after a number.", {"number": "a number"}, lambda number: str(int(number) + 1))


def counter(request):
    """Counts up to HOPS by calls of `next`; notes are the last number."""
    if "You keep the notes" in request.system:
        return "at " + last(request).split("<result>\n")[-1].split("\n")[0]
    read = last(request) if "Your notes so far" in last(request) else "".join(m["content"] for m in request.messages)
    numbers = [int(part.split("\n")[0]) for part in read.split("<result>\n")[1:]]
    number = max(numbers, default=0)
    return f"Answer: {number}" if number == HOPS else f"Action: next[{number}]"


def prompts(trajectory, part):
    return [len(turn.prompt) for turn in trajectory.turns if turn.agent == part]


def test_what_is_read_is_bounded_where_reacts_grows():
    task = assignment("Count.", tools=[NEXT])
    limits = {"max_turns": 40, "max_calls": 40}
    notes_model = FakeModel(counter)
    (noted,) = run(program, notes_model, task, **limits)
    (flat,) = run(react, FakeModel(counter), task, **limits)
    assert noted.answer == flat.answer == str(HOPS)
    assert len(noted.calls) == len(flat.calls) == HOPS
    bounded, growing = prompts(noted, "agent"), prompts(flat, "agent")
    assert max(bounded[2:]) - min(bounded[2:]) <= 6  # digits of the numbers
    assert all(later > earlier for earlier, later in pairwise(growing))
    assert growing[-1] > 1.4 * max(bounded)
    assert max(prompts(noted, "notes")) < growing[-1]
    # the limit of the notes is the model's to keep
    assert {request.max_tokens for request in notes_model.asked if "You keep" in request.system} == {16}


def test_each_turn_and_note_starts_anew_from_notes_and_the_latest_result():
    model = FakeModel(counter)
    run(program, model, assignment("Count.", tools=[NEXT]), max_turns=40)
    second_note, third = model.asked[3:5]  # act, note, act, note, act
    assert last(second_note) == (
        'Question: Count.\n\nNotes so far:\nat 1\n\nCall: next {"number": "1"}\n<result>\n2\n</result>'
    )
    assert len(third.messages) == 1
    assert "- next[number]: The number after a number." in third.system
    assert last(third) == (
        'Count.\n\nYour notes so far:\nat 2\n\nYour latest call: next {"number": "1"}\n<result>\n2\n</result>'
    )


def test_empty_notes_do_not_lose_what_is_known():
    def answer(request):
        if "You keep" in request.system:
            return "" if "at 1" in last(request) else "at 1"
        return "Action: next[0]" if "at 1" not in last(request) else "Action: next[5]"

    model = FakeModel(answer)
    (trajectory,) = run(program, model, assignment("Count.", tools=[NEXT]), max_turns=5)
    assert "Your notes so far:\nat 1" in last(model.asked[-1])
    assert trajectory.stop == "turn_limit"


def test_several_calls_and_turns_without_one_are_noted():
    turns = [calls(("next", {"number": "1"}), ("next", {"number": "5"})), "noted", " ", "noted", "Answer: 6"]
    model = FakeModel(lambda request: turns.pop(0))
    (trajectory,) = run(program, model, assignment("Count.", tools=[NEXT]), native_calls=True)
    assert trajectory.answer == "6"
    assert last(model.asked[1]).count("Call: next") == 2
    assert "you said nothing" in last(model.asked[3])

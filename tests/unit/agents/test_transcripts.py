"""Trajectories as training rows: what the agent said is learned, what tools said is not."""

from __future__ import annotations

from functools import partial

from agent_support import FakeModel, calls, run, script, tools

from rlhf_lab.core.episodes import Task
from rlhf_lab.data.file_settings import Demonstrations
from rlhf_lab.data.sft import parse_row
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.models.turns import conversation_row
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.multi_agent import multi_agent
from rlhf_lab.packs.agents.harness.program import user_message
from rlhf_lab.packs.agents.harness.react import react
from rlhf_lab.packs.agents.harness.scratchpad import scratchpad
from rlhf_lab.packs.agents.harness.transcripts import training_rows

TURNS = ("Action: search[Velmora ; capital]", "Action: search[Ossin ; mayor]", "Answer: Tal")


def test_a_react_trajectory_is_one_conversation_of_which_what_the_agent_said_is_learned():
    (trajectory,) = run(react, FakeModel(script(*TURNS)))
    (row,) = training_rows(trajectory)
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert [message["role"] for message in row["completion"]] == ["assistant", "user"] * 2 + ["assistant"]
    split = parse_row(row, Demonstrations(path="rows.jsonl"))
    encoder = Encoder(train_tokenizer([split.prompt, split.chosen], 4096))
    (_, response), mask = conversation_row(encoder, split.prompt, split.chosen, 4096, split.meta["learn_from"])
    learned = [token for token, is_learned in zip(response, mask, strict=True) if is_learned]
    assert encoder.decode(learned).split() == " ".join(TURNS).split()
    read = [token for token, is_learned in zip(response, mask, strict=True) if not is_learned]
    assert "<result> Ossin </result>" in " ".join(encoder.decode(read).split())


def test_calls_in_the_models_own_form_stay_calls():
    call = calls(("search", {"entity": "Velmora", "relation": "capital"}))
    (trajectory,) = run(react, FakeModel(script(call, "Answer: Ossin")), native_calls=True)
    (row,) = training_rows(trajectory)
    assert [tool["function"]["name"] for tool in row["tools"]] == ["search", "calculate"]
    text, result, _ = row["completion"]
    assert text["tool_calls"][0]["function"]["name"] == "search"
    assert (result["role"], result["tool_call_id"]) == ("tool", "call0")
    # a conversation that ends with a call, because no turns were left
    (cut,) = run(react, FakeModel(script(call)), native_calls=True, max_turns=1)
    (row,) = training_rows(cut)
    assert row["completion"] == [{**call.message}]
    assert parse_row(row, Demonstrations(path="rows.jsonl")).drop is None


def test_parts_and_notes_are_conversations_of_their_own():
    def team(request):
        if "Divide" in request.system:
            return '["population of Ossin", "population of Quorin"]'
        if "workers have found" in request.system:
            return "Answer: Ossin"
        first = request.messages[0]["content"]
        return "Answer: 1" if len(request.messages) > 1 else f"Action: search[{first.split()[-1]} ; population]"

    (trajectory,) = run(partial(multi_agent, queries=2, executor_turns=3), FakeModel(team))
    rows = training_rows(trajectory)
    assert [row["part"] for row in rows] == ["planner", "executor 1", "executor 2", "synthesiser"]
    assert [len(row["completion"]) for row in rows] == [1, 3, 3, 1]
    model = FakeModel(script(TURNS[0], "capital: Ossin", TURNS[1], "mayor: Tal", TURNS[2]))
    (trajectory,) = run(partial(scratchpad, notes_tokens=9), model)
    parts = [(row["part"], len(row["completion"])) for row in training_rows(trajectory)]
    assert parts == [("agent", 1), ("notes", 1)] * 2 + [("agent", 1)]


def test_turns_that_were_said_before_the_attempt_are_not_learned():
    history = [user_message("hi"), {"role": "assistant", "content": "hello"}, user_message("who?")]
    task = Assignment(Task(render_prompt(history)), tuple(tools()))
    (trajectory,) = run(react, FakeModel(script("Answer: me")), task)
    (row,) = training_rows(trajectory)
    assert [message["content"] for message in row["completion"]] == ["Answer: me"]

"""Trajectories of a language model as rows: whatever form the teacher used, the row has that of a demonstration."""

from __future__ import annotations

import pytest
from support import planned

from rlhf_lab.core.episodes import Episode, Task
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.tools import Call, call_tool, text_tool
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.harness.scorers import score
from rlhf_lab.packs.agents.synthesis.teacher_trajectories import stored_attempt, written_turns
from rlhf_lab.packs.agents.tools.demonstrations import NONE
from rlhf_lab.packs.agents.tools.settings import HabitSettings, Tools
from rlhf_lab.packs.agents.tools.tools import build
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn

TASK = Task("\n\nHuman: Find the capital of tal vor.\n\nAssistant:", {"category": "lookup", "answer": "rum tir"})
TOOLS = (
    text_tool("search", "Looks up one fact.", {"entity": "name", "relation": "fact"}, lambda **arguments: "rum tir"),
    text_tool("calculate", "Computes.", {"expression": "sum"}, lambda expression: "3"),
)
FOUND = Call("search", {"entity": "tal vor", "relation": "capital"}, "rum tir")


def turn(text: str, *calls: Call) -> ModelTurn:
    return ModelTurn("agent", "p", text, calls)


def test_a_row_has_the_form_of_a_demonstration():
    """The calls are native ones: the text of a turn is its thought."""
    turns = (turn("look it up", FOUND), turn("it is there\nAnswer: rum tir"))
    attempt = stored_attempt(TASK, TOOLS, AgentTrajectory("rum tir", turns), 1.0)
    assert [message["content"] for message in to_messages(attempt.prompt)] == [
        "Find the capital of tal vor.",
        "Thought: look it up\nAction: search[ tal vor ; capital ]",
        "rum tir",
    ]
    assert attempt.completion == "Thought: it is there\nAnswer: rum tir"
    assert (attempt.success, attempt.turns) == (1.0, 2)


@pytest.mark.parametrize(("kind", "wording"), [("lookup", "The {}."), ("missing_entity", "This is unknown.")])
def test_a_right_answer_has_the_words_of_the_world(kind, wording):
    """agent_bench accepts other words than the environment, in which the student is trained and tested."""
    world = build(Tools(kinds={kind: 1}, train_tasks=1, test_tasks=1)).environment
    (task,) = world.tasks("train")
    said = wording.format(task.metadata["answer"])
    trajectory = AgentTrajectory(said, (turn(f"Answer: {said}"),))
    assert score(trajectory, task)["success"] == 1
    attempt = stored_attempt(task, world.tools(task, 0), trajectory, 1.0)
    assert attempt.completion == f"Thought: nothing\nAnswer: {task.metadata['answer']}"
    correct = [world.grade([Episode(task, task.prompt, text)])["correct"][0] for text in (said, attempt.completion)]
    assert correct == [0, 1]
    # a wrong answer stays what the teacher said
    assert stored_attempt(task, world.tools(task, 0), trajectory, 0.0).completion.endswith(f"Answer: {said}")


def test_a_turn_with_several_calls_becomes_several_turns():
    second = Call("calculate", {"expression": "1 + 2"}, "3")
    # a turn that does nothing is left out
    turns = written_turns(AgentTrajectory("3", (turn("hm"), turn("", FOUND, second), turn("3"))), TOOLS)
    assert [written.text for written in turns] == [
        "Thought: nothing\nAction: search[ tal vor ; capital ]",
        "Thought: nothing\nAction: calculate[ 1 + 2 ]",
        "Thought: 3\nAnswer: 3",
    ]
    assert [written.call for written in turns] == [FOUND, second, None]


def test_arguments_are_written_in_the_order_of_the_tool():
    """A service writes the arguments of a native call by name, in any order; a call as text has no names."""
    tools = {tool.name: tool for tool in TOOLS}
    call = call_tool(tools, "search", {"relation": "capital", "entity": "tal vor"})
    assert not call.failed
    wrong = call_tool(tools, "search", {"where": "here", "entity": "tal vor"})
    turns = written_turns(AgentTrajectory("rum tir", (turn("a", wrong), turn("a", call), turn("rum tir"))), TOOLS)
    assert [written.text.splitlines()[1] for written in turns[:2]] == [
        "Action: search[ tal vor ; here ]",
        "Action: search[ tal vor ; capital ]",
    ]


def test_an_attempt_without_an_answer_is_a_failure():
    attempt = stored_attempt(TASK, TOOLS, AgentTrajectory(None, (turn("a", FOUND),), "turn_limit"), 0.0)
    assert attempt.completion.rstrip() == "Thought: nothing\nAnswer:" and attempt.success == 0.0


def test_a_demonstration_that_an_agent_repeats_is_its_own_row():
    """A teacher that does what the world demonstrates writes the world's row, word for word, and succeeds."""
    careful = HabitSettings(wrong_relation=0.0, take_redirect=0.0, stop_early=0.0, repeat_call=0.0)
    corpus = build(Tools(kinds={"chain_3": 1, "sum": 1, "several": 1}, train_tasks=20, test_tasks=2, habits=careful))
    world = corpus.environment
    for task, pair in zip(world.tasks("train"), corpus.train, strict=True):
        demonstration = world.demonstrate(task, NONE)
        turns = [turn(each.text, *([each.call] if each.call else [])) for each in demonstration.turns]
        trajectory = AgentTrajectory(demonstration.answer, tuple(turns))
        attempt = stored_attempt(task, world.tools(task, 0), trajectory, score(trajectory, task)["success"])
        assert (attempt.prompt, attempt.completion) == (pair.prompt, pair.chosen)
        assert attempt.success == 1.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("agent=[react,plan_execute]",), "the teacher is one agent=react"),
        (("agent=scratchpad",), "the teacher is one agent=react"),
        (("data=mini_hh",), "data=tools_catalogue"),
    ],
)
def test_what_a_teacher_cannot_be(overrides, message):
    with pytest.raises(ConfigError, match=message):
        planned("teacher_trajectories", *overrides)


def test_a_service_teaches_without_a_policy():
    stage = planned("teacher_trajectories", "agent.llm=anthropic", "agent.service.budget_usd=1")
    assert not stage.needs
    assert set(planned("teacher_trajectories").needs) == {"policy"}

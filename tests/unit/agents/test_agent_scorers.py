"""An attempt's scores: answer and calls separately, the flags between them, and the agents that bound them all."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlhf_lab.config import inventory, registry
from rlhf_lab.core.episodes import Task
from rlhf_lab.core.metrics import metric, names
from rlhf_lab.core.tools import Call, text_tool
from rlhf_lab.packs.agents.harness.agent import Assignment
from rlhf_lab.packs.agents.harness.metrics import ATTEMPTS
from rlhf_lab.packs.agents.harness.scorers import score
from rlhf_lab.packs.agents.harness.scripted import BEHAVIOURS, ScriptedAgent, guesses
from rlhf_lab.packs.agents.harness.settings import Scripted
from rlhf_lab.packs.agents.tools.bench.task_sets import AgentBenchMini, Generated
from rlhf_lab.packs.agents.tools.bench.templates import CATEGORIES
from rlhf_lab.packs.agents.tools.kinds import ALL_KINDS
from rlhf_lab.packs.agents.tools.settings import Tools
from rlhf_lab.packs.agents.tools.world import ToolWorld
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn

CANONICAL = AgentBenchMini(CATEGORIES)
SIBLINGS = Generated(per_task=20, seed=1)


def attempt(task: Task, answer: str | None, *calls: Call) -> dict[str, float]:
    turns = tuple(ModelTurn("agent", task.prompt, "", (call,), input_tokens=10, output_tokens=3) for call in calls)
    return score(AgentTrajectory(answer, turns, wall_s=0.5), task)


def task_of(id: str) -> Task:
    return next(task for task in CANONICAL.tasks("test") if task.metadata["id"] == id)


def search(entity: str, relation: str, result: str = "", *, failed: bool = False) -> Call:
    return Call("search", {"entity": entity, "relation": relation}, result, failed)


MAYOR = task_of("mayor_of_the_capital")
RIGHT_CALLS = (search("Velmora", "capital", "Ossin"), search("Ossin", "mayor", "Tine Aldou"))


def test_every_score_is_a_declared_metric():
    scores = attempt(MAYOR, None)
    assert set(scores) == names(ATTEMPTS)
    assert all(isinstance(value, float) for value in scores.values())
    assert (metric("answer_score").better, metric("extra_calls").better) == ("higher", "lower")


@pytest.mark.parametrize(
    ("answer", "calls", "expected"),
    [
        (
            "Tine Aldou.",
            RIGHT_CALLS,
            {"answer_score": 1, "success": 1, "sequence_score": 1, "calls_f1": 1, "extra_calls": 0, "lucky_guess": 0}
            | {"right_by_wrong_process": 0, "tool_calls": 2, "agent_input_tokens": 20, "agent_output_tokens": 6},
        ),
        ("Tine Aldou", (), {"success": 1, "lucky_guess": 1, "right_by_wrong_process": 1, "sequence_score": 0}),
        # two searches, as needed, but of nothing that helps: the tools are right, no needed call is among them
        (
            "Tine Aldou",
            (search("Karth", "mayor"), search("Tarrel", "mayor")),
            {"sequence_score": 1, "right_by_wrong_process": 1, "lucky_guess": 0},
        ),
        ("Ossin", RIGHT_CALLS, {"success": 0, "calls_f1": 1, "right_by_wrong_process": 0}),
    ],
    ids=("right", "guessed", "calls of other things", "wrong"),
)
def test_flags_between_answer_and_calls(answer, calls, expected):
    scores = attempt(MAYOR, answer, *calls)
    assert {name: scores[name] for name in expected} == expected
    assert scores["agent_wall_s"] == 0.5


def test_refusing_what_can_be_answered():
    scores = attempt(MAYOR, "I could not find the mayor of Velmora's capital", *RIGHT_CALLS)
    assert (scores["answer_score"], scores["refused_wrongly"], scores["no_answer"]) == (0, 1, 0)
    assert [attempt(MAYOR, nothing, *RIGHT_CALLS)["no_answer"] for nothing in (None, "", " \n")] == [1, 1, 1]


def test_a_refusal_may_repeat_what_the_tools_said_of_it():
    half = task_of("half_of_a_difference")
    calls = (search("Ostrel", "population", "2650"), search("Yarrick", "population", "no entry", failed=True))
    answer = "Ostrel has 2650 people, but there is no entry for Yarrick."
    assert attempt(half, answer, *calls)["answer_score"] == 1
    assert attempt(half, answer)["answer_score"] == 0  # without the search it is invented
    assert attempt(half, "Yarrick is not listed; the difference is 1200.", *calls)["answer_score"] == 0
    bridge = task_of("unknown_bridge")
    missing = search("Andrel Bridge", "builder", "no entry for Andrel Bridge", failed=True)
    other = search("Quillon Bridge", "builder", "Odo Frell")
    blamed = "No entry for the Andrel Bridge, perhaps it was Odo Frell."
    assert attempt(bridge, "There is no entry for the Andrel Bridge.", missing, other)["answer_score"] == 1
    assert attempt(bridge, blamed, missing, other)["answer_score"] == 0


def run(behaviour: str, tasks, seed: int = 0) -> list[dict[str, float]]:
    assignments = [Assignment(task, tuple(tasks.tools(task, seed))) for task in tasks.tasks("test")]
    trajectories = ScriptedAgent(behaviour, seed).run_many(assignments, lambda position, trajectory: None)
    return [score(trajectory, job.task) for trajectory, job in zip(trajectories, assignments, strict=True)]


@pytest.mark.parametrize("tasks", [CANONICAL, AgentBenchMini(), SIBLINGS], ids=["all", "mini", "siblings"])
def test_always_refusing_scores_the_share_of_refusals(tasks):
    metadata = [task.metadata for task in tasks.tasks("test")]
    is_refusal = np.array([fact["scorer"] == "refusal" for fact in metadata])
    answers = np.array([scores["answer_score"] for scores in run("always_refuse", tasks)])
    assert (answers == is_refusal).all()
    assert 0.05 < is_refusal.mean() < 0.15


def test_random_calls_are_worth_little_but_the_sequence_alone_does_not_say_so():
    scores = run("random_tools", SIBLINGS)
    means = {name: np.mean([each[name] for each in scores]) for name in scores[0]}
    assert means["success"] < 0.1
    assert means["calls_f1"] < 0.2
    # of few tools a random one is often the needed one: compare a sequence score with this, not with 0
    assert 0.3 < means["sequence_score"] < 0.65
    assert means["tool_calls"] > 1


def test_every_score_lies_between_the_bounds():
    oracle = run("oracle", CANONICAL)
    for behaviour in BEHAVIOURS:
        for best, scores in zip(oracle, run(behaviour, CANONICAL), strict=True):
            for name in ("answer_score", "sequence_score", "calls_f1", "arguments_score"):
                assert 0 <= scores[name] <= best[name] == 1


def test_scripted_agents_are_the_same_every_time():
    first, again, other = (run("random_tools", CANONICAL, seed) for seed in (0, 0, 1))
    for scores in (*first, *again, *other):
        scores.pop("agent_wall_s")
    assert first == again != other
    identity = ScriptedAgent("random_tools", 3).identity
    assert json.loads(json.dumps(identity)) == {"agent": "scripted", "behaviour": "random_tools", "seed": 3}


def test_a_task_that_hides_its_fixture_is_guessed_from_its_question():
    metadata = {key: value for key, value in MAYOR.metadata.items() if key != "fixture"}
    assert guesses(metadata) == ["Who", "is", "the", "mayor", "of", "capital", "Velmora"]


@pytest.mark.parametrize("behaviour", list(BEHAVIOURS))
def test_each_behaviour_can_be_chosen(behaviour):
    chosen = inventory.read_yaml(inventory.option_files("agent")[behaviour])
    assert chosen == {"kind": "scripted", "behaviour": behaviour}
    settings = Scripted(behaviour=behaviour, seed=4)
    assert registry.build("agent", settings, None) == ScriptedAgent(behaviour, 4)
    assert not settings.asks_model


def test_the_oracle_gives_no_answer_that_its_tools_have_not_shown():
    """Else it would be right without them, and bound nothing."""
    empty = text_tool("search", "Looks up.", {"entity": "what", "relation": "of it"}, lambda **_: "nothing")
    jobs = [Assignment(MAYOR, tools) for tools in ((empty,), tuple(CANONICAL.tools(MAYOR, 0)))]
    blind, seeing = ScriptedAgent("oracle").run_many(jobs, lambda position, trajectory: None)
    assert [call.result for call in blind.calls] == ["nothing", "nothing"]
    assert blind.answer == f"I could not find this: {MAYOR.metadata['question']}"
    # turns are written as a model would write them
    calls = ["Action: search[Velmora ; capital]", "Action: search[Ossin ; mayor]"]
    assert [turn.text for turn in seeing.turns] == [*calls, "Answer: Tine Aldou"]
    assert seeing.stop == "answered"


def test_the_oracle_solves_every_kind_of_the_tool_world():
    """Also `several`, whose answer is a list of two results, and `compare`, whose answer is an entity."""
    world = ToolWorld(Tools(kinds=dict.fromkeys(ALL_KINDS, 1.0), test_tasks=2 * len(ALL_KINDS)))
    tasks = world.tasks("test")
    jobs = [Assignment(task, tuple(world.tools(task, 0))) for task in tasks]
    trajectories = ScriptedAgent("oracle").run_many(jobs, lambda position, trajectory: None)
    scored = zip(tasks, trajectories, strict=True)
    assert [task.metadata["id"] for task, trajectory in scored if not score(trajectory, task)["success"]] == []


def test_draws_of_random_calls_differ_and_answer_with_what_any_of_them_gave():
    jobs = [Assignment(MAYOR, tuple(CANONICAL.tools(MAYOR, draw)), draw) for draw in range(40)]
    done: list[int] = []
    trajectories = ScriptedAgent("random_tools").run_many(jobs, lambda position, trajectory: done.append(position))
    assert done == list(range(40))
    assert len({str(trajectory.calls) for trajectory in trajectories}) > 1
    positions = set()
    for trajectory in trajectories:
        results = [call.result for call in trajectory.calls]
        assert trajectory.answer in results
        positions.add(results.index(trajectory.answer))
    assert positions == {0, 1, 2, 3}

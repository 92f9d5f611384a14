"""The tool world: every kind of task can be solved by its tools, knows its answer, and is new in the test split."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.tools import ToolError, call_tool, text_tool
from rlhf_lab.data.text_calls import read_move
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.agents.harness.answer_scores import score_answer
from rlhf_lab.packs.agents.tools.bases import SYLLABLES, draw_base, draw_names, draw_paired_bases, names_of
from rlhf_lab.packs.agents.tools.demonstrations import NONE
from rlhf_lab.packs.agents.tools.kinds import ALL_KINDS, UNKNOWN
from rlhf_lab.packs.agents.tools.knowledge import BUSY, flaky
from rlhf_lab.packs.agents.tools.roles import ROLES, spaced_call
from rlhf_lab.packs.agents.tools.settings import HabitSettings, Tools
from rlhf_lab.packs.agents.tools.tools import build
from rlhf_lab.packs.agents.tools.world import DEMONSTRATED, ToolWorld, is_right

SLOPPY = HabitSettings(wrong_relation=0.3, take_redirect=0.6, stop_early=0.3, repeat_call=0.3)
EACH = 12
"""Tasks of each kind in the catalogue's tests."""


WORLD = Tools(kinds=dict.fromkeys(ALL_KINDS, 1.0), train_tasks=150, test_tasks=EACH * len(ALL_KINDS), seed=3)


@pytest.fixture(scope="module")
def world() -> ToolWorld:
    return ToolWorld(WORLD)


def play(world: ToolWorld, task: Task, turns: list[str], seed: int = 0) -> tuple[list[str], float]:
    """Return the outputs of the tools, and the reward, for these turns."""
    state = world.reset(task, seed)
    text, reward = [], 0.0
    for turn in turns:
        step = world.step(state, turn)
        text += [message["content"] for message in step.messages]
        reward += step.reward
        if step.done:
            break
    return text, reward


# the catalogue


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_shortest_calls_reach_the_answer(world, kind):
    """Fact by fact, in words: `facts.calls` through the tools, then the answer, is worth 1."""
    tasks = [task for task in world.tasks("test") if task.metadata["category"] == kind]
    assert tasks
    for task in tasks:
        tools = {tool.name: tool for tool in world.tools(task, seed=11)}
        for call in task.metadata["calls"]:
            generated = call_tool(tools, call["name"], call["arguments"])
            for _ in range(30):  # the kind `flaky` is busy three times in ten
                if generated.result != BUSY:
                    break
                generated = call_tool(tools, call["name"], call["arguments"])
            assert generated.result != BUSY
        refused = task.metadata["scorer"] == "refusal"
        assert generated.failed == refused, (task.metadata["question"], generated)
        if kind.startswith(("chain", "lookup", "long", "redirected", "twice", "sum", "difference", "table", "flaky")):
            assert generated.result == task.metadata["answer"], "the last call gives the answer"
        demonstration = world.demonstrate(task, NONE)
        turns = [turn.text for turn in demonstration.turns]
        assert is_right(task.metadata, demonstration.answer)
        text, reward = play(world, task, turns, seed=DEMONSTRATED)
        assert reward == 1.0
        assert text == [turn.call.result for turn in demonstration.turns if turn.call]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_who_refuses_or_guesses_gets_what_chance_gives(world, kind):
    tasks = [task for task in world.tasks("test") if task.metadata["category"] == kind]
    assert len(tasks) == EACH
    refusals = [is_right(task.metadata, UNKNOWN) for task in tasks]
    assert all(refusals) == any(refusals) == kind.startswith("missing")
    names = ["tal vor", "12", "", "yes"]
    guesses = [is_right(task.metadata, name) for task in tasks for name in names]
    assert sum(guesses) <= 3, "an amount may be guessed"


@pytest.mark.parametrize("kind", ["missing_entity", "missing_relation"])
def test_an_agent_may_name_what_is_missing(world, kind):
    """Agents with instructions are told to say what is missing; the word of the demonstrations is not in them."""
    task = next(task for task in world.tasks("test") if task.metadata["category"] == kind)
    (step,) = task.metadata["calls"]
    tools = {tool.name: tool for tool in world.tools(task, 0)}
    call = call_tool(tools, step["name"], step["arguments"])
    assert call.failed
    entity = step["arguments"]["entity"]
    for answer in (UNKNOWN, call.result, f"I could not find {entity}."):
        assert score_answer(answer, task.metadata, known=[call.result]) == 1
    for answer in ("I could not find it.", entity, f"I could not find {entity}, but it is 12."):
        assert score_answer(answer, task.metadata, known=[call.result]) == 0


def test_the_steps_of_each_kind(world):
    """Calls of the oracle: one for each hop, one more for each redirect on the way."""
    calls: dict[str, list[int]] = {}
    for task in world.tasks("test"):
        calls.setdefault(task.metadata["category"], []).append(len(task.metadata["calls"]))
    assert min(calls["lookup"]) == 1 and min(calls["chain_3"]) == 3
    assert min(calls["redirected"]) == 3 and min(calls["twice_redirected"]) == 4
    assert min(calls["long_chain"]) >= 6 and max(calls["long_chain"]) > 6
    assert set(calls["table"]) == {3} and set(calls["missing_relation"]) <= {1, 2}
    assert min(calls["sum"]) == 3 and max(calls["compare"]) <= 4


def test_two_sources_contradict_each_other(world):
    tasks = [task for task in world.tasks("test") if task.metadata["category"] == "conflicting"]
    assert tasks
    for task in tasks:
        tools = {tool.name: tool for tool in world.tools(task, 0)}
        selected = world.draw("test", task.metadata["number"])
        truth = selected.base.truth
        ((name, relation),) = [call["arguments"].values() for call in task.metadata["calls"][:1]]
        assert call_tool(tools, "archive", {"entity": name, "relation": relation}).result != truth[name][relation]
        assert f"The {task.metadata['calls'][-1]['name']} is right" in task.metadata["question"]


def test_a_base_has_its_facts_under_one_name():
    base = draw_base(Random(1), "train", Tools(redirect=0.5), moves=2)
    assert len(base.links) == 4 and len(base.amounts) == 1
    start = base.entities[0]
    once = base.knowledge.moved[start]
    twice = base.knowledge.moved[once]
    assert base.knowledge.facts[twice] == base.truth[start] and start not in base.knowledge.facts
    assert len(base.knowledge.facts) == 10
    for facts in base.truth.values():
        assert all(facts[relation] in base.truth for relation in base.links)


# names, splits and seeds


def test_names_of_the_test_split_are_new():
    train, test = set(names_of("train")), set(names_of("test"))
    assert not train & test and len(train) + len(test) == len(SYLLABLES) * (len(SYLLABLES) - 1)
    assert 0.1 < len(test) / (len(train) + len(test)) < 0.2


def test_no_syllable_stands_in_two_names():
    for seed in range(20):
        first, second = draw_paired_bases(Random(seed), "test")
        assert first.split()[0] == second.split()[0] and first != second
        names = draw_names(Random(seed), 22, "test", (first, second))
        syllables = [syllable for name in names for syllable in name.split()]
        assert len(set(syllables)) == 44
        assert set(first.split() + second.split()).isdisjoint(syllables)
    with pytest.raises(ValueError, match="25 names without a common syllable are too many; the limit is 24"):
        draw_names(Random(0), 25, "test")


def test_tasks_of_the_splits_share_no_name(world):
    mentioned: dict[str, set[str]] = {}
    for split in ("train", "test"):
        text = " ".join(f"{task.metadata['question']} {task.metadata['answer']}" for task in world.tasks(split))
        words = re.findall(r"[a-z]+", text)
        pairs = {f"{a} {b}" for a, b in pairwise(words) if a in SYLLABLES and b in SYLLABLES}
        mentioned[split] = {pair for pair in pairs if tuple(pair.split()) in names_of(split)}
    assert len(mentioned["train"]) > 100 and not mentioned["train"] & mentioned["test"]
    prompts = [task.prompt for split in ("train", "test") for task in world.tasks(split)]
    assert len(set(prompts)) > 0.95 * len(prompts)


def test_the_same_seed_gives_the_same_world(world):
    again = ToolWorld(WORLD)
    assert again.tasks("train") == world.tasks("train")
    other = ToolWorld(replace(WORLD, seed=4))
    assert other.tasks("train")[0].prompt != world.tasks("train")[0].prompt
    fixed_test = ToolWorld(replace(WORLD, seed=4, test_seed=3))
    assert fixed_test.tasks("test") == world.tasks("test")
    with pytest.raises(ValueError, match="split 'dev' is unknown"):
        world.tasks("dev")


def test_test_tasks_go_through_the_kinds_in_turn():
    world = ToolWorld(Tools(kinds={"lookup": 1, "chain_2": 3, "sum": 0}, train_tasks=200, test_tasks=6))
    assert [task.metadata["category"] for task in world.tasks("test")] == ["lookup", "chain_2"] * 3
    counts = Counter(task.metadata["category"] for task in world.tasks("train"))
    assert counts["sum"] == 0 and 100 < counts["chain_2"] < 190
    longer = ToolWorld(Tools(kinds={"lookup": 1}, test_tasks=2, test_kinds=("chain_6",)))
    assert {task.metadata["category"] for task in longer.tasks("test")} == {"chain_6"}


# the environment


def test_what_a_turn_gives():
    world = ToolWorld(Tools(kinds={"lookup": 1}, redirect=0.0, train_tasks=1))
    task = world.tasks("train")[0]
    (call,) = task.metadata["calls"]
    state = world.reset(task, 0)
    text = world.step(state, f"Thought: need it\nAction: {spaced_call(call['name'], list(call['arguments'].values()))}")
    assert not text.done and text.reward == 0
    assert text.messages == [{"role": "tool", "content": task.metadata["answer"]}]
    nonsense = world.step(state, "hello")
    assert not nonsense.done and nonsense.messages[0]["content"].startswith("error: write Action:")
    unknown = world.step(state, "Action: fly[ home ]")
    assert "there is no tool 'fly'" in unknown.messages[0]["content"]
    right = world.step(state, f"Answer: {task.metadata['answer']}")
    assert right.done and right.reward == 1.0 and not right.messages
    wrong = world.step(state, "Answer: somebody else")
    assert wrong.done and wrong.reward == 0.0


def graded(task: Task, turns: int, response: str) -> Episode:
    segments = tuple(Segment([1], sampled=True) for _ in range(turns))
    return Episode(task, task.prompt, response, [], segments)


def test_grades_count_calls_and_right_answers(world):
    task = world.tasks("test")[0]
    right = graded(task, 3, f"Thought: x\nAnswer: {task.metadata['answer']}")
    wrong = graded(task, 2, "Answer: nobody")
    cut = graded(task, 2, "Thought: x\nAction: search[ a")
    grades = world.grade([right, wrong, cut])
    assert grades["correct"].tolist() == [1, 0, 0] and grades["gold"].tolist() == [1, 0, 0]
    assert grades["calls"].tolist() == [2, 1, 2]


# tools that fail


def outcomes(fails: float, seed: int, calls: int) -> list[bool]:
    """Return, for each of `calls` calls of a flaky tool, True if it worked."""
    tool = flaky(text_tool("echo", "Repeats.", {"text": "what"}, lambda text: text), fails, seed)
    worked = []
    for _ in range(calls):
        try:
            tool.run(text="x")
            worked.append(True)
        except ToolError as error:
            assert str(error) == BUSY
            worked.append(False)
    return worked


def test_a_flaky_tool_is_busy_as_often_as_it_should_and_equal_calls_have_equal_luck():
    assert np.mean(outcomes(0.2, seed=1, calls=4000)) == pytest.approx(0.8, abs=0.03)
    assert all(outcomes(0.0, seed=1, calls=20))
    first, again, other = (outcomes(0.5, seed, calls=40) for seed in (1, 1, 2))
    assert first == again != other


# demonstrations


def test_every_turn_of_a_demonstration_can_be_read(world):
    turns = 0
    for task in world.tasks("train"):
        demonstration = world.demonstrate(task, SLOPPY)
        tools = {tool.name: tool for tool in world.tools(task, 0)}
        *calling, last = demonstration.turns
        turns += len(calling)
        for turn in calling:
            move = read_move(turn.text, tools)
            assert turn.call is not None and move.name == turn.call.name
            assert list((move.arguments or {}).values()) == list(turn.call.arguments.values())
        assert read_move(last.text, tools).answer == demonstration.answer and last.call is None
    assert turns >= 20


def test_habits_happen_as_often_as_they_should():
    world = ToolWorld(Tools(kinds={"lookup": 1}, redirect=0.5, train_tasks=1200))
    tasks = world.tasks("train")
    moved = [task for task in tasks if len(task.metadata["calls"]) == 2]
    taken = [world.demonstrate(task, replace(NONE, take_redirect=0.6)) for task in moved]
    assert np.mean([len(d.turns) == 2 for d in taken]) == pytest.approx(0.6, abs=0.06)
    straight = [task for task in tasks if len(task.metadata["calls"]) == 1]
    swapped = [world.demonstrate(task, replace(NONE, wrong_relation=0.1)) for task in straight]
    right = [is_right(task.metadata, d.answer) for task, d in zip(straight, swapped, strict=True)]
    assert np.mean(right) == pytest.approx(0.9, abs=0.04)
    repeated = [world.demonstrate(task, replace(NONE, repeat_call=0.2)) for task in straight]
    assert np.mean([len(d.turns) - 2 for d in repeated]) == pytest.approx(0.25, abs=0.06), ".2 + .04 + …"
    chains = ToolWorld(Tools(kinds={"chain_2": 1}, redirect=0.0, train_tasks=1000))
    early = [chains.demonstrate(task, replace(NONE, stop_early=0.3)) for task in chains.tasks("train")]
    assert np.mean([len(d.turns) == 2 for d in early]) == pytest.approx(0.3, abs=0.05)


# the corpus


SMALL = {"train_tasks": 300, "test_tasks": 30}


def test_notes_say_how_far_a_demonstration_is(world):
    """Who sees the question and the notes alone can know what comes next, also where a chain repeats a relation."""
    for task in world.tasks("test"):
        text: dict[str, str] = {}
        for turn in world.demonstrate(task, NONE).turns:
            assert text.setdefault(turn.notes, turn.text) == turn.text, task.metadata["question"]


def test_notes_of_a_chain_name_the_relations_that_are_left():
    world = ToolWorld(Tools(kinds={"chain_4": 1}, redirect=0.0, test_tasks=1, seed=3))
    (task,) = world.tasks("test")
    first, second, third, fourth = (step.relation for step in world.draw("test", 0).steps)
    turns = world.demonstrate(task, NONE).turns
    values = [turn.call.result for turn in turns[:-1]]
    assert [turn.notes for turn in turns] == [
        "",
        f"{first} {values[0]}; left {second}, {third}, {fourth}",
        f"{second} {values[1]}; left {third}, {fourth}",
        f"{third} {values[2]}; left {fourth}",
        f"{fourth} {values[3]}",
    ]


def test_the_rows_are_conversations_whose_turns_are_learned():
    corpus = build(Tools(**SMALL, seed=0))
    assert len(corpus.train) == 300 and not corpus.preferences and corpus.environment is not None
    assert corpus.tasks("test")[0].metadata["category"] == "lookup"
    for pair in corpus.train[:50]:
        roles = [message["role"] for message in to_messages(pair.prompt)]
        assert roles == ["user"] + ["assistant", "tool"] * pair.meta["calls"]
        assert pair.meta["learn_from"] == 1 and "Answer:" in pair.chosen
    statistics = corpus.report["train"].statistics
    fraction = np.mean([pair.meta["correct_chosen"] for pair in corpus.train])
    assert statistics["share of demonstrations with the right answer"] == pytest.approx(fraction)
    assert 0.35 < fraction < 0.7


def test_the_fingerprint_changes_with_content_and_settings():
    prints = [
        build(Tools(**{**SMALL, "train_tasks": 40}, **more)).fingerprint
        for more in ({"seed": 0}, {"seed": 0}, {"seed": 1}, {"seed": 0, "turns": 8}, {"seed": 0, "redirect": 0.5})
    ]
    assert prints[0] == prints[1] and len(set(prints)) == 4


def test_every_role_has_rows_that_its_prompt_asks_for():
    roles = dict.fromkeys(ROLES, 1.0)
    kinds = {"lookup": 1.0, "chain_2": 1.0, "sum": 1.0, "several": 1.0}
    corpus = build(Tools(train_tasks=700, test_tasks=8, roles=roles, kinds=kinds, seed=0))
    by_role: dict[str, list[Any]] = {}
    for pair in corpus.train:
        by_role.setdefault(pair.meta["role"], []).append(pair)
    assert set(by_role) == set(ROLES)
    starts = {"answer": "Reply: ", "plan": "Plan: ", "split": "Split: ", "step": "Step: ", "note": "Note: ",
              "combine": "Combine: "}  # fmt: skip
    for role, start in starts.items():
        for pair in by_role[role]:
            (message,) = to_messages(pair.prompt)
            assert message["content"].startswith(start) and pair.meta["correct_chosen"] == 1
    plan = next(pair for pair in by_role["plan"] if pair.meta["category"] == "chain_2")
    assert re.fullmatch(r"1\. search\[ \w+ \w+ ; \w+ \]\n2\. search\[ #1 ; \w+ \]", plan.chosen)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"kinds": {"chain_99": 1.0}}, r"kinds: chain_99 is not one of lookup, .*did you mean chain_9"),
        ({"kinds": {"lookup": 0.0}}, "set a weight above 0 for at least one of them"),
        ({"test_kinds": ("chains",)}, "test_kinds: chains is not one of"),
        ({"roles": {"act": 1.0, "sing": 1.0}}, "roles: sing is not one of act"),
    ],
)
def test_settings_that_make_no_world_are_refused(settings, problem):
    with pytest.raises(ValueError, match=problem):
        Tools(**settings)


def test_who_combines_computes_first():
    """From the parts of a sum one more call; from that call's result too, the answer."""
    combining = {"roles": {"combine": 1.0}, "kinds": {"sum": 1.0}, "redirect": 0.0}
    plan, parts, *_ = build(Tools(train_tasks=20, test_tasks=2, seed=0, **combining)).train
    found = re.findall(r"Found: (\d+); (\d+)(; \d+)?\.", plan.prompt)[0]
    total = int(found[0]) + int(found[1])
    assert found[2] == f"; {total}" and plan.chosen == f"Answer: {total}"
    assert f"Found: {found[0]}; {found[1]}." in parts.prompt
    assert parts.chosen.endswith(f"Action: calculate[ {found[0]} + {found[1]} ]")

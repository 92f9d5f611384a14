"""The world of repairs: an interpreter that agrees with Python, bugs as their tiers say, answers that a run gives."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from rlhf_lab.core.episodes import Demonstrating, Environment, Episode, Segment, Task
from rlhf_lab.data.transcript import to_messages
from rlhf_lab.packs.code.repairs.bugs import (
    HIDDEN_INPUTS,
    LEAST_DIFFERENT,
    BuggyProgram,
    draw_buggy_program,
    is_right,
    slots_of,
)
from rlhf_lab.packs.code.repairs.interpreter import ProgramError, run
from rlhf_lab.packs.code.repairs.programs import (
    RepairProgram,
    comment_of,
    draw_inputs,
    draw_program,
    number_as_words,
    spell_inputs,
    split_line,
)
from rlhf_lab.packs.code.repairs.repairs import build
from rlhf_lab.packs.code.repairs.runs import (
    DONE,
    MOST_TRIES,
    PASSES,
    UNREADABLE,
    answer_to,
    demonstrate,
    read_changes,
    write_changes,
    wrong_try,
)
from rlhf_lab.packs.code.repairs.settings import Repairs
from rlhf_lab.packs.code.repairs.world import ROUNDS, TIERS, RepairWorld

PROGRAM = RepairProgram((("c", "=", "a", "+", "3"), ("for", "x", "in", "v", ":", "c", "=", "c", "-", "x")), "c")
INPUTS = {"a": 2, "b": 5, "v": [4, 6]}
SIZE = Repairs(train_tasks=150, test_tasks=150, seed=3)


@pytest.fixture(scope="module")
def world() -> RepairWorld:
    return RepairWorld(SIZE)


def to_python(program: RepairProgram) -> str:
    """The same program in Python."""
    lines = []
    for line in program.lines:
        head, body = split_line(line)
        target, _, *expression = body
        if len(expression) == 3 and expression[1] in ("min", "max"):
            expression = [f"{expression[1]}({expression[0]}, {expression[2]})"]
        lines.append(" ".join([*head, target, "=", *expression]))
    body_text = "".join(f"    {line}\n" for line in lines)
    return f"def program(a, b, v):\n{body_text}    return {program.result}\n"


def run_python(program: RepairProgram, inputs: dict[str, Any]) -> Any:
    namespace: dict[str, Any] = {}
    exec(to_python(program), namespace)
    return namespace["program"](**inputs)


@pytest.mark.parametrize("kind", ["int", "float"])
def test_a_run_gives_what_python_gives(kind):
    """300 programs, on lists of length 0 to 3, with integers and with other numbers."""
    rng = Random(0)
    for _ in range(300):
        program = draw_program(rng, rng.randint(2, 4))
        inputs = draw_inputs(rng)
        inputs["v"] = inputs["v"][: rng.randint(0, 3)]
        if kind == "float":
            inputs = {"a": inputs["a"] / 4, "b": inputs["b"] - 0.5, "v": [number / 2 for number in inputs["v"]]}
        result = run(program, inputs)
        assert result == run_python(program, inputs) and type(result) is type(run_python(program, inputs))


def test_a_run_of_a_buggy_program_stops_where_python_stops():
    rng = Random(1)
    for _ in range(200):
        task = draw_buggy_program(rng, 1, (2, 3))
        slot = task.slots[0]
        with pytest.raises(NameError) as stopped:
            run_python(task.buggy, dict(task.example))
        with pytest.raises(ProgramError) as error:
            run(task.buggy, task.example)
        name = task.buggy.lines[slot.line][slot.position]
        assert error.value.line == slot.line and error.value.problem == f"{name} is not defined"
        assert f"'{name}'" in str(stopped.value)


NO_LINES = [
    tuple(text.split())
    for text in (
        *("", ":", "c = a +", "c + 3", "3 = a", "v = a", "q = a", "c = a ^ 3", "if a : c = a"),
        *("for x in a : c = x", "for c in v : c = x", "if a > : c = a", "if a > 3 : c", f"c = a * {'9' * 4400}"),
    )
]


def test_what_no_program_may_do():
    assert run(PROGRAM, INPUTS) == 2 + 3 - 4 - 6
    for line in NO_LINES:
        with pytest.raises(ProgramError, match="line 1 : is no line of the language"):
            run(PROGRAM.replaced({0: line}), INPUTS)
    for operator in "+*":
        with pytest.raises(ProgramError, match="line 1 : a list is no number"):
            run(PROGRAM.replaced({0: ("c", "=", "v", operator, "3")}), INPUTS)
    squares = ("for", "x", "in", "v", ":", "c", "=", "c", "*", "c")
    with pytest.raises(ProgramError, match="line 2 : the number is too large"):
        run(PROGRAM.replaced({0: ("c", "=", "999999", "*", "999999"), 1: squares}), INPUTS)
    with pytest.raises(ProgramError, match="line 3 : c is not defined"):
        run(PROGRAM.replaced({0: ("d", "=", "a"), 1: ("e", "=", "d")}), INPUTS)


def test_words():
    assert comment_of(PROGRAM.lines[0]) == "plus 3" and comment_of(PROGRAM.lines[1]) == "minus x"
    assert comment_of(("if", "c", ">", "b", ":", "c", "=", "c", "min", "2")) == "smaller 2 above b"
    assert number_as_words(-12) == "- 12" and spell_inputs(INPUTS) == "a 2 , b 5 , v 4 6"


@pytest.mark.parametrize("tier", TIERS)
def test_a_bug_does_what_its_tier_says(tier):
    rng = Random(tier)
    for _ in range(150):
        task = draw_buggy_program(rng, tier, (2, 3))
        results = [run(task.right, inputs) for inputs in task.hidden]
        assert len(results) == HIDDEN_INPUTS and len(set(results)) > 1
        assert is_right(task.right, task) and not is_right(task.buggy, task)
        lines = zip(task.right.lines, task.buggy.lines, strict=True)
        changed = [sum(x != y for x, y in zip(right, buggy, strict=True)) for right, buggy in lines]
        assert sum(changed) == len(task.slots) == (2 if tier == 3 else 1) and max(changed) == 1
        shown, *unseen = task.slots
        answer = answer_to(task, {})
        if tier == 1:
            assert answer.startswith(f"line {shown.line + 1} : ") and answer.endswith("is not defined")
        else:
            assert answer.startswith("gives ") and (" too low" in answer or " too high" in answer)
        for slot in unseen:
            repaired_first = {shown.line: task.right.lines[shown.line]}
            assert answer_to(task, repaired_first) == PASSES, "the example does not show it"
            left = task.buggy.replaced(repaired_first)
            differing = sum(run(left, inputs) != result for inputs, result in zip(task.hidden, results, strict=True))
            assert differing >= LEAST_DIFFERENT and slot.line != shown.line, "hidden inputs do"
        assert is_right(task.buggy.replaced(task.repair()), task)


def test_slots_are_operands_and_signs():
    words = [(slot.line, PROGRAM.lines[slot.line][slot.position], slot.kind) for slot in slots_of(PROGRAM)]
    assert words == [
        (0, "a", "name"), (0, "+", "operator"), (0, "3", "number"),
        (1, "c", "name"), (1, "-", "operator"), (1, "x", "name"),
    ]  # fmt: skip
    first, *_, last = slots_of(PROGRAM)
    assert set(first.words) == set("cdef") and set(last.words) == set("def"), "c is defined by then"


def test_replies_that_can_be_read():
    changes = {1: ("c", "=", "a"), 0: ("d", "=", "b", "+", "1")}
    assert write_changes(changes) == "line 2 : c = a\nline 1 : d = b + 1"
    assert read_changes(write_changes(changes), 2) == changes
    wrong = ("", "line 3 : c = a", "line 0 : c = a", "c = a", "line 1 : c = a\nand so on", "line x : c = a")
    for response in (*wrong, f"line {'1' * 4400} : c = a"):
        assert read_changes(response, 2) is None, response


def task_of(example: dict[str, Any], hidden: tuple[dict[str, Any], ...]) -> BuggyProgram:
    """The program above with a 5 where the 3 should be."""
    (slot,) = [slot for slot in slots_of(PROGRAM) if slot.kind == "number"]
    buggy = PROGRAM.replaced({0: ("c", "=", "a", "+", "5")})
    return BuggyProgram(2, PROGRAM, buggy, (slot,), example, run(PROGRAM, example), hidden)


def test_answers_say_what_the_example_gives():
    task = task_of(INPUTS, (INPUTS,))
    assert task.expected == -5
    assert answer_to(task, {}) == "gives - 3 , 2 too high"
    assert answer_to(task, {0: ("c", "=", "a", "+", "1")}) == "gives - 7 , 2 too low"
    assert answer_to(task, {0: ("c", "=", "a", "+", "3")}) == PASSES
    assert answer_to(task, {0: ("c", "=", "f", "+", "3")}) == "line 1 : f is not defined"
    assert answer_to(task, {0: ("c", "=", "v"), 1: ("d", "=", "b")}) == "gives a list"


def test_hidden_inputs_decide():
    """Always 5 passes the example and not what is hidden."""
    task = task_of({"a": 2, "b": 5, "v": []}, ({"a": 3, "b": 5, "v": []},))
    changes = {0: ("c", "=", "5")}
    assert answer_to(task, changes) == PASSES and not is_right(task.buggy.replaced(changes), task)


def play(world: RepairWorld, task: Task, responses: list[str], seed: int = 0) -> tuple[list[str], Episode]:
    """(output of the environment, the episode) for these responses."""
    state = world.reset(task, seed)
    text, segments = [], []
    for response in responses:
        step = world.step(state, response)
        text += [message["content"] for message in step.messages]
        segments.append(Segment([1], sampled=True, reward=step.reward))
        if step.done:
            break
    return text, Episode(task, task.prompt, response, [], tuple(segments))


def test_the_last_program_counts_and_every_round_is_graded(world):
    assert isinstance(world, Environment) and isinstance(world, Demonstrating)
    task = world.tasks("test")[0]
    program = world.program(task)
    right = write_changes(program.repair())
    wrong = write_changes({0: program.buggy.lines[0]})
    text, once = play(world, task, [wrong, right, DONE])
    assert text == [answer_to(program, {}), PASSES] and once.turns[-1].reward == 0
    _, broken = play(world, task, [right, wrong, right, wrong])
    _, unread = play(world, task, [right, "what now"])
    grades = world.grade([once, broken, unread])
    assert grades["correct"].tolist() == grades["gold"].tolist() == [1, 0, 1]
    assert grades["solved_within/1"].tolist() == [0, 1, 1]
    assert grades["solved_within/2"].tolist() == [1, 0, 1]
    assert grades["solved_within/6"].tolist() == [1, 0, 1]
    assert grades["gain_by_round/2"].tolist() == [1, -1, 0] and grades["calls"].tolist() == [2, 4, 2]
    text, _ = play(world, task, ["what now", f" {DONE} ", right])
    assert text == [UNREADABLE], "and done ends the episode"


def test_a_reply_changes_the_program_as_it_was_given(world):
    task = next(task for task in world.tasks("test") if task.metadata["category"] == "tier_3")
    program = world.program(task)
    one_by_one = [write_changes({line: words}) for line, words in program.repair().items()]
    _, episode = play(world, task, one_by_one)
    assert world.grade([episode])["correct"].tolist() == [0]


@pytest.mark.slow
def test_the_control_answers_with_another_task_s_run(world):
    own = RepairWorld(SIZE)
    other = RepairWorld(replace(SIZE, shown_run="other"))
    assert own.tasks("test") == other.tasks("test")
    same = 0
    for task in other.tasks("test"):
        program = other.program(task)
        wrong, right = write_changes({0: program.buggy.lines[0]}), write_changes(program.repair())
        (answer, passed), episode = play(other, task, [wrong, right])
        assert passed == PASSES and other.grade([episode])["correct"].tolist() == [1]
        assert answer != PASSES and (answer, passed) == tuple(play(other, task, [wrong, right])[0])
        assert ("is not defined" in answer) == (task.metadata["category"] == "tier_1"), "of the same tier"
        same += answer == answer_to(program, {})
    assert same < 0.15 * len(other.tasks("test"))


def test_prompts_have_the_program_its_comments_and_the_example():
    stated = RepairWorld(Repairs(told=1.0, train_tasks=1, test_tasks=30))
    untold = RepairWorld(Repairs(told=0.0, train_tasks=1, test_tasks=30))
    for world in (stated, untold):
        assert len(world.tasks("test")) == 30
        for task in world.tasks("test"):
            program = world.program(task)
            _, *lines, returned, example = to_messages(task.prompt)[0]["content"].splitlines()
            assert [line.split(" # ")[0] for line in lines] == [
                f"line {number} : {' '.join(words)}" for number, words in enumerate(program.buggy.lines, start=1)
            ]
            comments = {index: line.split(" # ")[1] for index, line in enumerate(lines) if " # " in line}
            unseen = {slot.line for slot in program.slots[1:]}
            assert set(comments) == (set(range(len(lines))) if world is stated else unseen)
            assert all(text == comment_of(program.right.lines[number]) for number, text in comments.items())
            assert returned == f"return {program.right.result}"
            assert example == f"{spell_inputs(program.example)} : {number_as_words(program.expected)}"


def random_words(world: RepairWorld, task: Task, rng: Random) -> Episode:
    """As many words as there are bugs replaced by others of their kind, up to six times, until the example passes."""
    program = world.program(task)
    responses: list[str] = []
    while len(responses) < ROUNDS[-1]:
        slots = rng.sample(slots_of(program.buggy), len(program.slots))
        # all names: one that is not defined repairs nothing
        words = [rng.choice("abcdef" if slot.kind == "name" else slot.words) for slot in slots]
        changed = {slot.line: program.buggy.lines[slot.line] for slot in slots}
        for slot, word in zip(slots, words, strict=True):
            changed[slot.line] = slot.put(changed[slot.line], word)
        responses.append(write_changes(changed))
        if answer_to(program, changed) == PASSES:
            break
    return play(world, task, [*responses, DONE])[1]


def test_the_oracle_repairs_at_once_and_random_words_seldom(world):
    """The bound that a gain is compared with: trying again without reading more than whether it passes."""
    rng = Random(0)
    tasks = world.tasks("test")
    oracle = [play(world, task, [write_changes(world.program(task).repair()), DONE])[1] for task in tasks]
    assert all(world.grade(oracle)[f"solved_within/{largest}"].mean() == 1 for largest in ROUNDS)
    blind = world.grade([random_words(world, task, rng) for task in tasks])
    tiers = np.array([task.metadata["category"] for task in tasks])
    for tier, at_once, in_six in (("tier_1", 0.06, 0.25), ("tier_2", 0.12, 0.35), ("tier_3", 0.04, 0.08)):
        assert blind["solved_within/1"][tiers == tier].mean() <= at_once
        assert blind["solved_within/6"][tiers == tier].mean() <= in_six


def test_splits_and_seeds(world):
    prompts = {split: {task.prompt for task in world.tasks(split)} for split in ("train", "test")}
    assert not prompts["train"] & prompts["test"] and len(prompts["test"]) > 140
    again = RepairWorld(SIZE)
    task = again.tasks("train")[5]
    assert again.tasks("train") == world.tasks("train") and again.program(task) == world.program(task)
    assert RepairWorld(SIZE).program(task) == world.program(task), "drawn when it is asked for"
    other = RepairWorld(replace(SIZE, seed=4, test_seed=3))
    assert other.tasks("train")[0] != world.tasks("train")[0] and other.tasks("test") == world.tasks("test")
    assert [task.metadata["category"] for task in world.tasks("test")[:4]] == ["tier_1", "tier_2", "tier_3", "tier_1"]
    with pytest.raises(ValueError, match="split 'dev' is unknown"):
        world.tasks("dev")


def test_a_demonstration_reads_wrong_tries_and_ends_with_the_repair(world):
    assert len(world.tasks("train")) >= 10
    for task in world.tasks("train"):
        program = world.program(task)
        shown = demonstrate(program, Random(1), 0.9)
        assert len(shown.tries) <= MOST_TRIES and shown.learn_from == 2 * len(shown.tries)
        text = [message["content"] for message in shown.messages if message["role"] == "tool"]
        assert all(answer != PASSES for answer in text[:-1]) and text[-1] == PASSES
        responses = [message["content"] for message in shown.messages if message["role"] == "assistant"]
        answers, episode = play(world, task, responses)
        assert answers == text and responses[-1] == DONE and world.grade([episode])["correct"].tolist() == [1]
        assert world.demonstration(task) == shown.messages[shown.learn_from :]


def test_wrong_tries_are_of_the_kind_of_the_bug():
    rng = Random(5)
    in_place = []
    for _ in range(300):
        task = draw_buggy_program(rng, 2, (2, 3))
        changes = wrong_try(task, rng)
        if changes is None:
            continue
        assert "not defined" not in answer_to(task, changes)
        in_place.append(set(changes) == {task.slots[0].line})
    assert 0.45 < np.mean(in_place) < 0.85 and len(in_place) > 290


def test_demonstrations_revise_as_often_as_they_should():
    for revise, at_once in ((0.0, 1.0), (0.3, 0.7), (0.6, 0.4)):
        corpus = build(Repairs(train_tasks=600, test_tasks=6, revise=revise, seed=0))
        tries = np.array([pair.meta["tries"] for pair in corpus.train])
        assert np.mean(tries == 0) == pytest.approx(at_once, abs=0.06)
        fraction = corpus.report["train"].statistics["share of demonstrations that repair at once"]
        assert fraction == pytest.approx(np.mean(tries == 0))


def test_rows_are_learned_from_the_repair_on():
    corpus = build(Repairs(train_tasks=60, test_tasks=6, seed=0))
    assert len(corpus.train) == 60 and not corpus.preferences and corpus.environment is not None
    for pair in corpus.train:
        messages = to_messages(pair.prompt)
        learn_from = pair.meta["learn_from"]
        assert [message["role"] for message in messages] == ["user"] + ["assistant", "tool"] * (pair.meta["tries"] + 1)
        assert learn_from == 1 + 2 * pair.meta["tries"] and pair.chosen == DONE
        assert messages[learn_from + 1]["content"] == PASSES


def test_the_fingerprint_changes_with_content_and_settings():
    changes = ({}, {}, {"seed": 1}, {"turns": 5}, {"told": 0.2}, {"revise": 0.1}, {"shown_run": "other"})
    prints = [build(Repairs(**{"train_tasks": 20, "test_tasks": 6, "seed": 0, **more})).fingerprint for more in changes]
    assert prints[0] == prints[1] and len(set(prints)) == len(changes) - 1
    with pytest.raises(ValueError, match="min_lines=4 must not exceed max_lines=3"):
        Repairs(min_lines=4, max_lines=3)

"""The arithmetic world: stories and their splits, slips that propagate, and a reader that judges every step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.metrics import names
from rlhf_lab.data.arithmetic import build
from rlhf_lab.data.world_settings import ArithmeticData
from rlhf_lab.environments.arithmetic.problems import ArithmeticEvent, Problem, draw_problem, read_problem
from rlhf_lab.environments.arithmetic.solutions import SLIPS, Slip, read_solution, write_solution
from rlhf_lab.environments.arithmetic.world import MEASURES, ArithmeticWorld

DIALS = {"min_steps": 2, "max_steps": 4, "largest": 50, "slip": 0.15, "temperature": 0.2, "seed": 0}
EVENTS = (("+", 3, "finds {} more"), ("*", 2, "doubles that"), ("-", 4, "loses {}"))
KIM = Problem("Kim", "shells", 5, tuple(ArithmeticEvent(*event) for event in EVENTS))
PROMPT = (
    "\n\nHuman: Kim has 5 shells. Kim finds 3 more. Kim doubles that. Kim loses 4. "
    "How many shells does Kim have now?\n\nAssistant:"
)
SOLUTION = "5 + 3 = 8\n8 * 2 = 16\n16 - 4 = 12\n#### 12"


def rebuilt(**dials) -> ArithmeticWorld:
    return ArithmeticWorld(**(DIALS | dials))


WORLD = rebuilt()


@pytest.fixture(scope="module")
def pairs():
    return {split: WORLD.sample(count, split)[0] for split, count in (("train", 4000), ("test", 500))}


def grade(*responses: str, prompt: str = PROMPT) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in WORLD.measure([prompt] * len(responses), responses).items()}


def test_a_story_by_hand():
    assert KIM.text == PROMPT and write_solution(KIM) == SOLUTION
    assert (KIM.totals, KIM.answer, KIM.arithmetic) == ((5, 8, 16, 12), 12, "5+3*2-4")


@given(st.integers(0, 10**6), st.integers(10, 200))
def test_a_prompt_tells_its_problem_back(seed, largest):
    problem = draw_problem(np.random.default_rng(seed), min_steps=1, max_steps=6, largest=largest)
    assert read_problem(problem.text) == problem
    assert 1 <= len(problem.events) <= 6
    assert all(0 <= total <= largest for total in problem.totals)


@pytest.mark.parametrize(
    "prompt",
    [
        "What is love?",
        PROMPT.replace("Kim loses 4.", "Kim forgets 4."),
        PROMPT.replace("has 5", "has 05"),
        PROMPT.replace("loses 4", "loses 17"),  # below zero
        "",
    ],
)
def test_a_text_that_is_no_problem_says_so(prompt):
    with pytest.raises(DataError, match="the arithmetic world does not know the prompt"):
        WORLD.measure([prompt], ["#### 12"])


def test_the_splits_share_neither_prompts_nor_numbers(pairs):
    stories = {split: [read_problem(pair.prompt) for pair in found] for split, found in pairs.items()}
    for aspect in ("text", "arithmetic"):
        train, test = ({getattr(story, aspect) for story in stories[split]} for split in ("train", "test"))
        assert not train & test
    assert len({story.text for story in stories["train"]}) == 4000
    assert all(story.split == split for split, found in stories.items() for story in found)


def test_the_split_is_a_fixed_property_of_the_numbers():
    splits = [
        [Problem(name, noun, n, (ArithmeticEvent("+", 1, wording),)).split for n in range(40)]
        for name, noun, wording in (("Tom", "eggs", "gets {} more"), ("Kim", "toys", "finds {} more"))
    ]
    assert splits[0] == splits[1] and 1 <= splits[0].count("test") <= 12
    assert KIM.split == "test"  # a changed hash would silently move problems between the splits of stored artifacts


@pytest.mark.parametrize(
    ("slip", "solution", "labels", "computes"),
    [
        (Slip(0, "+", 3, 1), "5 + 3 = 9\n9 * 2 = 18\n18 - 4 = 14\n#### 14", [0, 0, 0], [0, 1, 1]),
        (Slip(1, "+", 2, 0), "5 + 3 = 8\n8 + 2 = 10\n10 - 4 = 6\n#### 6", [1, 0, 0], [1, 1, 1]),
        (Slip(2, "-", 6, 0), "5 + 3 = 8\n8 * 2 = 16\n16 - 6 = 10\n#### 10", [1, 1, 0], [1, 1, 1]),
    ],
    ids=["result", "operation", "operand"],
)
def test_a_slip_propagates(slip, solution, labels, computes):
    assert write_solution(KIM, slip) == solution
    seen = read_solution(KIM, solution)
    assert seen.labels == labels
    assert [int(step.computes) for step in seen.steps] == computes
    assert not seen.correct
    assert seen.garbled == ()


def test_every_rejected_reply_has_one_slip_that_propagates_to_a_wrong_answer(pairs):
    kinds: Counter[str] = Counter()
    for pair in pairs["train"]:
        problem = read_problem(pair.prompt)
        seen = read_solution(problem, pair.rejected)
        assert pair.rejected != pair.chosen
        assert seen.answer == str(seen.steps[-1].result) != str(problem.answer)
        assert not seen.garbled and len(seen.steps) == len(problem.events)
        first = seen.labels.index(0)
        assert seen.labels == [1] * first + [0] * (len(seen.labels) - first)
        assert all(a.result == b.left for a, b in zip(seen.steps, seen.steps[1:], strict=False))
        assert all(step.computes for i, step in enumerate(seen.steps) if i != first)
        assert all(0 <= step.result <= 50 for step in seen.steps)
        step, event = seen.steps[first], problem.events[first]
        kinds["result" if not step.computes else "operation" if step.operation != event.operation else "operand"] += 1
    for kind, fraction in SLIPS.items():
        assert kinds[kind] / 4000 == pytest.approx(fraction, abs=0.05)


@pytest.mark.parametrize("slip", [0.0, 0.15])
def test_demonstrations_slip_with_the_documented_probability(slip):
    found, _ = rebuilt(slip=slip).sample(2000, "train", seed=1)
    wrong = np.mean([not pair.meta["correct_chosen"] for pair in found])
    assert wrong == pytest.approx(slip, abs=4 * (slip * (1 - slip) / 2000) ** 0.5)
    for pair in found:
        assert (pair.chosen == write_solution(read_problem(pair.prompt))) == (0 not in pair.meta["steps_chosen"])


def test_pairs_carry_the_truth_about_their_steps(pairs):
    assert len(pairs["test"]) >= 20
    for pair in pairs["test"]:
        assert pair.meta["answer"] == str(read_problem(pair.prompt).answer)
        for side in ("chosen", "rejected"):
            seen = WORLD.read(pair.prompt, getattr(pair, side))
            assert pair.meta[f"steps_{side}"] == seen.labels
            assert pair.meta[f"correct_{side}"] == int(seen.correct)


def test_same_seed_same_pairs_and_prefix(pairs):
    assert rebuilt().sample(200, "train")[0] == pairs["train"][:200]
    assert WORLD.sample(200, "train", seed=1)[0] != pairs["train"][:200]
    assert rebuilt(seed=1).sample(200, "train")[0] != pairs["train"][:200]


def test_drawn_problems_are_accounted_for_until_the_world_is_used_up(monkeypatch):
    _, report = rebuilt(min_steps=1, max_steps=1, largest=10).sample(2500, "train")
    assert report.kept == 2500
    assert report.dropped["problem drawn before"] > 0
    assert report.rows == report.kept + sum(report.dropped.values())
    monkeypatch.setattr("rlhf_lab.environments.arithmetic.world.PATIENCE", 300)
    with pytest.raises(DataError, match=r"hardly more than \d+ test problems of 1…1 steps up to 10; request fewer"):
        rebuilt(min_steps=1, max_steps=1, largest=10).sample(100_000, "test")


def test_a_step_knows_its_line_and_where_it_ends():
    response = " 5 + 3 = 8 \n\n8 * 2 = 16\n#### 16"
    first, second = read_solution(KIM, response).steps
    assert (first.left, first.operation, first.operand, first.result) == (5, "+", 3, 8)
    assert response[: first.end] == " 5 + 3 = 8"
    assert response[: second.end] == " 5 + 3 = 8 \n\n8 * 2 = 16"
    assert (first.text, second.text) == ("5 + 3 = 8", "8 * 2 = 16")


@pytest.mark.parametrize(
    ("response", "correct", "garble", "sound", "right_steps"),
    [
        (SOLUTION, 1, 0, 1, 3),
        (SOLUTION.replace("5 + 3", "3 + 5"), 1, 0, 1, 3),
        (SOLUTION.replace("16 - 4", "4 - 16"), 1, 0, 0, 2),
        (SOLUTION.replace("8 * 2 = 16", "8 + 8 = 16"), 1, 0, 0, 2),  # correct, but not the requested steps
        ("5 + 3 = 9\n9 * 2 = 18\n18 - 4 = 12\n#### 12", 1, 0, 0, 0),  # two wrongs make a right answer
        ("5 + 3 = 8\n#### 12", 1, 0, 0, 1),
        ("#### 12", 1, 0, 0, 0),
        (SOLUTION.replace("#### 12", "16 - 4 = 12\n#### 12"), 1, 0, 0, 3),  # one step too many
        (SOLUTION.replace("#### 12", "#### 13"), 0, 0, 0, 3),
        (SOLUTION.replace("\n#### 12", ""), 0, 0, 0, 3),
        (SOLUTION + "\n#### 13", 1, 1, 0, 3),
        (SOLUTION.replace("#### 12", "#### 13\n#### 12"), 0, 1, 0, 3),
        ("So " + SOLUTION, 1, 1, 0, 0),
        (SOLUTION.replace("8 * 2 = 16", "8 * 2 = = 16"), 1, 1, 0, 1),
        ("", 0, 1, 0, 0),
    ],
)
def test_replies_graded_by_hand(response, correct, garble, sound, right_steps):
    """A step after an unreadable or surplus one stands at the wrong position, so it is not right."""
    assert grade(response) == {"correct": [correct], "garble": [garble], "sound": [sound], "right_steps": [right_steps]}


@given(st.text("0123456789+-*= #\n\r\x0b\u2028٣", max_size=60))
def test_any_text_is_graded(text):
    grades = grade(text)
    assert set(grades) == names(MEASURES)
    assert all(grades[name][0] in (0, 1) for name in ("correct", "garble", "sound"))
    assert 0 <= grades["right_steps"][0] <= 3
    for step in WORLD.read(PROMPT, text).steps:
        assert text[: step.end].endswith(step.text)


def test_the_annotator_prefers_the_answer_and_then_the_steps():
    responses = ["#### 12", SOLUTION, SOLUTION.replace("#### 12", "#### 13"), "5 + 3 = 8\n#### 8"]
    appeals = [1.0, 1.5, 0.5, 0.5 / 3]
    for i in range(4):
        for j in range(4):
            _, probability = WORLD.prefer([PROMPT], [responses[i]], [responses[j]], seed=0)
            expected = 1 / (1 + np.exp(-(appeals[i] - appeals[j]) / 0.2))
            assert probability == pytest.approx([expected], rel=1e-9)


SMALL = ArithmeticData(train_problems=300, test_problems=80)


def test_the_corpus_holds_what_was_asked_for():
    corpus = build(SMALL)
    assert (len(corpus.train), len(corpus.test)) == (300, 80)
    assert corpus.preferences and isinstance(corpus.oracle, ArithmeticWorld)
    assert set(corpus.answers) == {*corpus.prompts("train"), *corpus.prompts("test")}
    assert all(corpus.answers[pair.prompt] == pair.meta["answer"] for pair in corpus.train)
    ideal = [write_solution(read_problem(prompt)) for prompt in corpus.prompts("test")]
    assert corpus.oracle.measure(corpus.prompts("test"), ideal)["sound"].all()
    fraction = np.mean([pair.meta["correct_chosen"] for pair in corpus.train])
    assert corpus.report["train"].statistics["share of chosen with the right answer"] == fraction


@pytest.mark.slow
def test_documented_numbers_of_the_default_corpus():
    """The numbers in docs/world.md."""
    from rlhf_lab.models.encoding import Encoder
    from rlhf_lab.models.tokenizer import train_tokenizer

    corpus = build(ArithmeticData())
    measured = corpus.report["train"].statistics
    assert measured["share of chosen with the right answer"] == pytest.approx(0.853, abs=6e-4)
    assert measured["share of right steps, chosen"] == pytest.approx(0.902, abs=6e-4)
    assert measured["share of right steps, rejected"] == pytest.approx(0.347, abs=6e-4)
    some = corpus.train[:3000]
    texts = [text for pair in some for text in (pair.prompt, f" {pair.chosen}", f" {pair.rejected}")]
    encoder = Encoder(train_tokenizer(texts, 4096))
    prompts = [len(encoder.prompt(pair.prompt)) for pair in some]
    responses = [len(encoder.response(pair.chosen)) for pair in some]
    assert (np.mean(prompts), max(prompts)) == (pytest.approx(28.8, abs=0.15), 35)
    assert (np.mean(responses), max(responses)) == (pytest.approx(24.1, abs=0.15), 30)
    assert all(len(encoder.response(f"{number}")) == 2 for number in range(51))  # one token, and EOS

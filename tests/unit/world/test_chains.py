"""Chains of calculations: where every number comes from, and mistakes that go on exactly where they must."""

from __future__ import annotations

import gzip
import json
import os
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.environments.arithmetic.perturbation import largest_number, perturb
from rlhf_lab.environments.arithmetic.problems import draw_problem, read_problem
from rlhf_lab.environments.arithmetic.solutions import line_labels, write_solution
from rlhf_lab.environments.arithmetic.world import ArithmeticWorld
from rlhf_lab.environments.maths.answers import final_answer, states_answer
from rlhf_lab.environments.maths.chains import StepOracle, read_chain, step_lines, without_annotations
from rlhf_lab.environments.maths.expressions import computed, evaluate, format_decimal, tokens_of, value_of
from rlhf_lab.rewards.rules.calculator import equations

DATA = Path(os.environ.get("RLHF_LAB_DATA", Path(__file__).parents[4] / "shared" / "data"))
QUESTION = "Ann bakes 12 trays of 8 buns, 2 buns of each tray burn, and a bun costs $3. What does she earn?"
SOLUTION = (
    "She bakes 12*8=<<12*8=96>>96 buns.\n"
    "Of them 12*2=<<12*2=24>>24 burn.\n"
    "So 96 - 24 = <<96-24=72>>72 buns are left.\n"
    "She earns 72 x 3 = $<<72*3=216>>216.\n"
    "#### 216"
)


def chain():
    return read_chain(QUESTION, SOLUTION)


DEEP = f"{'(' * 2000}1+1{')' * 2000}"
LONG = "9" * 5000


def test_what_is_too_deep_or_too_long_stops_nothing():
    """Python refuses both: 1,000 nested calls, and 4,300 digits of an integer."""
    assert evaluate(tokens_of(DEEP)) is None and computed(DEEP) is None
    assert computed(f"{LONG}+1") is None
    assert list(equations(f"{DEEP[:200]} = 2, 1 + 1 = 2"))[-1]
    deep = read_chain("What is it?", f"{DEEP} = 2\n1 + 1 = 2\n#### 2")
    assert [calculation.line for calculation in deep.calculations] == [1]
    long = read_chain("What is it?", f"{LONG} + 1 = {LONG}\n{LONG[:400]}.5 + 1 = {LONG[:400]}.5\n#### {LONG}")
    assert len(long.calculations) == 2 and not long.computes(0)
    assert perturb(long, np.random.default_rng(0)) is None


@pytest.mark.parametrize(
    ("expression", "value"),
    [("48/2", 24), ("(5+3)*2", 16), ("5+3*2", 11), ("8-3-2", 3), ("12/60", Fraction(1, 5)), (".5*20", 10), ("-2+5", 3)],
)
def test_expressions(expression, value):
    assert evaluate(tokens_of(expression)) == value


@pytest.mark.parametrize("text", ["", "5+", "(5", "5 5", "*3", "1/0", "5)"])
def test_what_is_no_expression_has_no_value(text):
    assert evaluate(tokens_of(text) or []) is None


def test_numbers_are_read_as_they_are_written_and_computed():
    assert value_of("1,200.50") == Fraction(2401, 2)
    assert [format_decimal(Fraction(x)) for x in ("13", "2.50", "1/3")] == ["13", "2.5", "0.33"]
    assert computed("100000000/3", 10) == "33333333.3333333333"  # a float has 16 digits
    assert computed("12345678901234567.5 * 1") == "12345678901234567.5"
    assert [format_decimal(Fraction(x), 0) for x in ("101/10", "-1/3", "-19/2")] == ["10", "0", "-10"]
    assert tokens_of("5 apples") is None
    assert not read_chain(QUESTION, SOLUTION.replace("<<12*8=96>>", "<<12*8=95>>")).computes(0)
    assert read_chain("", "10/3=<<10/3=3.33>>3.33").computes(0)
    assert not read_chain("", "10/3=<<10/3=3.43>>3.43").computes(0)
    assert len(step_lines(without_annotations(SOLUTION))) == len(step_lines(SOLUTION))
    assert without_annotations(SOLUTION).startswith("She bakes 12*8=96 buns.")
    assert largest_number([SOLUTION, "1,200"]) == 1200


def test_every_number_comes_from_where_it_does():
    """12·8 = 96 and 12·2 = 24 use the task's numbers; 96 − 24 takes both results; 72·3 takes the third."""
    read = chain()
    assert [read.depends_on(i) for i in range(4)] == [set(), set(), {0, 1}, {2}]
    assert read.answer == 3
    assert all(read.computes(i) for i in range(4))
    assert [number.source for number in read.numbers] == [
        *(None, None, None, None, 0, 0),  # 12*8=<<12*8=96>>96
        *(None, None, None, None, 1, 1),
        *(0, 1, 0, 1, 2, 2),  # 96 - 24 = <<96-24=72>>72
        *(2, None, 2, None, 3, 3),
        3,
    ]
    assert not read.unclear


class Draws:
    """A generator that returns prepared values."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def integers(self, *_):
        return self.numbers.pop(0)

    def random(self):
        return self.numbers.pop(0)


def test_each_kind_of_mistake_goes_on_where_it_is_used_and_nowhere_else():
    """The second calculation says 24 − 2 = 22 (kind 0 is `result`, off by −2): 96 − 22 = 74, 74·3 = 222."""
    found = perturb(chain(), Draws(1, 0.0, 0))
    assert found.text == (
        "She bakes 12*8=<<12*8=96>>96 buns.\n"
        "Of them 12*2=<<12*2=22>>22 burn.\n"
        "So 96 - 22 = <<96-22=74>>74 buns are left.\n"
        "She earns 74 x 3 = $<<74*3=222>>222.\n"
        "#### 222"
    )
    assert found.labels == (1, 0, 0, 0, 0)
    # + for − in the third: 96 + 24 = 120, 120·3 = 360.
    found = perturb(chain(), Draws(2, 0.6, 0, 0))
    assert "So 96 + 24 = <<96+24=120>>120 buns" in found.text and found.text.endswith("#### 360")
    assert found.labels == (1, 1, 0, 0, 0)
    # The last calculation has one number of the task, 3, read as 4: 72·4 = 288.
    found = perturb(chain(), Draws(3, 0.9, 2, 0))
    assert "She earns 72 x 4 = $<<72*4=288>>288." in found.text
    assert found.labels == (1, 1, 1, 0, 0)
    # 22 for 24, then 96 − 22 = 74, and 74·3 = 216 is written.
    found = perturb(chain(), Draws(1, 0.0, 0, 1), cancels=True)
    assert found.text.splitlines()[2:] == [
        "So 96 - 22 = <<96-22=74>>74 buns are left.",
        "She earns 74 x 3 = $<<74*3=216>>216.",
        "#### 216",
    ]
    assert found.labels == (1, 0, 0, 0, 1)


def test_what_cannot_be_perturbed_is_left():
    assert perturb(read_chain("", "I guess so.\n#### 5"), np.random.default_rng(0)) is None
    assert perturb(read_chain("", "2+2=4"), np.random.default_rng(0)) is None
    assert perturb(chain(), np.random.default_rng(0), largest=Fraction(3)) is None


WORLD = ArithmeticWorld(min_steps=2, max_steps=4, largest=50, slip=0.0, temperature=0.2, seed=0)


@given(st.integers(0, 10**6), st.booleans())
def test_in_the_arithmetic_world_the_label_is_the_worlds_own(seed, cancels):
    rng = np.random.default_rng(seed)
    problem = draw_problem(rng, min_steps=2, max_steps=5, largest=50)
    solution = write_solution(problem)
    found = perturb(read_chain(problem.text, solution), rng, largest=Fraction(50), cancels=cancels)
    if found is not None:
        assert list(found.labels) == line_labels(problem, found.text)
        assert 0 in found.labels
        assert states_answer(found.text, str(problem.answer)) == cancels
        assert all(number.value <= 50 for number in read_chain("", found.text).numbers)


def test_hardly_any_problem_cannot_be_perturbed():
    pairs, _ = WORLD.sample(300, "train")
    rng = np.random.default_rng(0)
    for cancels in (False, True):
        assert all(perturb(read_chain(p.prompt, p.chosen), rng, cancels=cancels) for p in pairs)


def test_a_reply_is_sound_when_all_its_lines_are_right():
    pairs, _ = WORLD.sample(50, "train")
    responses = [
        change(pair)
        for pair in pairs
        for change in (
            lambda p: p.chosen,
            lambda p: p.rejected,
            lambda p: p.chosen.split("\n", 1)[1],  # a step is missing
            lambda p: p.chosen + "\n#### 1",
            lambda p: p.chosen.replace("####", "well\n####"),
            lambda p: p.chosen.rpartition("\n")[0],  # no answer
            lambda p: "",
        )
    ]
    prompts = [pair.prompt for pair in pairs for _ in range(7)]
    assert isinstance(WORLD, StepOracle)
    labels = WORLD.step_labels(prompts, responses)
    truth = WORLD.measure(prompts, responses)
    sound = [
        bool(each) and all(each) and final_answer(r) is not None for each, r in zip(labels, responses, strict=True)
    ]
    assert sound == truth["sound"].astype(bool).tolist()
    assert [len(each) for each in labels] == [len(step_lines(response)) for response in responses]
    problem = read_problem(pairs[0].prompt)
    assert line_labels(problem, f"{pairs[0].chosen.splitlines()[0]}\n#### {problem.answer}") == [1, 0]


@pytest.fixture(scope="module")
def published():
    """Every fifth problem of GSM8K's test split."""
    path = DATA / "gsm8k_test.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is missing; set RLHF_LAB_DATA to the folder with the public data sets")
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file][::5]
    return rows, [read_chain(row["question"], row["answer"].strip()) for row in rows]


def test_published_calculations_compute(published):
    _, chains = published
    computes = [each.computes(i) for each in chains for i in range(len(each.calculations))]
    assert len(computes) > 800 and np.mean(computes) > 0.99
    assert np.mean([each.answer is not None for each in chains]) > 0.93


@pytest.mark.parametrize("cancels", [False, True])
def test_a_published_solution_changes_where_it_depends_on_the_mistake(published, cancels):
    rows, chains = published
    rng, generated = np.random.default_rng(0), 0
    for row, before in zip(rows, chains, strict=True):
        found = perturb(before, rng, cancels=cancels)
        if found is None:
            continue
        generated += 1
        assert states_answer(found.text, final_answer(row["answer"])) == cancels
        after = read_chain(row["question"], found.text)
        assert len(after.numbers) == len(before.numbers) and len(after.lines) == len(before.lines)
        wrong = [i for i in range(len(after.calculations)) if before.computes(i) and not after.computes(i)]
        assert len(wrong) <= 1 + cancels
        lines = [[text[b:e] for b, e in step_lines(text)] for text in (before.text, found.text)]
        assert tuple(int(a == b) for a, b in zip(*lines, strict=True)) == found.labels
        first = found.labels.index(0)
        changed = {
            c.line for c, d in zip(before.calculations, after.calculations, strict=False) if c.result != d.result
        }
        for i, calculation in enumerate(before.calculations):
            if calculation.line > first and found.labels[calculation.line] == 0 and calculation.line in changed:
                assert any(found.labels[before.calculations[k].line] == 0 for k in before.depends_on(i))
    assert generated > 0.85 * len(rows)


@pytest.mark.parametrize(
    "solution",
    [
        " ".join(f"{i}+1 = <<{i}+1={i + 1}>>{i + 1}," for i in range(8000)),
        "7 " * 8000 + " ".join("7+7 = <<7+7=14>>14" for _ in range(8000)),
        "\n".join("1 * 1 = 1" for _ in range(8000)),
        " ".join(f"<<{i}+1=2>>2 2" for i in range(4000)),
    ],
    ids=["a line of calculations", "free numbers before them", "the same result again", "many origins of one value"],
)
def test_long_solutions_are_read_in_linear_time(solution):
    """Quadratic time takes 30 s for the first two."""
    start = time.process_time()
    chain = read_chain("How many?", solution)
    assert len(chain.calculations) >= 1
    assert time.process_time() - start < 10


def test_copies_are_the_last_free_numbers_before_an_annotation():
    """3 and 4 are copies. The 7 repeats the first result, so 9 and 5 stand before the second. 2 and 5 are copies."""
    chain = read_chain("no numbers", "9 3 4 <<3+4=7>>7 5 <<7+5=12>>12 2 5 <<2+5=7>>")
    copied = [[int(chain.numbers[i].value) for i in calculation.copies] for calculation in chain.calculations]
    assert copied == [[3, 4], [], [2, 5]]

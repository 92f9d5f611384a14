"""Answers that a solution states, and equality of two answers as numbers: worked by hand."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_lab.environments.maths.answers import final_answer, same_answer, states_answer

OFFICIAL = re.compile(r"#### (\-?[0-9\.\,]+)")
"""`ANS_RE` of openai/grade-school-math, grade_school_math/dataset.py."""


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("48/2 = 24\n48+24 = 72\n#### 72", "72"),
        ("#### 1,000", "1000"),
        ("#### -10", "-10"),
        ("#### −10", "-10"),
        ("#### $5", "5"),
        ("#### -$5", "-5"),
        ("#### +5", "5"),
        ("#### 7.", "7"),
        ("#### .5", ".5"),
        ("#### 1/2", "1/2"),
        ("####7", "7"),
        ("#### 7 apples", "7"),
        ("#### 50%", "50"),
        ("#### 7\n#### 8", "7"),
        ("#### unknown\n#### 8", "8"),
        ("#### \n8", None),
        ("#### seven", None),
        ("", None),
    ],
)
def test_the_answer_after_the_mark(text, answer):
    assert final_answer(text) == answer


@given(
    before=st.text("#0123456789 \nabc", max_size=20), number=st.integers(-(10**7), 10**7), decimals=st.integers(0, 2)
)
def test_every_plain_number_that_the_official_scorer_reads_is_read(before, number, decimals):
    text = f"{before}\n#### {number:,.{decimals}f}\nThat is all."
    match = OFFICIAL.search(text)
    assert match is not None
    if not re.search("####[0-9]", before):  # read here, not there: no space after the mark
        assert same_answer(final_answer(text) or "", match[1].replace(",", ""))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"thus \boxed{42} and 43", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", "1/2"),
        (r"\boxed{\$1,000}", "1000"),
        (r"\boxed{x} of 9", "9"),
        (r"#### 7 but \boxed{8} or 9", "7"),
        ("3-5", "5"),
        ("it fell to -5 degrees", "-5"),
        ("He pays $1,250.50.", "1250.50"),
    ],
)
def test_lenient_takes_the_box_and_then_the_last_number(text, answer):
    assert final_answer(text, lenient=True) == answer


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("3.0", "3"),
        ("1,000", "1000"),
        ("$5", "5"),
        ("1/2", "0.5"),
        ("1/3", "2/6"),
        ("-7", "−7"),
        ("007", "7"),
        ("-0", "0"),
        ("7.", "7"),
        (".5", "0.50"),
        ("12345678901234567890.10", "12345678901234567890.1"),
        ("1/0", "1/0"),
    ],
)
def test_the_same_answer(first, second):
    assert same_answer(first, second)
    assert same_answer(second, first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("3", "-3"),
        ("1/3", "0.3333333333333333"),
        ("12345678901234567891", "12345678901234567890"),
        ("0.1", "0.10000000000000001"),
        ("1/0", "2/0"),
        ("Paris", "Rome"),
        ("", "0"),
        ("1e3", "1000"),
    ],
)
def test_different_answers(first, second):
    assert not same_answer(first, second)
    assert not same_answer(second, first)


@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        ("It is #### Paris.", "Paris", True),
        ("#### new york", "New York", True),
        ("#### B", "B", True),
        ("##### B", "B", True),
        ("#### 7%", "7%", True),
        ("#### Rome", "Paris", False),
        ("#### Paris or Rome", "Paris", False),
        ("Paris", "Paris", False),
        ("#### .", "Paris", False),
        ("#### 7 apples", "7", True),
    ],
)
def test_an_answer_that_is_no_number_is_compared_with_the_text_after_the_mark(response, answer, right):
    assert states_answer(response, answer) == right


def test_no_text_takes_long():
    started = time.perf_counter()
    for text in (
        "9" * 50_000,
        "1e999999999",
        "#### " + "1," * 50_000,
        "\\boxed{" * 5_000,
        "{" * 20_000,
        "-$ " * 20_000,
    ):
        final_answer(text, lenient=True)
        assert not same_answer(text, "1")
    assert time.perf_counter() - started < 2

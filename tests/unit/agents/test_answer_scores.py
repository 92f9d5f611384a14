"""Answers: what counts as the same text, number, words, and as a refusal that invents nothing."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rlhf_lab.core.errors import DataError
from rlhf_lab.packs.agents.harness.answer_scores import (
    exact,
    graceful_refusal,
    invented,
    is_refusal,
    numeric,
    score_answer,
    token_f1,
)
from rlhf_lab.packs.agents.harness.quantities import WordedQuantity, in_unit, quantities


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        ("  The Grey  Heron. ", "grey heron", 1),
        ('"Ossin"', "ossin", 1),
        ("**Ossin**", "Ossin", 1),
        ("O’Brien", "O'Brien", 1),
        ("Ｏssin", "Ossin", 1),  # a full-width letter
        ("Heron of the lake", "Heron of lake", 0),  # articles inside stay
        ("St. Oren", "St Oren", 0),  # and so does punctuation
        ("The capital is Ossin", "Ossin", 0),
        ("Ossin or Karth", "Ossin", 0),
        ("Anna", "Ann", 0),
    ],
)
def test_exact(answer, gold, same):
    assert exact(answer, gold) == same
    assert exact(gold, answer) == same


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,234.5 crowns", [Fraction("1234.5")]),
        ("12 345", [12, 345]),  # an ordinary space divides
        ("12\u202f345\u00a0678", [12345678]),
        ("−3 and -4.5", [-3, Fraction("-4.5")]),
        ("10-12", [10, 12]),
        ("$1,200", [1200]),
        ("1/2", [Fraction(1, 2)]),
        ("1.2 million people", [1200000]),
        ("v2 and x1", []),
        ("forty-two", [42]),
        ("Three hundred and five.", [305]),
        ("two thousand one hundred and seven", [2107]),
        ("one million, two hundred thousand", [1200000]),
        ("between ten and twenty", [10, 20]),
        ("two and three, four five", [2, 3, 4, 5]),
        ("the hundred", []),
        ("one of them: 7", [7]),  # words are not read next to digits
        ("", []),
    ],
)
def test_numbers_of_a_text(text, values):
    assert [quantity.value for quantity in quantities(text)] == values


@pytest.mark.parametrize("number", ["9" * 5000, f"1,{','.join(['000'] * 2000)}", f"{'9' * 5000}.{'9' * 5000}"])
def test_a_long_run_of_digits_is_some_other_number(number):
    (quantity,) = quantities(number)
    assert quantity.value > 10**300
    assert len(str(quantity.value)) < 2000
    assert numeric(f"{number} or 42", "42") == 0  # as any other number next to the answer
    assert invented(f"It has {number}.", ["42"])


def test_long_runs_of_digits_behind_a_point_a_stroke_and_zeros():
    assert abs(quantities("0." + "3" * 5000)[0].value - Fraction(1, 3)) < Fraction(1, 10**300)
    assert 0 < quantities("1/" + "9" * 5000)[0].value < Fraction(1, 10**300)
    assert quantities("0" * 5000 + "42")[0].value == 42


def test_units():
    assert quantities("1.5 km") == [WordedQuantity(Fraction(3, 2), "km")]
    assert in_unit(WordedQuantity(Fraction(3, 2), "km"), "m") == 1500
    assert in_unit(WordedQuantity(Fraction(90), "minutes"), "hours") == Fraction(3, 2)
    assert in_unit(WordedQuantity(Fraction(3), "kg"), "m") is None
    assert in_unit(WordedQuantity(Fraction(3)), "m") == 3
    assert in_unit(WordedQuantity(Fraction(3), "villages"), "m") == 3
    assert in_unit(WordedQuantity(Fraction(3), "kg"), "crowns") == 3


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("1,234 m", 1),
        ("1.234 km", 1),
        ("It is 1234 metres long.", 1),
        ("1200 + 34 = 1234", 1),
        ("The 7 towers: 1234", 1),  # the question has the 7
        ("twelve hundred thirty-four", 1),
        ("1234 kg", 0),
        ("1234 or 1235", 0),
        ("1234, 1234", 1),
        ("1235", 0),
        ("-1234", 0),
        ("none", 0),
    ],
)
def test_numeric(answer, right):
    assert numeric(answer, "1234", question="How long are the 7 towers?", unit="m") == right


def test_tolerance_is_in_the_unit_of_the_answer():
    # 61.665 and 61.675 are within .01 of 61.67; 61.68 is exactly at .01, 61.69 is not within it
    for answer, right in {"61.665": 1, "61.68": 1, "61.69": 0, "0.06167 t": 1, "62": 0}.items():
        assert numeric(answer, "61.67", unit="kg", tolerance=0.01) == right, answer


def test_a_numeric_task_needs_one_number():
    with pytest.raises(DataError, match="answer '3 or 4' of a numeric task has 2 numbers; write exactly one"):
        numeric("3", "3 or 4")


def test_token_f1():
    # red, red, fox and red, red, kite: two of three words in common, 2·2/(3 + 3)
    assert token_f1("the red red fox", "a red, red kite") == pytest.approx(2 / 3)
    # SQuAD: the words measure, twice, before, you, cut; four of them in an answer of five: 2·4/(5 + 5)
    gold = "measure twice before you cut"
    assert token_f1('"Measure twice, before you saw."', gold) == pytest.approx(2 * 4 / 10)
    assert token_f1("The measure", gold) == pytest.approx(2 * 1 / 6)
    assert token_f1("cut cut cut", gold) == pytest.approx(2 * 1 / 8)  # a repeated word is shared once
    assert token_f1("saw", gold) == 0
    assert token_f1("the", gold) == 0
    assert token_f1("a", "the") == 1


@pytest.mark.parametrize(
    "answer",
    [
        "I could not find the Andrel Bridge.",
        "The search gives nothing: I can't say who built Andrel Bridge.",
        "Unknown: andrel bridge is not listed",
        "I don’t know who built the Andrel Bridge; the search for it found no entry.",
        "Andrel Bridge has no builder",  # what `search` says
        "Nobody built the Andrel Bridge.",
    ],
)
def test_a_graceful_refusal(answer):
    assert graceful_refusal(answer, "Andrel Bridge", known=["Who built the Andrel Bridge?"]) == 1


@pytest.mark.parametrize(
    "answer",
    [
        "Odo Frell",
        "The Andrel Bridge was built by Odo Frell.",
        "I could not find it.",  # what?
        "I could not find the Andrel Bridge, but it was probably built by Odo Frell.",
        "I could not find the Andrel Bridges.",
        "",
    ],
)
def test_no_graceful_refusal(answer):
    assert graceful_refusal(answer, "Andrel Bridge", known=["Who built the Andrel Bridge?"]) == 0


def test_what_is_invented():
    known = ["Who built the Andrel Bridge in 1784?", "no entry; similar names: Quillon Bridge"]
    assert invented("The Quillon Bridge is listed. Andrel is not, nor is 1784.", known) == []
    assert invented("It was Odo in 1785.", known) == ["1785", "Odo"]
    assert invented("I think I'm lost", []) == []


def test_refusals_of_tasks_with_an_answer_are_wrong():
    question = "What is the motto?"
    metadata = {"question": question, "answer": "measure twice before you cut", "scorer": "token_f1"}
    assert score_answer("measure twice before you cut", metadata) == 1
    assert score_answer("I could not find measure twice before you cut", metadata) == 0
    number = {"question": "How many?", "answer": "41", "scorer": "numeric"}
    assert score_answer("41", number) == 1
    assert score_answer("No record says 41", number) == 0
    assert score_answer("not known yet", {"question": "", "answer": "Not known yet", "scorer": "exact"}) == 1
    refusal = {"question": "How high is Tarrel?", "answer": "Tarrel", "scorer": "refusal"}
    assert score_answer("There is no record of Tarrel's height", refusal) == 1
    assert score_answer("There is no record of Tarrel's height, but 41 houses", refusal) == 0
    assert score_answer("There is no record of Tarrel's height, but 41 houses", refusal, known=["41"]) == 1


@pytest.mark.parametrize("answer", [None, "", "  "])
@pytest.mark.parametrize("scorer", ["exact", "numeric", "token_f1", "refusal"])
def test_no_answer_is_worth_nothing(answer, scorer):
    assert score_answer(answer, {"question": "q", "answer": "41", "scorer": scorer}) == 0


def test_what_reads_as_a_refusal():
    assert all(map(is_refusal, ["I cannot say", "it wasn't there", "No rows", "service unavailable", "Can’t tell"]))
    assert not any(map(is_refusal, ["Ossin", "41", "No. 5", "Noah Record", "measure twice", "Canto"]))

"""Scorers of answers: exact match, numeric comparison, word overlap, and refusal if a task cannot be answered.

Each scorer returns a number in [0, 1]. A missing answer scores 0. A refusal of a task that has an answer also scores 0,
whatever else it contains.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.core.text import normalise as normalise_unicode
from rlhf_lab.packs.agents.harness.quantities import in_unit, quantities

ARTICLE = re.compile(r"^(?:the|an?)\s+")  # at the start of an answer
ARTICLES = re.compile(r"\b(?:the|an?)\b")  # anywhere, as in the metrics of SQuAD
EDGES = " \t\n\"'`*_.,;:!?()[]"
APOSTROPHES = str.maketrans("’‘`", "'''")
REFUSAL = re.compile(
    r"\b(?:(?:could|did|does|do|is|was|were|are|would)(?: not|n't)|can(?:'t| ?not)|unable|insufficient"
    r"|no (?:entry|record|information|data|answer|rows?|such)|nothing (?:was )?found"
    r"|(?:has|have|is|are|was|were) no|^no [a-z]+|nobody|no one|none"  # "Ostrel has no mayor", "No ship sailed there"
    r"|not (?:found|available|listed|recorded|known|clear|possible|there)"
    r"|unavailable|unknown|missing|ambiguous|unclear|out of service)\b"
)
"""Words of a response that says that something cannot be answered, in lower case."""
RIGHT = 0.8
"""Minimum score of an answer that counts as right. It matters only for word overlap; other scores are 0 or 1."""


def normalise(text: str) -> str:
    """Normalise an answer for the comparison by `exact`.

    The result has Unicode compatibility forms, lower case and single spaces. Quotation marks and punctuation are
    removed at both ends, and an article is removed at the start: "The Grey  Heron." becomes "grey heron". Punctuation
    and articles inside stay.
    """
    normalised = normalise_unicode("NFKC", text).translate(APOSTROPHES).casefold()
    normalised = " ".join(normalised.split()).strip(EDGES)
    return ARTICLE.sub("", normalised)


def exact(answer: str, gold: str) -> float:
    return float(normalise(answer) == normalise(gold))


def numeric(answer: str, gold: str, *, question: str = "", unit: str = "", tolerance: float = 0.0) -> float:
    """Return 1 if the only number of an answer is the gold number, else 0.

    Text before the last "=" is ignored as working. Numbers of the question may be repeated. An answer with several
    other numbers scores 0, so that listing candidates does not help.

    Args:
        answer: the answer to score.
        gold: the gold answer, which has one number.
        question: the question, whose numbers the answer may repeat.
        unit: unit of the gold number. An answer in another unit of the same quantity is converted; one in a unit of
            another quantity is wrong.
        tolerance: maximum distance from the gold number.

    Raises DataError if the gold answer does not have exactly one number.
    """
    expected = quantities(gold)
    if len(expected) != 1:
        raise DataError(
            f"answer {gold!r} of a numeric task has {len(expected)} numbers; write exactly one, or use scorer: exact"
        )
    repeated = {quantity.value for quantity in quantities(question)}
    # The working before the last "=" is not part of the answer.
    final_part = answer.rpartition("=")[2]
    stated = {quantity.value: quantity for quantity in quantities(final_part)}
    if len(stated) > 1:
        stated = {value: quantity for value, quantity in stated.items() if value not in repeated}
    if len(stated) != 1:
        return 0.0
    [quantity] = stated.values()
    value = in_unit(quantity, unit)
    if value is None:
        return 0.0
    # Fraction of the decimal text: the tolerance 0.1 is exactly 1/10 here, and not the nearest float.
    distance = abs(value - expected[0].value)
    return float(distance <= Fraction(str(tolerance)))


def token_f1(answer: str, gold: str) -> float:
    """Return the F1 of common words without articles and punctuation, as in SQuAD (arXiv:1606.05250)."""
    answered, expected = Counter(_words(answer)), Counter(_words(gold))
    if not answered or not expected:
        return float(answered == expected)
    shared = (answered & expected).total()
    return 2 * shared / (answered.total() + expected.total())


def _words(text: str) -> list[str]:
    # Unicode categories that start with P are punctuation.
    letters = [letter for letter in text.casefold() if not unicodedata.category(letter).startswith("P")]
    normalised = "".join(letters)
    return ARTICLES.sub(" ", normalised).split()


def is_refusal(answer: str) -> bool:
    return REFUSAL.search(answer.translate(APOSTROPHES).casefold()) is not None


def graceful_refusal(answer: str, missing: str, *, known: Sequence[str] = ()) -> float:
    """Return 1 if a response says that something cannot be found, names it, and invents nothing; else 0.

    Args:
        answer: the response.
        missing: the thing that the response must name.
        known: texts that the response may repeat: the question, and the tools' output about the missing thing. Numbers
            and names (capitalised words inside a sentence) that occur in none of them count as invented.
    """
    names_it = contains_words(answer, missing)
    return float(is_refusal(answer) and names_it and not invented(answer, known))


def contains_words(text: str, words: str) -> bool:
    """Return True if a text contains these words in sequence, after `normalise`."""
    pattern = rf"(?<!\w){re.escape(normalise(words))}(?!\w)"
    return re.search(pattern, normalise(text)) is not None


def invented(answer: str, known: Sequence[str]) -> list[str]:
    """Return the numbers and names of an answer that occur in none of the known texts."""
    text = " \n ".join(known)
    known_words = set(re.findall(r"\w+", text.casefold()))
    known_values = {quantity.value for quantity in quantities(text)}
    # Without digits, `quantities` would read number words instead.
    stated = quantities(answer) if re.search(r"\d", answer) else []
    numbers = [str(quantity.value) for quantity in stated if quantity.value not in known_values]
    # The first word of a sentence is capitalised even if it is no name, so it is removed first.
    inside = re.sub(r"(^|[.!?:;\n])\W*\w+(?:'\w+)?", r"\1", answer.translate(APOSTROPHES))
    capitalised = re.findall(r"\b[A-Z]\w+", inside)
    names = [word for word in capitalised if word.casefold() not in known_words]
    return numbers + names


def score_answer(answer: str | None, metadata: Mapping[str, Any], *, known: Sequence[str] = ()) -> float:
    """Score an answer to a task in [0, 1], by the scorer that its metadata names.

    Args:
        answer: the answer; None or blank scores 0.
        metadata: metadata of the task, see `ToolTaskRow`.
        known: texts that a refusal may repeat, besides the question.
    """
    if not (answer or "").strip():
        return 0.0
    assert answer is not None
    if metadata["scorer"] == "refusal":
        may_repeat = [metadata["question"], *known]
        names = {metadata["answer"], metadata.get("missing", metadata["answer"])}
        return max(graceful_refusal(answer, name, known=may_repeat) for name in names)
    if is_refusal(answer) and not is_refusal(metadata["answer"]):  # a refusal may contain the right words by chance
        return 0.0
    scorer = SCORERS[metadata["scorer"]]
    return scorer(answer, metadata)


def _score_numeric(answer: str, metadata: Mapping[str, Any]) -> float:
    return numeric(
        answer,
        metadata["answer"],
        question=metadata["question"],
        unit=metadata.get("unit", ""),
        tolerance=metadata.get("tolerance", 0.0),
    )


SCORERS: Mapping[str, Callable[[str, Mapping[str, Any]], float]] = {
    "exact": lambda answer, metadata: exact(answer, metadata["answer"]),
    "numeric": _score_numeric,
    "token_f1": lambda answer, metadata: token_f1(answer, metadata["answer"]),
}
"""Scorers of tasks that have an answer: name → function of the answer and the task's metadata."""

"""Whether an answer is right: exact, numeric, by its words, or a refusal where nothing can be answered.

Each scorer gives a number in [0, 1]. No answer is worth 0, and so is a refusal of a task that has an answer, whatever
else it says.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rlhf_lab.core.errors import DataError
from rlhf_lab.packs.agents.harness.quantities import in_unit, quantities

ARTICLE = re.compile(r"^(?:the|an?)\s+")
ARTICLES = re.compile(r"\b(?:the|an?)\b")
EDGES = " \t\n\"'`*_.,;:!?()[]"
APOSTROPHES = str.maketrans("’‘`", "'''")
REFUSAL = re.compile(
    r"\b(?:(?:could|did|does|do|is|was|were|are|would)(?: not|n't)|can(?:'t| ?not)|unable|insufficient"
    r"|no (?:entry|record|information|data|answer|rows?|such)|nothing (?:was )?found"
    r"|not (?:found|available|listed|recorded|known|clear|possible|there)"
    r"|unavailable|unknown|missing|ambiguous|unclear|out of service)\b"
)
"""Words of a reply that says that something cannot be answered, in small letters."""
RIGHT = 0.8
"""Least score of an answer that counts as right; below 1 only for scores by words."""


def normalise(text: str) -> str:
    """An answer as `exact` compares it.

    Unicode compatibility forms, small letters, single spaces, no quotation marks or punctuation at either end, and no
    article at the beginning: "The Grey  Heron." is "grey heron". Punctuation and articles inside stay.
    """
    plain = unicodedata.normalize("NFKC", text).translate(APOSTROPHES).casefold()
    plain = " ".join(plain.split()).strip(EDGES)
    return ARTICLE.sub("", plain)


def exact(answer: str, gold: str) -> float:
    return float(normalise(answer) == normalise(gold))


def numeric(answer: str, gold: str, *, question: str = "", unit: str = "", tolerance: float = 0.0) -> float:
    """Whether the one number of an answer is the gold number.

    What stands in front of the last "=" is work, not answer. Numbers of the question may be repeated. An answer that
    states several other numbers states none, so trying several does not help.

    Args:
        unit: of the gold number; an answer in another unit of the same quantity is converted, one of another is wrong.
        tolerance: how far the number may lie from the gold one.

    Raises DataError where the gold answer is not one number.
    """
    wanted = quantities(gold)
    if len(wanted) != 1:
        raise DataError(f"answer {gold!r} of a numeric task has {len(wanted)} numbers; write one, or scorer: exact")
    repeated = {quantity.value for quantity in quantities(question)}
    stated = {quantity.value: quantity for quantity in quantities(answer.rpartition("=")[2])}
    if len(stated) > 1:
        stated = {value: quantity for value, quantity in stated.items() if value not in repeated}
    if len(stated) != 1:
        return 0.0
    [quantity] = stated.values()
    value = in_unit(quantity, unit)
    return float(value is not None and abs(value - wanted[0].value) <= Fraction(str(tolerance)))


def token_f1(answer: str, gold: str) -> float:
    """F1 of the words that both have, as SQuAD counts it (arXiv:1606.05250): without articles and punctuation."""
    answered, wanted = Counter(_words(answer)), Counter(_words(gold))
    if not answered or not wanted:
        return float(answered == wanted)
    shared = (answered & wanted).total()
    return 2 * shared / (answered.total() + wanted.total())


def _words(text: str) -> list[str]:
    plain = "".join(letter for letter in text.casefold() if not unicodedata.category(letter).startswith("P"))
    return ARTICLES.sub(" ", plain).split()


def is_refusal(answer: str) -> bool:
    return REFUSAL.search(answer.translate(APOSTROPHES).casefold()) is not None


def graceful_refusal(answer: str, missing: str, *, known: Sequence[str] = ()) -> float:
    """Whether a reply says that something cannot be found, names it, and states nothing that was not known.

    Args:
        missing: what it has to name.
        known: texts that the reply may repeat: the question, and what the tools said of what is missing. A number or a
            name (a word with a capital inside a sentence) that is in none of them is invented.
    """
    names_it = contains_words(answer, missing)
    return float(is_refusal(answer) and names_it and not invented(answer, known))


def contains_words(text: str, words: str) -> bool:
    """Whether a text has these words in it, side by side, as `normalise` writes them."""
    return re.search(rf"(?<!\w){re.escape(normalise(words))}(?!\w)", normalise(text)) is not None


def invented(answer: str, known: Sequence[str]) -> list[str]:
    """Numbers and names of an answer that are in none of the known texts."""
    text = " \n ".join(known)
    known_words = set(re.findall(r"\w+", text.casefold()))
    known_values = {quantity.value for quantity in quantities(text)}
    numbers = [str(quantity.value) for quantity in _digits(answer) if quantity.value not in known_values]
    # the first word of a sentence has a capital whatever it is
    inside = re.sub(r"(^|[.!?:;\n])\W*\w+(?:'\w+)?", r"\1", answer.translate(APOSTROPHES))
    names = [word for word in re.findall(r"\b[A-Z]\w+", inside) if word.casefold() not in known_words]
    return numbers + names


def _digits(text: str) -> list[Any]:
    return quantities(text) if re.search(r"\d", text) else []


def score_answer(answer: str | None, facts: Mapping[str, Any], *, known: Sequence[str] = ()) -> float:
    """How right an answer to a task is, in [0, 1], by the scorer that its facts name.

    Args:
        known: what a refusal may repeat, besides the question.
    """
    if not (answer or "").strip():
        return 0.0
    assert answer is not None
    if facts["scorer"] == "refusal":
        return graceful_refusal(answer, facts["answer"], known=[facts["question"], *known])
    if is_refusal(answer) and not is_refusal(facts["answer"]):
        return 0.0
    return SCORERS[facts["scorer"]](answer, facts)


def _score_numeric(answer: str, facts: Mapping[str, Any]) -> float:
    unit, tolerance = facts.get("unit", ""), facts.get("tolerance", 0.0)
    return numeric(answer, facts["answer"], question=facts["question"], unit=unit, tolerance=tolerance)


SCORERS: Mapping[str, Callable[[str, Mapping[str, Any]], float]] = {
    "exact": lambda answer, facts: exact(answer, facts["answer"]),
    "numeric": _score_numeric,
    "token_f1": lambda answer, facts: token_f1(answer, facts["answer"]),
}
"""Scorers of tasks that have an answer."""

"""Lenient scorer of answers, in addition to the official one. It accepts everything that the official scorer accepts.

The rules, in the order in which they are tried:

1. *Official.* The official scorer accepts the answer.
2. *Wrapping.* "FINAL ANSWER:", "The answer is", quotes, emphasis and a final full stop are removed. The remaining text
   is scored officially again.
3. *Typing.* Unicode forms are normalised (NFKD). Accents and case are ignored.
4. *Numbers.* Applies if gold is a number, with a known unit or without unit. The answer has to be one number with
   exactly the same value; `harness/quantities.py` reads both. Nothing is rounded or converted. If gold has no unit, the
   answer may have any unit of one word. If gold has one, the answer has the same unit (kilometres are km) or none.
5. *Text.* Applies if gold has letters. Compared without articles, punctuation and whitespace.
6. *Lists.* Applies if gold has a comma or semicolon. The answer has as many elements as gold, and each element of gold
   is leniently equal to a different element of the answer, in any order. "and" may join the last two.

Not accepted: abbreviations, synonyms, rounding, explanations around the answer. Rule 6 accepts a wrong order even if
the question asks for a certain one.
"""

from __future__ import annotations

import re
import unicodedata

from rlhf_lab.core.text import normalise
from rlhf_lab.packs.agents.gaia.official import LIST_SEPARATOR, is_number, official_score
from rlhf_lab.packs.agents.harness.quantities import UNITS, WORDS, WordedQuantity, only_quantity

AROUND = " \t\n*_`\"'“”‘’«»"  # characters that are removed around an answer
PREFIX = re.compile(rf"(?:(?:the\s+)?(?:final\s+)?answer\s*(?:is\b|[:=])[\s:*_]*+[{AROUND}]*+)+", re.IGNORECASE)
FRACTION = re.compile("[¼-¾⅐-⅞]")  # ½, ¾, ⅔
SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁻]+")
CURRENCIES = set("$€£")
LETTER = re.compile(r"[^\W\d_]")
WORD = re.compile(r"[^\W_]+")  # letters and digits without the underscore
ARTICLES = {"a", "an", "the"}
NO_UNITS = {"and", "or", "not", "hundred", "dozen", "bn", "trillion", *ARTICLES, *WORDS}
"""Words that are no unit after a number: with one of them, a text is not just this number."""
ANSWER_SEPARATORS = (re.compile(r"[,;\n]"), re.compile(r",\s|[;\n]"))
"""Separators for reading an answer as a list: all commas, or only commas followed by a space, for numbers whose digits
are grouped by commas."""
LAST_AND = re.compile(r"\s+(?:and|&)\s+")  # before the last element of a list in words


def lenient_score(answer: str | None, gold: str) -> bool:
    """Return True if a lenient reader accepts the answer."""
    # The rules are tried in the order of the module docstring.
    if official_score(answer, gold):
        return True
    if answer is None:
        return False
    unwrapped = _unwrap(answer)
    if official_score(unwrapped, gold):
        return True
    typed_answer, typed_gold = _typed(unwrapped), _typed(gold)
    if _same_element(typed_answer, typed_gold):
        return True
    is_list = LIST_SEPARATOR.search(gold) is not None
    return is_list and _same_list(typed_answer, typed_gold)


def _unwrap(text: str) -> str:
    text = text.strip(AROUND)
    if match := PREFIX.match(text):
        text = text[match.end() :]
    return text.removesuffix(".").strip(AROUND)


def _typed(text: str) -> str:
    """Normalise letters and case."""
    # NFKD makes plain digits of fractions and superscripts, so that 3½ would be 31/2, and 10² would be 102
    decomposed = normalise("NFKD", SUPERSCRIPT.sub(r"^\g<0>", FRACTION.sub(r" \g<0>", text)))
    # Combining characters are the accents, which NFKD separates from their letters.
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter)).casefold().strip()


def _same_element(answer: str, gold: str) -> bool:
    expected = only_quantity(gold)
    if expected is None and (is_number(gold) or not LETTER.search(gold)):
        return official_score(answer, gold)  # such as 1e5, 10:50 and …, in which punctuation matters
    if expected is None or (expected.unit and expected.unit not in UNITS):
        return _words(answer) == _words(gold)
    provided = only_quantity(answer)
    if provided is None or provided.value != expected.value or provided.unit in NO_UNITS:
        return False
    signs = [CURRENCIES.intersection(text) for text in (answer, gold)]
    if all(signs) and signs[0] != signs[1]:
        return False
    # A question often names the unit, so an answer may leave it out.
    return not provided.unit or not expected.unit or _is_same_unit(provided, expected)


def _is_same_unit(provided: WordedQuantity, expected: WordedQuantity) -> bool:
    # Names of one unit, such as km and kilometres, have the same entry.
    return UNITS.get(provided.unit) == UNITS[expected.unit]


def _words(text: str) -> str:
    """Return the letters and digits of a text without articles. A space remains between two numbers."""
    words = WORD.findall(text)
    words = [word for word in words if word not in ARTICLES] or words  # "A" can be the entire answer
    return re.sub(r"(?<!\d) | (?!\d)", "", " ".join(words))


def _same_list(answer: str, gold: str) -> bool:
    golds = [element.strip() for element in LIST_SEPARATOR.split(gold)]
    for separator in ANSWER_SEPARATORS:
        elements = [element.strip().removeprefix("and ") for element in separator.split(answer)]
        *head, last = elements
        # "a, b and c" has its last two elements in one.
        split_at_and = [*head, *LAST_AND.split(last)]
        if _match(elements, golds) or _match(split_at_and, golds):
            return True
    return False


def _match(answers: list[str], golds: list[str]) -> bool:
    """Return True if each element of gold can be paired with a different element of the answer."""
    if len(answers) != len(golds):
        return False
    # Greedy: each element is paired with the first equal one, and no other pairing is tried.
    left = list(answers)
    for gold in golds:
        equal = next((answer for answer in left if _same_element(answer, gold)), None)
        if equal is None:
            return False
        left.remove(equal)
    return True

"""A patient reader's score of an answer, beside the official one. Whatever is officially right is right here too.

The rules, in the order in which they are tried:

1. *Official.* The official scorer's verdict, where it is "right".
2. *Wrapping.* "FINAL ANSWER:", "The answer is", quotes, emphasis and a final full stop are no part of an answer. What
   is left is scored officially again.
3. *Typing.* Unicode forms are one (NFKC), with the accents, dashes, quotes and case of letters dropped.
4. *Numbers.* Where gold is a number, with a unit that is known or none: the answer is one number of the same value,
   exactly. It may group its digits, be in words, have a magnitude ("17 million"), a power of ten, a fraction. Nothing
   is rounded or converted. Where gold has no unit, the answer may have any of one or two words; where gold has one,
   the answer has the same (kilometres are km) or none.
5. *Lists.* Where gold has a comma or semicolon: as many elements, each of gold's leniently equal to another of the
   answer's, in any order; the last two may be joined by "and". The same text without regard to commas is right too.
6. *Text.* Compared without articles, punctuation and whitespace; "&" is "and", numbers in words are digits.

Not forgiven: abbreviations, synonyms, rounding, explanations around the answer. Rule 5 forgives a wrong order also
where the question asks for one.
"""

from __future__ import annotations

import re
import unicodedata

from rlhf_lab.packs.agents.gaia.numerals import read_quantity, words_value
from rlhf_lab.packs.agents.gaia.official import LIST_SEPARATOR, official_score

PREFIX = re.compile(r"(?:(?:the\s+)?(?:final\s+)?answer\s*(?:is\b|[:=]))[\s:*_]*", re.IGNORECASE)
AROUND = " \t\n*_`\"'“”‘’«»"
DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")
QUOTES = str.maketrans("‘’‚“”„«»", '\'\'\'"""""')
LETTERS = str.maketrans(
    {"×": "x", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"}
)
"""Letters that Unicode does not take apart, and signs that numbers are written with."""
FRACTION = re.compile("[¼-¾⅐-⅞]")
SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁻]+")
WORD = re.compile(r"[^\W_]+|&")
ARTICLES = {"a", "an", "the"}
ANSWER_SEPARATORS = (re.compile(r"[,;\n]"), re.compile(r"[;\n]"), re.compile(r",\s|[;\n]"))
"""Ways to read an answer as a list: with commas, and, where its numbers are grouped by them, without."""
LAST_AND = re.compile(r"\s+(?:and|&)\s+")


def lenient_score(answer: str | None, gold: str) -> bool:
    """Whether a patient reader takes the answer for right."""
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
    return bool(LIST_SEPARATOR.search(gold)) and _same_list(typed_answer, typed_gold)


def _unwrap(text: str) -> str:
    text = text.strip(AROUND)
    while match := PREFIX.match(text):
        text = text[match.end() :].strip(AROUND)
    return text.removesuffix(".").strip(AROUND)


def _typed(text: str) -> str:
    """In lower case, with one form for letters, dashes and quotes; superscripts become powers ("m²" → "m^2")."""
    text = SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]), text)
    text = DASHES.sub("-", text.translate(QUOTES))
    text = FRACTION.sub(r" \g<0>", text)  # "3½" is 3 and a half, not 31 halves
    decomposed = unicodedata.normalize("NFKD", text.translate(LETTERS))
    decomposed = decomposed.replace("\u2044", "/")  # the slash of a fraction that was one character
    plain = "".join(letter for letter in decomposed if not unicodedata.combining(letter))
    return DASHES.sub("-", plain).casefold().strip()


def _same_element(answer: str, gold: str) -> bool:
    expected = read_quantity(gold)
    if expected is None or not expected.known:
        words = _words(gold)
        return bool(words) and words == _words(answer)
    given = read_quantity(answer)
    if given is None or given.value != expected.value:
        return False
    return not given.unit or not expected.unit or given.unit == expected.unit


def _words(text: str) -> str:
    """Letters and digits of a text without articles, numbers in words as digits."""
    words = ["and" if word == "&" else word for word in WORD.findall(text)]
    words = [word for word in words if word not in ARTICLES] or words  # "A" alone is an answer
    plain = []
    while words:
        value, count = words_value(words)
        plain.append(str(value) if count else words[0])
        words = words[count or 1 :]
    return "".join(plain)


def _same_list(answer: str, gold: str) -> bool:
    golds = [element.strip() for element in LIST_SEPARATOR.split(gold)]
    for separator in ANSWER_SEPARATORS:
        elements = [element.strip().removeprefix("and ") for element in separator.split(answer)]
        *head, last = elements
        if _match(elements, golds) or _match([*head, *LAST_AND.split(last)], golds):
            return True
    return False


def _match(answers: list[str], golds: list[str]) -> bool:
    """Whether each element of gold has an element of the answer to itself."""
    if len(answers) != len(golds):
        return False
    left = list(answers)
    for gold in golds:
        equal = next((answer for answer in left if _same_element(answer, gold)), None)
        if equal is None:
            return False
        left.remove(equal)
    return True

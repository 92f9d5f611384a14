"""Lenient scorer of answers, in addition to the official one. It accepts everything that the official scorer accepts.

The rules, in the order in which they are tried:

1. *Official.* The official scorer accepts the answer.
2. *Wrapping.* "FINAL ANSWER:", "The answer is", quotes, emphasis and a final full stop are removed. The remaining text
   is scored officially again.
3. *Typing.* Unicode forms are normalised (NFKC). Accents, dashes, quotes and case are ignored.
4. *Numbers.* Applies if gold is a number, with a known unit or without unit. The answer has to be one number with
   exactly the same value. It may group its digits, be in words, have a magnitude ("17 million"), a power of ten or a
   fraction. Nothing is rounded or converted. If gold has no unit, the answer may have any unit of one or two words. If
   gold has one, the answer has the same unit (kilometres are km) or none.
5. *Lists.* Applies if gold has a comma or semicolon. The answer has as many elements as gold, and each element of gold
   is leniently equal to a different element of the answer, in any order. "and" may join the last two. The same text
   with other commas is also accepted.
6. *Text.* Compared without articles, punctuation and whitespace; "&" is "and", numbers in words are digits.

Not accepted: abbreviations, synonyms, rounding, explanations around the answer. Rule 5 accepts a wrong order even if
the question asks for a certain one.
"""

from __future__ import annotations

import re
import unicodedata

from rlhf_lab.core.text import normalise
from rlhf_lab.packs.agents.gaia.numerals import read_quantity, words_value
from rlhf_lab.packs.agents.gaia.official import LIST_SEPARATOR, official_score

AROUND = " \t\n*_`\"'“”‘’«»"  # characters that are removed around an answer
PREFIX = re.compile(rf"(?:(?:the\s+)?(?:final\s+)?answer\s*(?:is\b|[:=])[\s:*_]*+[{AROUND}]*+)+", re.IGNORECASE)
DASHES = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]")  # all of Unicode's dashes and minus signs
QUOTES = str.maketrans("‘’‚“”„«»", '\'\'\'"""""')
LETTERS = str.maketrans(
    {"×": "x", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"}
)
"""Letters that Unicode does not decompose, and signs that occur in numbers."""
FRACTION = re.compile("[¼-¾⅐-⅞]")  # ½, ¾, ⅔
SUPERSCRIPT = re.compile("[⁰¹²³⁴-⁹⁻]+")
WORD = re.compile(r"[^\W_]+|&")  # letters and digits without the underscore; "&" stands for "and"
ARTICLES = {"a", "an", "the"}
MAX_NUMBER_WORDS = 30
"""Maximum number of words that are read as one number. "hundred" a thousand times would exceed Python's limit for
printing integers."""
ANSWER_SEPARATORS = (re.compile(r"[,;\n]"), re.compile(r"[;\n]"), re.compile(r",\s|[;\n]"))
"""Separators for reading an answer as a list: all commas, no commas, or only commas followed by a space. The last two
are for numbers whose digits are grouped by commas."""
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
    """Normalise letters, dashes, quotes and case; superscripts become powers ("m²" → "m^2")."""
    text = SUPERSCRIPT.sub(lambda match: "^" + unicodedata.normalize("NFKC", match[0]), text)
    text = DASHES.sub("-", text.translate(QUOTES))
    text = FRACTION.sub(r" \g<0>", text)  # "3½" is three and a half, not 31/2
    decomposed = normalise("NFKD", text.translate(LETTERS))
    decomposed = decomposed.replace("\u2044", "/")  # NFKD decomposes "½" to digits around a fraction slash
    # Combining characters are the accents, which NFKD separates from their letters.
    letters = [letter for letter in decomposed if not unicodedata.combining(letter)]
    return DASHES.sub("-", "".join(letters)).casefold().strip()


def _same_element(answer: str, gold: str) -> bool:
    expected = read_quantity(gold)
    if expected is None or not expected.known:
        words = _words(gold)
        return bool(words) and words == _words(answer)  # a gold answer of punctuation alone would equal an empty one
    provided = read_quantity(answer)
    if provided is None or provided.value != expected.value:
        return False
    if not provided.unit or not expected.unit:  # a question often names the unit, so an answer may leave it out
        return True
    return provided.unit == expected.unit


def _words(text: str) -> str:
    """Return the letters and digits of a text without articles, with numbers in words as digits."""
    words = ["and" if word == "&" else word for word in WORD.findall(text)]
    words = [word for word in words if word not in ARTICLES] or words  # "A" can be the entire answer
    normalised = []
    position = 0
    while position < len(words):
        # A limited number of words is read at a time, so that a long text cannot become one huge number.
        value, count = words_value(words[position : position + MAX_NUMBER_WORDS])
        if count:
            normalised.append(str(value))
            position += count
        else:
            normalised.append(words[position])
            position += 1
    return "".join(normalised)


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

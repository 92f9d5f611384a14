"""Final answers of worked solutions, and equality of two answers.

GSM8K (arXiv:2110.14168) ends a solution with "#### N". As in its official scorer, the first "####" followed by a number
counts, so that a response cannot try several answers. The comparison is more lenient than the official one, which does
not accept "$7", "7." and "7.0" as 7: signs, `$`, commas and a final period are removed, and numbers are compared by
value. Not supported for numbers: percent signs, units, words ("seven"), exponents, LaTeX beyond \\boxed and \\frac.
If the expected answer is no number ("B", "Paris", "7%"), the whole text after "####" is compared with it.
"""

from __future__ import annotations

import re
from fractions import Fraction

NUMBER = r"[-−+]?\$? ?[-−]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?"
MARKED = re.compile(rf"####[ \t]*({NUMBER})")  # the answer of GSM8K: "#### 1,000"
# any answer on the line: "#### New York"; a longer mark is read as well: "##### 7"
MARKED_TEXT = re.compile(r"(?<!#)#{4,}(?!#)[ \t]*(\S[^\n]*)")
# its content may have one level of braces: \boxed{\frac{1}{2}}
BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}")  # \frac{1}{2}, \dfrac{1}{2}
ANYWHERE = re.compile(rf"(?<![\w.,])({NUMBER})")  # a number that does not start within a word or another number
PLAIN = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:/[0-9]+)?")  # a normalised number: "-3.5", ".5", "1/2"
LONGEST = 100
"""Maximum number of characters of a text that is compared as a number."""


def final_answer(text: str, *, lenient: bool = False) -> str | None:
    r"""Return the answer of a solution as number text ("-1000", "3.50", "1/2"); None if it states none.

    Args:
        text: the solution.
        lenient: without "#### N", take the last \boxed{…} that contains a number, else the last number of the text.
    """
    marked = MARKED.search(text)
    if marked:
        return normalised(marked[1])
    if not lenient:
        return None
    for content in reversed(BOXED.findall(text)):
        boxed = normalised(FRACTION.sub(r"\1/\2", content))
        if PLAIN.fullmatch(boxed):
            return boxed
    numbers = ANYWHERE.findall(text)
    return normalised(numbers[-1]) if numbers else None


def states_answer(response: str, answer: str, *, lenient: bool = False) -> bool:
    """Return True if a solution states this answer; see `final_answer`. Rewards and metrics both use this function."""
    stated = stated_like(answer, response, lenient=lenient)
    return stated is not None and same_answer(stated, answer)


def stated_like(answer: str, response: str, *, lenient: bool = False) -> str | None:
    """Return the final answer of a response: a number if `answer` is one, else text; None if there is none."""
    return final_answer(response, lenient=lenient) if is_number(answer) else answer_text(response, lenient=lenient)


def is_number(answer: str) -> bool:
    """Return True if an answer is compared by value."""
    return _parse_number(normalised(answer)) is not None


def answer_text(text: str, *, lenient: bool = False) -> str | None:
    r"""Return the normalised text after the first "####"; None if it is missing.

    With `lenient`, the text in the last \boxed{…} is returned if there is no "####".
    """
    marked = MARKED_TEXT.search(text)
    boxed = BOXED.findall(text) if lenient else []
    if not marked and not boxed:
        return None
    return normalised(marked[1] if marked else boxed[-1]) or None


def same_answer(first: str, second: str) -> bool:
    """Return True if two answers are the same number (3.0 = 3, 1/2 = 0.5, 1,000 = 1000), or else the same text."""
    first = normalised(first)
    second = normalised(second)
    first_number = _parse_number(first)
    second_number = _parse_number(second)
    if first_number is None or second_number is None:
        return first == second
    return first_number == second_number


def ballot(response: str, *, lenient: bool = False, in_words: bool = False) -> str | None:
    """Return the answer of a response in canonical form: the same text for answers that `same_answer` equates.

    Args:
        in_words: True to read answers that are no numbers too.
    """
    in_text = answer_text(response, lenient=lenient) if in_words else None
    stated = in_text or final_answer(response, lenient=lenient)
    if stated is None:
        return None
    number = _parse_number(stated)
    return stated if number is None else str(number)


def normalised(answer: str) -> str:
    """Return an answer in lower case without spaces, `$`, commas, a leading plus and a final period; minus is "-"."""
    normalised = re.sub(r"[\s$,]", "", answer.casefold()).replace("−", "-")
    return normalised.removesuffix(".").removeprefix("+")


def _parse_number(plain: str) -> Fraction | None:
    """Return the value of a normalised answer; None for text, x/0, and numbers that are too long to compare."""
    if len(plain) > LONGEST or not PLAIN.fullmatch(plain):
        return None
    try:
        # Fraction reads "1/2" by itself, but not "1.5/2"
        numerator, _, denominator = plain.partition("/")
        return Fraction(numerator) / Fraction(denominator or 1)
    except ZeroDivisionError:
        return None

"""The final answer of a worked solution, and when two answers are the same number.

GSM8K (arXiv:2110.14168) ends a solution with "#### N". As in its official scorer, the first "####" that a number
follows counts, so a reply cannot try several answers and have the last one taken. The comparison is more lenient than
there, where "$7", "7." and "7.0" are not 7: signs, `$`, commas and a final period are removed, and numbers are compared
as numbers.
Left out: percent signs, units, words ("seven"), exponents, LaTeX beyond \\boxed and \\frac.
"""

from __future__ import annotations

import re
from fractions import Fraction

NUMBER = r"[-−+]?\$? ?[-−]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?"
MARKED = re.compile(rf"####[ \t]*({NUMBER})")
BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
FRACTION = re.compile(r"\\[dt]?frac\s*\{([^{}]+)\}\s*\{([^{}]+)\}")
ANYWHERE = re.compile(rf"(?<![\w.,])({NUMBER})")
PLAIN = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:/[0-9]+)?")
LONGEST = 100
"""Characters of the longest text that is compared as a number."""


def final_answer(text: str, *, lenient: bool = False) -> str | None:
    r"""The answer a solution states, as plain number text ("-1000", "3.50", "1/2"); None when it states none.

    Args:
        lenient: without "#### N", take the last \boxed{…} that holds a number, else the last number of the text.
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


def reaches(reply: str, answer: str, *, lenient: bool = False) -> bool:
    """Whether a solution states this answer; see `final_answer`. Rewards and metrics both decide by this function."""
    stated = final_answer(reply, lenient=lenient)
    return stated is not None and same_answer(stated, answer)


def same_answer(first: str, second: str) -> bool:
    """Whether two answers are one number, exactly (3.0 = 3, 1/2 = 0.5, 1,000 = 1000), or else one text."""
    first, second = normalised(first), normalised(second)
    first_number, second_number = _parse_number(first), _parse_number(second)
    if first_number is None or second_number is None:
        return first == second
    return first_number == second_number


def ballot(reply: str, *, lenient: bool = False) -> str | None:
    """The answer that a reply states, the same text for answers that `same_answer` takes for one."""
    stated = final_answer(reply, lenient=lenient)
    if stated is None:
        return None
    number = _parse_number(stated)
    return stated if number is None else str(number)


def normalised(answer: str) -> str:
    """An answer without spaces, `$`, commas, a leading plus and a final period; the sign is "-", letters are small."""
    plain = re.sub(r"[\s$,]", "", answer.casefold()).replace("−", "-")
    return plain.removesuffix(".").removeprefix("+")


def _parse_number(plain: str) -> Fraction | None:
    """The value of a normalised answer; None for text, x/0, and numbers too long to be compared."""
    if len(plain) > LONGEST or not PLAIN.fullmatch(plain):
        return None
    try:
        numerator, _, denominator = plain.partition("/")
        return Fraction(numerator) / Fraction(denominator or 1)
    except ZeroDivisionError:
        return None

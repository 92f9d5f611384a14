"""Code changes: three to six numbered lines of a small closed language, with zero, one or two defects.

A prompt is a transcript of one human turn:

    1 read price
    2 total = size + 1
    3 open socket
    4 stop if count == 0

Line 2 uses a variable that was never read, and the socket of line 3 is never closed. `find_defects` detects both from
the text alone, so any text of this language can be judged, even if it was not sampled.

A change consists of units. A unit belongs to one kind of defect, and is right or has the defect:

    off_by_one       loop i below items              loop i upto items
    wrong_operator   stop if count == 0              stop if count = 0
    unused_result    items = sort items              sort items
    wrong_variable   read price; total = price + 1   read price; total = size + 1
    missing_check    check count; total = size / count              total = size / count
    not_closed       open socket; …; close socket                   open socket; …

Not modelled: control flow, types, more than one defect in a line, and defects that only appear at run time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.splits import transcript

NUMBERS = ("count", "total", "price", "size", "score", "limit", "width", "height", "weight", "speed", "age", "depth")
LISTS = ("items", "users", "orders", "names", "rows", "cards")
RESOURCES = ("socket", "table", "lock", "stream")

KINDS = ("off_by_one", "wrong_operator", "unused_result", "wrong_variable", "missing_check", "not_closed")
ONE_LINE_KINDS = KINDS[:3]
"""Kinds of defect whose unit has one line, with the defect or without."""
DEFECTS = (0.25, 0.5, 0.25)
"""Probability of a change with 0, 1 and 2 defects. Two defects are of different kinds."""
MIN_LINES, MAX_LINES = 3, 6


class Defect(NamedTuple):
    """A defect of a change.

    Attributes:
        line: line number, from 1.
        kind: one of `KINDS`.
        name: name in its fix: the variable to use or to check, the resource to close; else empty.
    """

    line: int
    kind: str
    name: str = ""


@dataclass(frozen=True)
class Change:
    """Lines of code without their numbers, and their defects."""

    lines: tuple[str, ...]
    defects: tuple[Defect, ...]

    @property
    def text(self) -> str:
        """The prompt as text."""
        numbered = [f"{number} {line}" for number, line in enumerate(self.lines, start=1)]
        return transcript("\n".join(numbered))


_WORD = "([a-z]+)"
_READ = re.compile(f"read {_WORD}")
_ADD = re.compile(rf"{_WORD} = {_WORD} \+ 1")
_CHECK = re.compile(f"check {_WORD}")
_DIVIDE = re.compile(f"{_WORD} = {_WORD} / {_WORD}")
_OPEN = re.compile(f"open {_WORD}")
_CLOSE = re.compile(f"close {_WORD}")
# \1: the result of sorting has to be stored under the same name
_RIGHT = (f"loop i below {_WORD}", f"stop if {_WORD} == 0", rf"{_WORD} = sort \1")
_WRONG = {
    "off_by_one": re.compile(f"loop i upto {_WORD}"),
    "wrong_operator": re.compile(f"stop if {_WORD} = 0"),
    "unused_result": re.compile(f"sort {_WORD}"),
}
_TWO_LINE_FORMS = (_READ.pattern, _ADD.pattern, _CHECK.pattern, _DIVIDE.pattern)
_LINE = re.compile("|".join(f"(?:{form})" for form in _TWO_LINE_FORMS))
_OTHER = [re.compile(form) for form in _RIGHT] + [_OPEN, _CLOSE, *_WRONG.values()]


def find_defects(lines: tuple[str, ...]) -> tuple[Defect, ...]:
    """Return the defects of lines of code, by line. Raise DataError for a line that is not of the language."""
    defects: list[Defect] = []
    read: list[str] = []
    checked: set[str] = set()
    for number, line in enumerate(lines, start=1):
        # a line outside the language would silently count as right
        if not _LINE.fullmatch(line) and not any(form.fullmatch(line) for form in _OTHER):
            raise DataError(f"the review world does not know the line {line!r}; use only lines of its own language")
        defects += [Defect(number, kind) for kind, form in _WRONG.items() if form.fullmatch(line)]
        if match := _READ.fullmatch(line):
            read.append(match[1])
        elif match := _CHECK.fullmatch(line):
            checked.add(match[1])
        elif match := _ADD.fullmatch(line):
            if match[2] not in read:
                # the line was meant to use the variable that was read last
                defects.append(Defect(number, "wrong_variable", read[-1] if read else ""))
        elif match := _DIVIDE.fullmatch(line):
            if match[3] not in checked:
                defects.append(Defect(number, "missing_check", match[3]))
        # only a later line can close the resource
        elif (match := _OPEN.fullmatch(line)) and f"close {match[1]}" not in lines[number:]:
            defects.append(Defect(number, "not_closed", match[1]))
    return tuple(defects)


@lru_cache(maxsize=100_000)
def read_change(prompt: str) -> Change:
    """Parse a prompt into its change. Raise DataError for a text that is not a prompt of this world."""
    body = prompt.removeprefix("\n\nHuman: ").removesuffix("\n\nAssistant:")
    lines = tuple(line.partition(" ")[2] for line in body.split("\n"))
    change = Change(lines, ())
    # this check finds anything that was misread: the lines must reproduce the same text
    if not lines or change.text != prompt:
        raise DataError(
            f"the review world does not know the prompt {prompt.strip()[:60]!r}; use only comments on its own changes"
        )
    return Change(lines, find_defects(lines))


def draw_change(rng: np.random.Generator) -> Change:
    """Sample one change of either split. The number of lines is uniform in 3…6, the kinds of defects are uniform."""
    # The order of draws determines the corpus of a seed: changing it requires a new `world.VERSION`.
    names = _Names(rng)
    expected = int(rng.integers(MIN_LINES, MAX_LINES + 1))
    # without replacement below, so that two defects are of different kinds
    number = int(rng.choice(len(DEFECTS), p=DEFECTS))
    broken = [KINDS[i] for i in rng.choice(len(KINDS), size=number, replace=False)]
    units = [_unit(kind, names, right=False) for kind in broken]
    # fill up with right units; only a unit of one line fits if one line is missing
    while True:
        lengths = [len(opening) + len(closing) for opening, closing in units]
        missing = expected - sum(lengths)
        if missing <= 0:
            break
        kinds = KINDS if missing > 1 else ONE_LINE_KINDS
        kind = kinds[rng.integers(len(kinds))]
        units.append(_unit(kind, names, right=True))
    order = rng.permutation(len(units))
    lines = [line for i in order for line in units[i][0]]
    lines += [line for i in reversed(order) for line in units[i][1]]
    return Change(tuple(lines), find_defects(tuple(lines)))


class _Names:
    """Names for the units of one change. Each is used once, so that a unit cannot repair or break another."""

    def __init__(self, rng: np.random.Generator):
        self.numbers = [NUMBERS[i] for i in rng.permutation(len(NUMBERS))]
        self.lists = [LISTS[i] for i in rng.permutation(len(LISTS))]
        self.resources = [RESOURCES[i] for i in rng.permutation(len(RESOURCES))]


def _unit(kind: str, names: _Names, *, right: bool) -> tuple[list[str], list[str]]:
    """Return the lines of a unit: consecutive lines, and lines for the end of the change."""
    if kind == "off_by_one":
        return [f"loop i {'below' if right else 'upto'} {names.lists.pop()}"], []
    if kind == "wrong_operator":
        return [f"stop if {names.numbers.pop()} {'==' if right else '='} 0"], []
    if kind == "unused_result":
        rows = names.lists.pop()
        return [f"{rows} = sort {rows}" if right else f"sort {rows}"], []
    if kind == "not_closed":
        resource = names.resources.pop()
        return [f"open {resource}"], [f"close {resource}"] if right else []
    # the two kinds with two lines: a variable is checked or read before its use
    result, first, second = (names.numbers.pop() for _ in range(3))
    if kind == "missing_check":
        divide = f"{result} = {first} / {second}"
        return ([f"check {second}", divide] if right else [divide]), []
    return [f"read {first}", f"{result} = {first if right else second} + 1"], []

"""Arithmetic word problems: a short story about one running total, and the question about its final value.

A prompt is a transcript of one human turn:

    Kim has 5 shells. Kim finds 3 more. Kim doubles that. Kim loses 4. How many shells does Kim have now?

A story = name × noun × start × events. An event is one operation on the total, with one of three wordings (doubling and
tripling have one each). `read_problem` is the inverse of `Problem.text`, so any text of this grammar can be graded,
even if it was not sampled. Not modelled: distractors, amounts that must be computed before they are used, division,
negative numbers and fractions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from operator import add, mul, sub
from typing import NamedTuple

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.splits import split_of, transcript

NAMES = ("Ann", "Ben", "Eva", "Ian", "Kim", "Leo", "Mia", "Max", "Pia", "Sam", "Tom", "Zoe")
NOUNS = ("apples", "books", "cards", "coins", "eggs", "keys", "marbles", "pens", "plums", "shells", "stamps", "toys")
WORDINGS = {
    "+": ("finds {} more", "buys {} more", "gets {} more"),
    "-": ("loses {}", "sells {}", "gives away {}"),
    "*": ("doubles that", "triples that"),
}
FACTORS = {"doubles that": 2, "triples that": 3}
SHARES = {"+": 0.4, "-": 0.4, "*": 0.2}
"""Probability that an operation is sampled. It is sampled again if the total would leave the world's range of
numbers."""

OPERATIONS = {"+": add, "-": sub, "*": mul}


class ArithmeticEvent(NamedTuple):
    """One operation on the running total: `total = total operation operand`, and its wording."""

    operation: str
    operand: int
    wording: str

    def total_after(self, total: int) -> int:
        """Return the total after the event."""
        return OPERATIONS[self.operation](total, self.operand)


@dataclass(frozen=True)
class Problem:
    """A story. All numbers are non-negative integers.

    Attributes:
        noun: objects that the person has.
        start: number of objects at the beginning.
        events: changes of the number, in order; each is one step of the solution.
    """

    name: str
    noun: str
    start: int
    events: tuple[ArithmeticEvent, ...]

    @cached_property
    def totals(self) -> tuple[int, ...]:
        """Running total at the start and after each event: events + 1 numbers."""
        totals = [self.start]
        for event in self.events:
            totals.append(event.total_after(totals[-1]))
        return tuple(totals)

    @property
    def answer(self) -> int:
        return self.totals[-1]

    @property
    def arithmetic(self) -> str:
        """Story without its words: "5+3*2-4", applied from left to right."""
        operations = [f"{event.operation}{event.operand}" for event in self.events]
        return f"{self.start}" + "".join(operations)

    @property
    def split(self) -> str:
        """Split of the problem, "train" or "test". It depends on a hash of `arithmetic` only, so problems of different
        splits never have the same numbers, whatever their words."""
        return split_of(self.arithmetic)

    @cached_property
    def text(self) -> str:
        """The prompt as text."""
        opening = f"{self.name} has {self.start} {self.noun}."
        events = [f"{self.name} {event.wording.format(event.operand)}." for event in self.events]
        question = f"How many {self.noun} does {self.name} have now?"
        return transcript(" ".join([opening, *events, question]))


def draw_problem(rng: np.random.Generator, *, min_steps: int, max_steps: int, largest: int) -> Problem:
    """Sample one problem of either split.

    The number of steps is uniform in min_steps…max_steps, the start in 2…largest/2, operands of + and − in
    1…largest/4. Totals stay in 0…largest, and only totals above 0 are multiplied.
    """
    # The order of draws determines the corpus of a seed: changing it requires a new `world.VERSION`.
    name = NAMES[rng.integers(len(NAMES))]
    noun = NOUNS[rng.integers(len(NOUNS))]
    start = int(rng.integers(2, largest // 2 + 1))
    steps = int(rng.integers(min_steps, max_steps + 1))
    total = start
    events: list[ArithmeticEvent] = []
    while len(events) < steps:
        event = _draw_event(rng, largest // 4)
        # multiplying 0 would be an event without effect
        if 0 <= event.total_after(total) <= largest and (total > 0 or event.operation != "*"):
            events.append(event)
            total = event.total_after(total)
    return Problem(name, noun, start, tuple(events))


def _draw_event(rng: np.random.Generator, largest_operand: int) -> ArithmeticEvent:
    draw = rng.random()
    if draw < SHARES["+"]:
        operation = "+"
    elif draw < SHARES["+"] + SHARES["-"]:
        operation = "-"
    else:
        operation = "*"
    wordings = WORDINGS[operation]
    wording = wordings[rng.integers(len(wordings))]
    operand = FACTORS.get(wording) or int(rng.integers(1, largest_operand + 1))  # "doubles that" uses no random number
    return ArithmeticEvent(operation, operand, wording)


_NUMBER = "([0-9]{1,9})"  # at most nine digits, so that no text makes Python read a huge number
_START = re.compile(rf"\n\nHuman: (\w+) has {_NUMBER} (\w+)\.")
_WORDING = {
    re.compile(re.escape(wording).replace(r"\{\}", _NUMBER)): (operation, wording)
    for operation, wordings in WORDINGS.items()
    for wording in wordings
}


def read_problem(prompt: str) -> Problem:
    """Parse a prompt into its problem. Raise DataError for a text that is not a prompt of this world."""
    opening = _START.match(prompt)
    if opening:
        name, start, noun = opening.groups()
        sentences = prompt[opening.end() :].split(". ")[:-1]  # without the question
        actions = [sentence.strip().removeprefix(f"{name} ") for sentence in sentences]
        known = tuple(filter(None, map(_read_event, actions)))
        problem = Problem(name, noun, int(start), known)
        # This check finds anything that was skipped or misread: the problem must reproduce the same text.
        if problem.text == prompt and min(problem.totals) >= 0:
            return problem
    raise DataError(
        f"the arithmetic world does not know the prompt {prompt.strip()[:60]!r}; grade only responses to "
        "its own problems"
    )


def _read_event(sentence: str) -> ArithmeticEvent | None:
    """Parse a sentence without the person's name, such as "finds 3 more", as an event; None for any other text."""
    for pattern, (operation, wording) in _WORDING.items():
        match = pattern.fullmatch(sentence)
        if match:
            return ArithmeticEvent(operation, FACTORS.get(wording) or int(match[1]), wording)
    return None

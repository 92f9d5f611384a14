"""What a request asks, as data (`Request.about`): what a simulated judge or writer reads instead of the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Comparison:
    """Which of two replies is better?

    Attributes:
        first, second: replies, in the order in which they are shown.
        authors: who wrote them, in the same order; "" where that is not known.
        principles: names of those of which one is to be named as deciding; empty asks for none.
    """

    prompt: str
    first: str
    second: str
    authors: tuple[str, str] = ("", "")
    principles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grading:
    """What grade does a reply get on each criterion?

    Attributes:
        low, high: the worst and the best grade.
    """

    prompt: str
    reply: str
    criteria: tuple[str, ...]
    low: float = 1.0
    high: float = 5.0


@dataclass(frozen=True)
class Refusal:
    """Does a reply refuse what its prompt asks for, or give it?"""

    prompt: str
    reply: str


@dataclass(frozen=True)
class Writing:
    """Write a reply, a critique of one, its revision, or a new prompt.

    Attributes:
        prompt: the conversation that is replied to; of a new prompt, an example.
        draft: the reply that is criticised or revised.
        principles: of a critique, names of those that are looked at; of a revision, of those that the critique found
            violated.
        count: how many new prompts.
        draw: which of several independent writings this is.
    """

    kind: Literal["reply", "critique", "revision", "prompt"]
    prompt: str
    draft: str = ""
    principles: tuple[str, ...] = ()
    count: int = 1
    draw: int = 0

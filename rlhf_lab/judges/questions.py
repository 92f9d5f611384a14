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
    """

    prompt: str
    first: str
    second: str
    authors: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Grading:
    """What grade does a reply get on each criterion?"""

    prompt: str
    reply: str
    criteria: tuple[str, ...]


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
        principle: name of the principle that a critique or a revision is about.
        critique: what the revision goes by.
        draw: which of several independent writings this is.
    """

    kind: Literal["reply", "critique", "revision", "prompt"]
    prompt: str
    draft: str = ""
    principle: str = ""
    critique: str = ""
    draw: int = 0

"""Content of a request as data (`CompletionRequest.about`), which simulated judges and writers read instead of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PairwiseQuestion:
    """Question to a judge: the better one of two responses.

    Attributes:
        prompt: the conversation that both respond to.
        first, second: responses, in the order shown to the judge.
        authors: authors of the responses, in the same order; "" if unknown.
        principles: criteria from which the judge names the one that decided; empty asks for none.
    """

    prompt: str
    first: str
    second: str
    authors: tuple[str, str] = ("", "")
    principles: tuple[str, ...] = ()


@dataclass(frozen=True)
class GradingQuestion:
    """Question to a judge: the grade of a response on each criterion.

    Attributes:
        low, high: the worst and the best grade.
    """

    prompt: str
    response: str
    criteria: tuple[str, ...]
    low: float = 1.0
    high: float = 5.0


@dataclass(frozen=True)
class Refusal:
    """Question to a judge: does a response refuse its prompt, answer it, and is it on topic?"""

    prompt: str
    response: str


@dataclass(frozen=True)
class Writing:
    """Request to a writer: a response, a critique of one, its revision, or new prompts.

    Attributes:
        kind: kind of text.
        prompt: the conversation to respond to; for new prompts, an example.
        draft: the response to criticise or revise.
        principles: for a critique, the principles to check; for a revision, the principles that the draft violates.
        count: number of new prompts.
        draw: index among independent texts of the same kind.
    """

    kind: Literal["reply", "critique", "revision", "prompt"]
    prompt: str
    draft: str = ""
    principles: tuple[str, ...] = ()
    count: int = 1
    draw: int = 0

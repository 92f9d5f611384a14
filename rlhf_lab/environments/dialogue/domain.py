"""The form of a domain of the dialogue world: topics, attributes and a few fixed sentences.

Templates: `{t}` is a topic, `{v}` a value. No template needs a verb to agree with its topic, so that every topic fits
every template and "that" can replace the topic in a follow-up question.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """One thing that can be asked about every topic of a domain.

    Args:
        name: noun, as in "The best NAME for {t} is {v}.", the first surface form of the fact.
        question: how it is asked, with `{t}`.
        form: the second surface form of the fact, with `{t}` and `{v}`.
        values: the six candidate values; exactly one is right for each topic.
        detail: an actionable sentence that is useful whatever the value.
    """

    name: str
    question: str
    form: str
    values: tuple[str, ...]
    detail: str


@dataclass(frozen=True)
class Domain:
    """A field of everyday knowledge.

    Args:
        topics: nouns.
        attributes: in order of importance; a broad question wants the first three.
        broad: the broad question, with `{t}`.
        starter: first step for a beginner.
        pointer: where to look when the answer is unknowable.
        unsafe_requests: harmful questions, with `{t}`.
        unsafe_steps: sentences that comply with them.
        alternative: the safe offer that goes with a refusal.
    """

    topics: tuple[str, ...]
    attributes: tuple[Attribute, ...]
    broad: str
    starter: str
    pointer: str
    unsafe_requests: tuple[str, ...]
    unsafe_steps: tuple[str, ...]
    alternative: str


def values(text: str) -> tuple[str, ...]:
    """A comma-separated list as a tuple."""
    return tuple(text.split(", "))

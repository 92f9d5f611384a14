"""Structure of a domain of the dialogue world: topics, attributes and a few fixed sentences.

Templates: `{t}` is a topic, `{v}` a value. No verb of a template has to agree with its topic, so every topic fits every
template, and "that" can replace the topic in a follow-up question.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attribute:
    """Property that every topic of a domain has and that a question can ask for.

    Args:
        name: noun, as in "The best NAME for {t} is {v}.", the first surface form of the fact.
        question: question about it, with `{t}`.
        form: second surface form of the fact, with `{t}` and `{v}`.
        values: six candidate values, of which exactly one is right for each topic.
        detail: actionable sentence that is useful for every value.
    """

    name: str
    question: str
    form: str
    values: tuple[str, ...]
    detail: str


@dataclass(frozen=True)
class Domain:
    """Field of everyday knowledge.

    Args:
        topics: nouns.
        attributes: attributes in order of importance; a broad question asks for the first three.
        broad: broad question, with `{t}`.
        starter: first step for a beginner.
        pointer: source to consult if the answer is unknowable.
        unsafe_requests: harmful questions, with `{t}`.
        unsafe_steps: sentences that comply with them.
        alternative: safe offer that accompanies a refusal.
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
    """Split a comma-separated list into a tuple."""
    return tuple(text.split(", "))

"""Capabilities: what data provide, and what algorithms, rewards, models and judges require of them.

A data source declares what it `provides`. Every other component declares what it `requires`: a tuple in which each item
must be met. An item with several flags (`PAIRS | UNPAIRED`) is met by any one of them. `config/matching.py` compares
both for every component of a run, so no component lists the names of others.
"""

from __future__ import annotations

from enum import Flag, auto


class Capability(Flag):
    """Properties of the rows of a data source, and of the responses to its prompts."""

    TEXT = auto()
    AUDIO = auto()
    PHONES = auto()
    SINGLE_TURN = auto()
    TURNS = auto()
    PAIRS = auto()
    UNPAIRED = auto()
    DEMONSTRATIONS = auto()
    ANSWERS = auto()
    STEPS = auto()
    GRADES = auto()
    TRUE_REWARD = auto()
    VERBOSITY = auto()

    @property
    def title(self) -> str:
        """Description of the flags as a noun phrase for messages; several flags are joined by "or"."""
        return " or ".join(TITLES[flag] for flag in self)


TITLES = {
    Capability.TEXT: "responses that are text",
    Capability.AUDIO: "responses that are audio",
    Capability.PHONES: "the phones that each response should say",
    Capability.SINGLE_TURN: "responses of a single turn",
    Capability.TURNS: "an environment that answers the policy",
    Capability.PAIRS: "preference pairs",
    Capability.UNPAIRED: "single responses that were liked or disliked",
    Capability.DEMONSTRATIONS: "responses to imitate",
    Capability.ANSWERS: "answers that can be checked",
    Capability.STEPS: "the correctness of each step",
    Capability.GRADES: "grades on a rubric",
    Capability.TRUE_REWARD: "a true reward that is known",
    Capability.VERBOSITY: "text of people, or a world that recognises verbose responses",
}

Requirements = tuple[Capability, ...]


def missing(requires: Requirements, provides: Capability) -> list[Capability]:
    """Return the items of `requires` of which `provides` has no flag."""
    return [item for item in requires if not item & provides]


def reads(requires: Requirements, capability: Capability) -> bool:
    """Return True if one item of `requires` can be met by `capability`, or by any of its flags."""
    return any(item & capability for item in requires)

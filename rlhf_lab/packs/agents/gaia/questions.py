"""One question of GAIA, of the official set or of our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class GaiaQuestion:
    """What is asked, and what is known about it.

    Attributes:
        id: unique in its set.
        level: 1 (few steps), 2, or 3 (many steps and tools).
        answer: the gold answer; None where it is kept back, as in the official test split.
        files: name of an attachment → where its set keeps it.
        steps: the annotator's calls in order, {"tool": …, "arguments": {…}} each; none where the set has none.
        tools: names of the tools that the annotator used; none where the set does not name ours.
        notes: what the annotator wrote about the question, for people.
    """

    id: str
    question: str
    level: int
    answer: str | None
    files: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[str, ...] = ()
    notes: str = ""

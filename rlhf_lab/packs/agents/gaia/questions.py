"""Record of one GAIA question, official or built-in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class GaiaQuestion:
    """A question and its annotations.

    Attributes:
        id: id, unique in its set.
        question: text of the question.
        level: 1 (few steps), 2, or 3 (many steps and tools).
        answer: the gold answer; None if it is secret, as in the official test split.
        files: name of an attachment → its location in the set.
        steps: the annotator's calls in order, each as {"tool": …, "arguments": {…}}; empty if the set has none.
        tools: names of the tools that the annotator used; empty if the set has other names for tools.
        notes: the annotator's explanation, for human readers.
    """

    id: str
    question: str
    level: int
    answer: str | None
    # The fields below are optional annotations.
    files: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[str, ...] = ()
    notes: str = ""

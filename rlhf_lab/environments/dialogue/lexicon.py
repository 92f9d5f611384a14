"""Lexicon of all sentences that a response can contain, with their meanings. Any other sentence is degenerate (garble).

The lookup is exact up to whitespace: one changed, missing or repeated word makes a sentence unknown. A response that is
cut off in the middle of a sentence therefore ends in garble.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from rlhf_lab.environments.dialogue import phrases
from rlhf_lab.environments.dialogue.knowledge import FORMS, VALUES, DialogueKnowledge, Topic

_SENTENCE = re.compile(r"[^.!?]*[.!?]+|[^.!?]+")  # up to its marks, or to the end of a text that was cut off


NOWHERE = Topic(-1, -1)
"""Topic of sentences common to all domains."""


class Meaning(NamedTuple):
    """Meaning of a sentence. Two sentences with the same meaning repeat each other.

    Attributes:
        kind: fact, detail, starter, refusal, alternative, hedge, pointer, belief, unsafe, affirmation, filler, closing.
        topic: topic of the sentence. For a sentence of a domain only `topic.domain` counts. `NOWHERE` if the sentence
            is common to all domains.
        which: attribute of a fact or detail; index of the sentence for kinds in which every sentence has a separate
            meaning (belief, unsafe, affirmation, filler, closing); else 0.
        value: stated value of a fact, else 0.
    """

    kind: str
    topic: Topic = NOWHERE
    which: int = 0
    value: int = 0


PADDING = frozenset({"affirmation", "filler", "closing"})
"""Kinds without content. Every occurrence has a cost, not only the first."""


def sentences(text: str) -> list[str]:
    """Split text at ".", "!" and "?". Runs of whitespace become one space; text without words has no sentences."""
    return _SENTENCE.findall(" ".join(text.split()))


class Lexicon:
    """Sentence → meaning for one world. The candidate generator uses the same sentences."""

    def __init__(self, facts: DialogueKnowledge):
        self._meaning: dict[str, Meaning] = {}
        self._add_shared()
        for domain in range(len(facts.domains)):
            self._add_domain(facts, domain)
        for topic in facts.topics:
            noun = facts.noun(topic)
            for index, belief in enumerate(phrases.TOPIC_BELIEFS):
                self._add(belief.format(t=noun), Meaning("belief", topic, index))
            # every value, because responses may also state wrong ones
            for attribute in facts.attributes:
                for value in range(VALUES):
                    for form in range(FORMS):
                        sentence = facts.fact(topic, attribute, value, form)
                        self._add(sentence, Meaning("fact", topic, attribute, value))

    def _add(self, sentence: str, meaning: Meaning) -> None:
        """Add a sentence. Raise ValueError if it has another meaning already: texts of domains must not collide."""
        if self._meaning.setdefault(sentence, meaning) != meaning:
            raise ValueError(f"{sentence!r} has two meanings: {self._meaning[sentence]} and {meaning}")

    def _add_shared(self) -> None:
        for kind, group in (
            ("affirmation", phrases.AFFIRMATIONS),
            ("filler", phrases.FILLERS),
            ("closing", phrases.CLOSINGS),
            ("belief", phrases.BELIEFS),
        ):
            for index, sentence in enumerate(group):
                self._add(sentence, Meaning(kind, which=index))
        # all refusals mean the same, and so do all hedges: a second one is a repeat
        for kind, group in (("refusal", phrases.REFUSALS), ("hedge", phrases.HEDGES)):
            for sentence in group:
                self._add(sentence, Meaning(kind))

    def _add_domain(self, facts: DialogueKnowledge, number: int) -> None:
        domain = facts.domains[number]
        any_topic = Topic(number, 0)  # for a sentence of a domain only `topic.domain` counts
        self._add(domain.starter, Meaning("starter", any_topic))
        self._add(domain.pointer, Meaning("pointer", any_topic))
        self._add(domain.alternative, Meaning("alternative", any_topic))
        for which, step in enumerate(domain.unsafe_steps):
            self._add(step, Meaning("unsafe", any_topic, which))
        for attribute in facts.attributes:
            self._add(domain.attributes[attribute].detail, Meaning("detail", any_topic, attribute))

    def __len__(self) -> int:
        return len(self._meaning)

    def __iter__(self) -> Iterator[str]:
        return iter(self._meaning)

    def get(self, sentence: str) -> Meaning | None:
        """Return the meaning of a sentence without surrounding whitespace, or None for garble."""
        return self._meaning.get(sentence)

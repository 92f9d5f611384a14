"""Facts of one world: which value is right for which topic, and the sentences that state it.

The seed determines the facts of the largest world. A smaller world has the first of its domains, topics and attributes,
so a fact is the same at every size. All values are independent of each other: none can be inferred from the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rlhf_lab.environments.dialogue.content import DOMAINS, Attribute, Domain
from rlhf_lab.environments.dialogue.phrases import FACT_FORM

VALUES = 6
"""Number of candidate values of an attribute."""
FORMS = 2
"""Number of sentences that state a fact, with the same meaning."""
_FACT_STREAM = 0
"""Part of the seed of the facts, which separates their random stream from those of samples."""


class Topic(NamedTuple):
    """A topic by its indices: `DOMAINS[domain].topics[position]`."""

    domain: int
    position: int


class DialogueKnowledge:
    """Facts of a world of `domains` × `topics` × `attributes`.

    Args:
        domains: number of domains, 1…6.
        topics: number of topics per domain, 1…4.
        attributes: number of attributes per topic, 3…5 (a broad question asks for three).
        seed: seed of the right values, which are uniform and independent; ≥ 0.
    """

    def __init__(self, *, domains: int, topics: int, attributes: int, seed: int):
        self.domains = DOMAINS[:domains]
        self.topics = [Topic(d, t) for d in range(domains) for t in range(topics)]
        self.attributes = range(attributes)
        # always sample the largest world, so that a fact does not depend on the size of the world
        rng = np.random.default_rng([seed, _FACT_STREAM])
        selected = rng.integers(VALUES, size=(len(DOMAINS), 4, 5))
        self._right: list[list[list[int]]] = selected.tolist()

    def domain(self, topic: Topic) -> Domain:
        return self.domains[topic.domain]

    def noun(self, topic: Topic) -> str:
        return self.domains[topic.domain].topics[topic.position]

    def attribute(self, topic: Topic, attribute: int) -> Attribute:
        return self.domains[topic.domain].attributes[attribute]

    def correct_value_index(self, topic: Topic, attribute: int) -> int:
        """Return the index of the right value, 0…5."""
        return self._right[topic.domain][topic.position][attribute]

    def fact(self, topic: Topic, attribute: int, value: int, form: int) -> str:
        """Return the sentence that states `value` (0…5) for an attribute, in surface form 0 or 1."""
        described = self.attribute(topic, attribute)
        template = described.form if form else FACT_FORM
        return template.format(name=described.name, t=self.noun(topic), v=described.values[value])

"""Prompts of the dialogue world: every combination of intent, topic and constraint, as transcripts.

A prompt is "\\n\\nHuman: …\\n\\nAssistant:". All prompts of a world are enumerated once (6,720 at full size). The
split of a prompt is a hash of its text. It is therefore independent of the seed, the size of the world, the order of
sampling and Python's hash seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.dialogue.knowledge import DialogueKnowledge, Topic
from rlhf_lab.environments.dialogue.phrases import (
    BROAD_QUESTION,
    CONSTRAINTS,
    PAIR_QUESTION,
    PLAIN_QUESTION,
    UNKNOWABLE_QUESTIONS,
)
from rlhf_lab.environments.splits import SPLITS, require_split, split_of, transcript

# Sampling probabilities; see `PromptBook.draw`.
INTENTS = {"one": 0.28, "broad": 0.22, "two": 0.14, "follow_up": 0.16, "unknowable": 0.08, "unsafe": 0.12}
CONSTRAINT_SHARES = {"none": 0.40, "short": 0.15, "brief": 0.15, "detailed": 0.15, "beginner": 0.15}
SHORT = ("short", "brief")


@dataclass(frozen=True)
class DialoguePrompt:
    """A question, and the properties that determine a good response to it.

    Attributes:
        text: transcript.
        intent: key of `INTENTS`.
        asked: requested attributes, most important first; empty for unsafe and unknowable prompts.
        constraint: key of `CONSTRAINTS`.
    """

    text: str
    intent: str
    topic: Topic
    asked: tuple[int, ...]
    constraint: str

    @property
    def answerable(self) -> bool:
        return bool(self.asked)

    @property
    def wants_short_response(self) -> bool:
        """True if the user asks for a short response."""
        return self.constraint in SHORT


def _questions(facts: DialogueKnowledge, topic: Topic) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    """Yield (intent, requested attributes, turns without a constraint) of every question about a topic."""
    domain = facts.domain(topic)
    noun = facts.noun(topic)
    indices = facts.attributes
    attributes = domain.attributes
    for a in indices:
        yield "one", (a,), (attributes[a].question.format(t=noun),)
        yield "one", (a,), (PLAIN_QUESTION.format(name=attributes[a].name, t=noun),)
    for template in (domain.broad, BROAD_QUESTION):
        yield "broad", tuple(indices[:3]), (template.format(t=noun),)
    for a, b in permutations(indices, 2):
        pair_question = PAIR_QUESTION.format(first=attributes[a].name, second=attributes[b].name, t=noun)
        yield "two", (a, b), (pair_question,)
        # the first turn has the right answer; the second question refers to the topic as "that"
        first_question = attributes[a].question.format(t=noun)
        first_response = facts.fact(topic, a, facts.correct_value_index(topic, a), form=0)
        second_question = attributes[b].question.format(t="that")
        yield "follow_up", (b,), (first_question, first_response, second_question)
    for template in UNKNOWABLE_QUESTIONS:
        yield "unknowable", (), (template.format(t=noun),)
    for template in domain.unsafe_requests:
        yield "unsafe", (), (template.format(t=noun),)


def enumerate_prompts(facts: DialogueKnowledge) -> Iterator[DialoguePrompt]:
    """Yield every prompt of a world in a fixed order."""
    for topic in facts.topics:
        for intent, asked, turns in _questions(facts, topic):
            for constraint, request in CONSTRAINTS.items():
                last_turn = f"{turns[-1]} {request}".rstrip()
                text = transcript(*turns[:-1], last_turn)
                yield DialoguePrompt(text, intent, topic, asked, constraint)


class PromptBook:
    """Prompts of a world: lookup by text, and sampling with the probabilities of `INTENTS` and `CONSTRAINT_SHARES`."""

    def __init__(self, facts: DialogueKnowledge):
        self._by_text: dict[str, DialoguePrompt] = {}
        groups: dict[str, dict[tuple[str, str], list[DialoguePrompt]]] = {split: {} for split in SPLITS}
        for prompt in enumerate_prompts(facts):
            # `__getitem__` ignores surrounding whitespace
            self._by_text[prompt.text.strip()] = prompt
            split_groups = groups[split_of(prompt.text)]
            split_groups.setdefault((prompt.intent, prompt.constraint), []).append(prompt)
        self._groups = {split: list(group.values()) for split, group in groups.items()}
        self._edges = {split: _cumulative_fractions(list(group)) for split, group in groups.items()}

    def __len__(self) -> int:
        return len(self._by_text)

    def __getitem__(self, text: str) -> DialoguePrompt:
        """Return the prompt of a transcript. Surrounding whitespace is ignored."""
        try:
            return self._by_text[text.strip()]
        except KeyError:
            raise DataError(
                f"the dialogue world does not know the prompt {text[:200]!r}; it grades responses to its own prompts "
                "only. Use prompts of this corpus, generated with the same seed, domains, topics and attributes"
            ) from None

    def all(self, split: str) -> list[str]:
        """Return every prompt text of a split in a fixed order."""
        require_split(split)
        return [prompt.text for prompt in self._by_text.values() if split_of(prompt.text) == split]

    def draw(self, split: str, rng: np.random.Generator) -> DialoguePrompt:
        """Sample one prompt with replacement: first (intent, constraint) by probability, then one of that group."""
        number = int(np.searchsorted(self._edges[split], rng.random(), side="right"))
        group = self._groups[split][number]
        return group[int(rng.random() * len(group))]

    def sample(self, n: int, split: str, rng: np.random.Generator) -> list[DialoguePrompt]:
        """Sample n prompts with replacement."""
        require_split(split)
        return [self.draw(split, rng) for _ in range(n)]


def _cumulative_fractions(groups: Sequence[tuple[str, str]]) -> np.ndarray:
    """Return the cumulative probability, in (0, 1], of each (intent, constraint) group with prompts in the split."""
    products = [INTENTS[intent] * CONSTRAINT_SHARES[constraint] for intent, constraint in groups]
    fractions = np.array(products)
    edges = np.cumsum(fractions) / fractions.sum()
    edges[-1] = 1.0  # rounding may leave it below 1, and a random number above it would have no group
    return edges

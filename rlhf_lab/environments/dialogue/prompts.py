"""Every question the world knows: intent × topic × constraint, as transcripts.

A prompt is "\\n\\nHuman: …\\n\\nAssistant:". All prompts of a world are enumerated once (about 6,500 at full size);
the split of a prompt is a hash of its text, so it depends on nothing else: not on the seed, the size of the world, the
order of sampling or Python's hash seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from rlhf_lab.core.errors import DataError
from rlhf_lab.environments.dialogue.knowledge import KnowledgeBase, Topic
from rlhf_lab.environments.dialogue.phrases import (
    BROAD_QUESTION,
    CONSTRAINTS,
    PAIR_QUESTION,
    PLAIN_QUESTION,
    UNKNOWABLE_QUESTIONS,
)
from rlhf_lab.environments.splits import SPLITS, split_of, transcript

# How often each is drawn; see `PromptBook.draw`.
INTENTS = {"one": 0.28, "broad": 0.22, "two": 0.14, "follow_up": 0.16, "unknowable": 0.08, "unsafe": 0.12}
CONSTRAINT_SHARES = {"none": 0.40, "short": 0.15, "brief": 0.15, "detailed": 0.15, "beginner": 0.15}
SHORT = ("short", "brief")


@dataclass(frozen=True)
class Prompt:
    """A question and what a good reply to it contains.

    Args:
        text: the transcript.
        intent: a key of `INTENTS`.
        topic: what it is about.
        asked: attributes that are asked for, most important first; empty for unsafe and unknowable prompts.
        constraint: a key of `CONSTRAINTS`.
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
    def short(self) -> bool:
        """The user asks for a short reply."""
        return self.constraint in SHORT


def _questions(facts: KnowledgeBase, topic: Topic) -> Iterator[tuple[str, tuple[int, ...], tuple[str, ...]]]:
    """(intent, asked attributes, turns without a constraint) of every question about a topic."""
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
        first_question = attributes[a].question.format(t=noun)
        first_reply = facts.fact(topic, a, facts.right(topic, a), form=0)
        yield "follow_up", (b,), (first_question, first_reply, attributes[b].question.format(t="that"))
    for template in UNKNOWABLE_QUESTIONS:
        yield "unknowable", (), (template.format(t=noun),)
    for template in domain.unsafe_requests:
        yield "unsafe", (), (template.format(t=noun),)


def enumerate_prompts(facts: KnowledgeBase) -> Iterator[Prompt]:
    """Every prompt of a world, in a fixed order."""
    for topic in facts.topics:
        for intent, asked, turns in _questions(facts, topic):
            for constraint, request in CONSTRAINTS.items():
                text = transcript(*turns[:-1], f"{turns[-1]} {request}".rstrip())
                yield Prompt(text, intent, topic, asked, constraint)


class PromptBook:
    """The prompts of a world: look-up by text, and sampling with the shares of `INTENTS` and `CONSTRAINT_SHARES`."""

    def __init__(self, facts: KnowledgeBase):
        self._by_text: dict[str, Prompt] = {}
        groups: dict[str, dict[tuple[str, str], list[Prompt]]] = {split: {} for split in SPLITS}
        for prompt in enumerate_prompts(facts):
            self._by_text[prompt.text.strip()] = prompt
            group = groups[split_of(prompt.text)].setdefault((prompt.intent, prompt.constraint), [])
            group.append(prompt)
        self._groups = {split: list(group.values()) for split, group in groups.items()}
        self._edges = {split: _cumulative_shares(list(group)) for split, group in groups.items()}

    def __len__(self) -> int:
        return len(self._by_text)

    def __getitem__(self, text: str) -> Prompt:
        """The prompt behind a transcript; whitespace around it does not matter."""
        try:
            return self._by_text[text.strip()]
        except KeyError:
            raise DataError(
                f"the dialogue world does not know the prompt {text[:200]!r}; it grades replies to its own prompts "
                "only. Use prompts of this corpus, made with the same seed, domains, topics and attributes"
            ) from None

    def all(self, split: str) -> list[str]:
        """Every prompt text of a split, in a fixed order."""
        self._check_split(split)
        return [prompt.text for prompt in self._by_text.values() if split_of(prompt.text) == split]

    def draw(self, split: str, rng: np.random.Generator) -> Prompt:
        """One prompt, with replacement: first its (intent, constraint) by their shares, then one of that group."""
        number = int(np.searchsorted(self._edges[split], rng.random(), side="right"))
        group = self._groups[split][number]
        return group[int(rng.random() * len(group))]

    def sample(self, n: int, split: str, rng: np.random.Generator) -> list[Prompt]:
        """n prompts, with replacement."""
        self._check_split(split)
        return [self.draw(split, rng) for _ in range(n)]

    @staticmethod
    def _check_split(split: str) -> None:
        if split not in SPLITS:
            raise DataError(f"split={split!r} does not exist; use {' or '.join(SPLITS)}")


def _cumulative_shares(groups: Sequence[tuple[str, str]]) -> np.ndarray:
    """Upper edges in (0, 1] of each (intent, constraint) group that is present; small splits may lack some."""
    shares = np.array([INTENTS[intent] * CONSTRAINT_SHARES[constraint] for intent, constraint in groups])
    edges = np.cumsum(shares) / shares.sum()
    edges[-1] = 1.0  # rounding can leave it below 1, and a draw above it would have no group
    return edges

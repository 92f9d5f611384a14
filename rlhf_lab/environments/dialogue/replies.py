"""Candidate replies: a latent quality decides what is said, an independent verbosity how much is said around it.

Quality and verbosity are independent by construction, so length carries no information about quality beyond the
length of the content itself. Corrupted candidates make garble known to whoever learns from the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rlhf_lab.environments.dialogue import phrases
from rlhf_lab.environments.dialogue.knowledge import FORMS, VALUES, KnowledgeBase, Topic
from rlhf_lab.environments.dialogue.lexicon import Lexicon, sentences
from rlhf_lab.environments.dialogue.prompts import Prompt

Item = TypeVar("Item")


@dataclass(frozen=True)
class CandidateRates:
    """Rates of the generator. q is the latent quality, uniform in (0, 1); v the verbosity, in (0, 1).

    Args:
        right: (a, b): P(a stated fact is right) = a + b·q; a wrong one takes another value uniformly.
        omit, off_topic, needless_refusal, needless_unsafe, belief, repeat: P = rate·(1 − q).
        detail: (a, b): P(a stated fact has its detail) = a + b·q; times `short_detail` when asked to be short.
        starter, refuse, alternative, hedge, pointer: (a, b): P = a + b·q where the prompt calls for it.
        verbosity_power: v = u^power, u uniform; higher means fewer verbose candidates.
        affirm, fill, close: P(each of at most 2 affirmations, 4 fillers, 2 closings) = rate·v.
        corrupt: share of candidates that are word-corrupted.
        truncate: share of the corrupted that are cut off instead of having words changed.
        damage: (low, high): share of words that a corruption changes, uniform.
    """

    right: tuple[float, float] = (0.5, 0.48)
    omit: float = 0.35
    off_topic: float = 0.30
    needless_refusal: float = 0.10
    needless_unsafe: float = 0.04
    belief: float = 0.20
    repeat: float = 0.08
    detail: tuple[float, float] = (0.25, 0.5)
    short_detail: float = 0.4
    starter: tuple[float, float] = (0.2, 0.6)
    refuse: tuple[float, float] = (0.4, 0.58)
    alternative: tuple[float, float] = (0.2, 0.7)
    hedge: tuple[float, float] = (0.35, 0.6)
    pointer: tuple[float, float] = (0.2, 0.7)
    verbosity_power: float = 2.0
    affirm: float = 0.6
    fill: float = 0.5
    close: float = 0.5
    corrupt: float = 0.12
    truncate: float = 0.25
    damage: tuple[float, float] = (0.03, 0.2)


class CandidateWriter:
    """Writes candidate replies of one world.

    Args:
        rates: how often what happens. All randomness comes from the generator passed to `write`.
    """

    def __init__(self, facts: KnowledgeBase, lexicon: Lexicon, rates: CandidateRates):
        self._facts = facts
        self._lexicon = lexicon
        self._rates = rates
        self._words = sorted({word for sentence in lexicon for word in sentence.rstrip(".!?").split()})

    def write(self, prompt: Prompt, rng: np.random.Generator) -> str:
        """One candidate: content by quality, padding by verbosity, then perhaps corruption."""
        rates = self._rates
        quality, verbosity = rng.random(), rng.random() ** rates.verbosity_power
        if prompt.intent == "unsafe":
            content = self._unsafe(prompt, quality, rng)
        elif prompt.intent == "unknowable":
            content = self._unknowable(prompt, quality, rng)
        else:
            content = self._answer(prompt, quality, rng)
        if content and rng.random() < rates.repeat * (1 - quality):
            content.append(_pick(content, rng))
        reply = " ".join(self._pad(content, verbosity, rng))
        return self._corrupt(reply, rng) if rng.random() < rates.corrupt else reply

    def ideal(self, prompt: Prompt) -> str:
        """Everything the prompt calls for and nothing else."""
        facts, topic = self._facts, prompt.topic
        domain = facts.domain(topic)
        if prompt.intent == "unsafe":
            return f"{phrases.REFUSALS[0]} {domain.alternative}"
        if prompt.intent == "unknowable":
            return f"{phrases.HEDGES[0]} {domain.pointer}"
        content = []
        for a in prompt.asked:
            forms = [facts.fact(topic, a, facts.right(topic, a), form) for form in range(FORMS)]
            content.append(min(forms, key=lambda form: len(form.split())))
        if not prompt.short:
            content += [facts.attribute(topic, a).detail for a in prompt.asked]
        if prompt.constraint == "beginner":
            content.append(domain.starter)
        return " ".join(content)

    def _answer(self, prompt: Prompt, quality: float, rng: np.random.Generator) -> list[str]:
        rates, facts, topic = self._rates, self._facts, prompt.topic
        if rng.random() < rates.needless_refusal * (1 - quality):
            return [_pick(phrases.REFUSALS, rng)]
        content = []
        detail = _linear(rates.detail, quality) * (rates.short_detail if prompt.short else 1)
        for attribute in prompt.asked:
            if rng.random() < rates.omit * (1 - quality):
                continue
            content.append(self._fact(topic, attribute, _linear(rates.right, quality), rng))
            if rng.random() < detail:
                content.append(facts.attribute(topic, attribute).detail)
        if prompt.constraint == "beginner" and rng.random() < _linear(rates.starter, quality):
            content.append(facts.domain(topic).starter)
        if rng.random() < rates.off_topic * (1 - quality):
            other = topic if rng.random() < 0.5 else _pick(facts.topics, rng)
            content.append(self._fact(other, _pick(facts.attributes, rng), _linear(rates.right, quality), rng))
        if rng.random() < rates.belief * (1 - quality):
            content.append(self._belief(topic, rng))
        if rng.random() < rates.needless_unsafe * (1 - quality):
            content.append(_pick(facts.domain(topic).unsafe_steps, rng))
        return content

    def _unsafe(self, prompt: Prompt, quality: float, rng: np.random.Generator) -> list[str]:
        domain = self._facts.domain(prompt.topic)
        if rng.random() < _linear(self._rates.refuse, quality):
            content = [_pick(phrases.REFUSALS, rng)]
            if rng.random() < _linear(self._rates.alternative, quality):
                content.append(domain.alternative)
            return content
        return _some(domain.unsafe_steps, 1 + int(rng.random() * 2), rng)

    def _unknowable(self, prompt: Prompt, quality: float, rng: np.random.Generator) -> list[str]:
        hedged = rng.random() < _linear(self._rates.hedge, quality)
        content = [_pick(phrases.HEDGES, rng) if hedged else self._belief(prompt.topic, rng, of_topic=1.0)]
        if rng.random() < _linear(self._rates.pointer, quality):
            content.append(self._facts.domain(prompt.topic).pointer)
        return content

    def _fact(self, topic: Topic, attribute: int, p_right: float, rng: np.random.Generator) -> str:
        value = self._facts.right(topic, attribute)
        if rng.random() >= p_right:
            value = (value + 1 + int(rng.random() * (VALUES - 1))) % VALUES
        return self._facts.fact(topic, attribute, value, form=int(rng.random() * FORMS))

    def _belief(self, topic: Topic, rng: np.random.Generator, of_topic: float = 0.3) -> str:
        if rng.random() < of_topic:
            return _pick(phrases.TOPIC_BELIEFS, rng).format(t=self._facts.noun(topic))
        return _pick(phrases.BELIEFS, rng)

    def _pad(self, content: list[str], verbosity: float, rng: np.random.Generator) -> list[str]:
        """Affirmations first, fillers anywhere between, closing offers last; at least one sentence in all."""
        rates = self._rates
        body = list(content)
        for filler in _some(phrases.FILLERS, rng.binomial(4, rates.fill * verbosity), rng):
            body.insert(int(rng.random() * (len(body) + 1)), filler)
        opening = _some(phrases.AFFIRMATIONS, rng.binomial(2, rates.affirm * verbosity), rng)
        ending = _some(phrases.CLOSINGS, rng.binomial(2, rates.close * verbosity), rng)
        return [*opening, *body, *ending] or [_pick(phrases.FILLERS, rng)]

    def _corrupt(self, reply: str, rng: np.random.Generator) -> str:
        """Change words until at least one sentence is unreadable."""
        while True:
            damaged = self._truncate(reply, rng) if rng.random() < self._rates.truncate else self._damage(reply, rng)
            if any(self._lexicon.get(part.strip()) is None for part in sentences(damaged)):
                return damaged

    def _truncate(self, reply: str, rng: np.random.Generator) -> str:
        words = reply.split()
        return " ".join(words[: 1 + int(rng.random() * (len(words) - 1))])

    def _damage(self, reply: str, rng: np.random.Generator) -> str:
        """Replace, drop, double or exchange words; the punctuation of a replaced word stays."""
        low, high = self._rates.damage
        share = low + (high - low) * rng.random()
        words: list[str] = []
        for word in reply.split():
            if rng.random() >= share:
                words.append(word)
                continue
            kind = int(rng.random() * 4)
            if kind == 0:
                words.append(_pick(self._words, rng).rstrip(",") + word[len(word.rstrip(".,!?")) :])
            elif kind == 1:
                words.extend((word, word))
            elif kind == 2 and words:
                words.insert(len(words) - 1, word)
            # kind 3, or nothing to exchange with: the word is dropped
        return " ".join(words)


def _linear(rate: tuple[float, float], quality: float) -> float:
    return rate[0] + rate[1] * quality


def _pick(items: Sequence[Item], rng: np.random.Generator) -> Item:
    return items[int(rng.random() * len(items))]


def _some(items: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """`count` different items in random order."""
    rest = list(items)
    return [rest.pop(int(rng.random() * len(rest))) for _ in range(count)]

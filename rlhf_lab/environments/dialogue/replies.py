"""Candidate replies: a latent quality determines the content, an independent verbosity the padding around it.

Quality and verbosity are independent by construction, so length carries no information about quality beyond the
length of the content itself. Corrupted candidates are there so that a model trained on the pairs has seen garble.
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

    def write(self, prompt: Prompt, rng: np.random.Generator, quality: float | None = None) -> str:
        """One candidate: content by quality, padding by verbosity, then perhaps corruption.

        Args:
            quality: q of `CandidateRates`; None draws it.
        """
        rates = self._rates
        # The order of draws in this class determines the corpus of a seed: changing it needs another `world.VERSION`.
        if quality is None:
            quality = rng.random()
        verbosity = rng.random() ** rates.verbosity_power
        if prompt.intent == "unsafe":
            content = self._reply_to_unsafe(prompt, quality, rng)
        elif prompt.intent == "unknowable":
            content = self._reply_to_unknowable(prompt, quality, rng)
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
            right = facts.right(topic, a)
            sentences_of_fact = [facts.fact(topic, a, right, form) for form in range(FORMS)]
            content.append(min(sentences_of_fact, key=lambda sentence: len(sentence.split())))  # the shorter one
        if not prompt.short:
            content += [facts.attribute(topic, a).detail for a in prompt.asked]
        if prompt.constraint == "beginner":
            content.append(domain.starter)
        return " ".join(content)

    def _answer(self, prompt: Prompt, quality: float, rng: np.random.Generator) -> list[str]:
        """Sentences of a reply to an answerable prompt."""
        rates, facts, topic = self._rates, self._facts, prompt.topic
        if rng.random() < rates.needless_refusal * (1 - quality):
            return [_pick(phrases.REFUSALS, rng)]
        content = []
        p_right = _linear(rates.right, quality)
        p_detail = _linear(rates.detail, quality) * (rates.short_detail if prompt.short else 1)
        for attribute in prompt.asked:
            if rng.random() < rates.omit * (1 - quality):
                continue
            content.append(self._state_fact(topic, attribute, p_right, rng))
            if rng.random() < p_detail:
                content.append(facts.attribute(topic, attribute).detail)
        if prompt.constraint == "beginner" and rng.random() < _linear(rates.starter, quality):
            content.append(facts.domain(topic).starter)
        if rng.random() < rates.off_topic * (1 - quality):
            off_topic = topic if rng.random() < 0.5 else _pick(facts.topics, rng)
            content.append(self._state_fact(off_topic, _pick(facts.attributes, rng), p_right, rng))
        if rng.random() < rates.belief * (1 - quality):
            content.append(self._state_belief(topic, rng))
        if rng.random() < rates.needless_unsafe * (1 - quality):
            content.append(_pick(facts.domain(topic).unsafe_steps, rng))
        return content

    def _reply_to_unsafe(self, prompt: Prompt, quality: float, rng: np.random.Generator) -> list[str]:
        """A refusal, perhaps with the safe alternative; else one or two harmful steps."""
        domain = self._facts.domain(prompt.topic)
        if rng.random() < _linear(self._rates.refuse, quality):
            content = [_pick(phrases.REFUSALS, rng)]
            if rng.random() < _linear(self._rates.alternative, quality):
                content.append(domain.alternative)
            return content
        return _pick_several(domain.unsafe_steps, 1 + int(rng.random() * 2), rng)

    def _reply_to_unknowable(self, prompt: Prompt, quality: float, rng: np.random.Generator) -> list[str]:
        """A hedge or else an overconfident claim, perhaps with a pointer to who knows more."""
        hedged = rng.random() < _linear(self._rates.hedge, quality)
        content = [_pick(phrases.HEDGES, rng) if hedged else self._state_belief(prompt.topic, rng, p_topic=1.0)]
        if rng.random() < _linear(self._rates.pointer, quality):
            content.append(self._facts.domain(prompt.topic).pointer)
        return content

    def _state_fact(self, topic: Topic, attribute: int, p_right: float, rng: np.random.Generator) -> str:
        """The right value with probability `p_right`, else one of the others, in either surface form."""
        value = self._facts.right(topic, attribute)
        if rng.random() >= p_right:
            value = (value + 1 + int(rng.random() * (VALUES - 1))) % VALUES
        return self._facts.fact(topic, attribute, value, form=int(rng.random() * FORMS))

    def _state_belief(self, topic: Topic, rng: np.random.Generator, p_topic: float = 0.3) -> str:
        """An overconfident claim, about the topic with probability `p_topic`."""
        if rng.random() < p_topic:
            return _pick(phrases.TOPIC_BELIEFS, rng).format(t=self._facts.noun(topic))
        return _pick(phrases.BELIEFS, rng)

    def _pad(self, content: list[str], verbosity: float, rng: np.random.Generator) -> list[str]:
        """Affirmations first, fillers anywhere between, closing offers last; at least one sentence in all."""
        rates = self._rates
        body = list(content)
        for filler in _pick_several(phrases.FILLERS, rng.binomial(4, rates.fill * verbosity), rng):
            body.insert(int(rng.random() * (len(body) + 1)), filler)
        opening = _pick_several(phrases.AFFIRMATIONS, rng.binomial(2, rates.affirm * verbosity), rng)
        ending = _pick_several(phrases.CLOSINGS, rng.binomial(2, rates.close * verbosity), rng)
        return [*opening, *body, *ending] or [_pick(phrases.FILLERS, rng)]

    def _corrupt(self, reply: str, rng: np.random.Generator) -> str:
        """Change words until at least one sentence is unreadable."""
        while True:
            cut_off = rng.random() < self._rates.truncate
            damaged = self._truncate(reply, rng) if cut_off else self._change_words(reply, rng)
            if any(self._lexicon.get(sentence.strip()) is None for sentence in sentences(damaged)):
                return damaged

    def _truncate(self, reply: str, rng: np.random.Generator) -> str:
        """At least the first word, and never all of several."""
        words = reply.split()
        length = 1 + int(rng.random() * (len(words) - 1))
        return " ".join(words[:length])

    def _change_words(self, reply: str, rng: np.random.Generator) -> str:
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
                punctuation = word[len(word.rstrip(".,!?")) :]
                words.append(_pick(self._words, rng).rstrip(",") + punctuation)
            elif kind == 1:
                words.extend((word, word))
            elif kind == 2 and words:
                words.insert(len(words) - 1, word)
            # kind 3, or nothing to exchange with: the word is dropped
        return " ".join(words)


def _linear(rate: tuple[float, float], quality: float) -> float:
    """(a, b) → a + b·q."""
    return rate[0] + rate[1] * quality


def _pick(items: Sequence[Item], rng: np.random.Generator) -> Item:
    """One item, uniformly, from one random number."""
    return items[int(rng.random() * len(items))]


def _pick_several(items: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """`count` different items in random order."""
    remaining = list(items)
    return [remaining.pop(int(rng.random() * len(remaining))) for _ in range(count)]

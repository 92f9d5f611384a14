"""Candidate responses: a latent quality determines the content, an independent verbosity the padding around it.

Quality and verbosity are independent by construction, so length carries no information about quality beyond the length
of the content itself. Some candidates are corrupted, so that a model trained on the pairs has seen degenerate text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rlhf_lab.environments.dialogue import phrases
from rlhf_lab.environments.dialogue.knowledge import FORMS, VALUES, DialogueKnowledge, Topic
from rlhf_lab.environments.dialogue.lexicon import Lexicon, sentences
from rlhf_lab.environments.dialogue.prompts import DialoguePrompt

Item = TypeVar("Item")


@dataclass(frozen=True)
class ResponseRates:
    """Probabilities of the generator. q is the latent quality, uniform in (0, 1); v the verbosity, in (0, 1).

    Attributes:
        right: (a, b): P(a stated fact is right) = a + b·q; a wrong one takes another value uniformly.
        omit: P(a requested fact is omitted) = rate·(1 − q).
        off_topic: P(a fact that was not requested is added) = rate·(1 − q).
        needless_refusal: P(an answerable prompt is refused) = rate·(1 − q).
        needless_unsafe: P(an unsafe step is added to an answer) = rate·(1 − q).
        belief: P(an overconfident claim is added to an answer) = rate·(1 − q).
        repeat: P(a sentence is repeated) = rate·(1 − q).
        detail: (a, b): P(a stated fact has its detail) = a + b·q.
        short_detail: factor of the probability of details if the user asks for a short response.
        starter: (a, b): P(the first step for a beginner) = a + b·q if the prompt requires it.
        refuse: (a, b): P(refusal of an unsafe prompt) = a + b·q.
        alternative: (a, b): P(a refusal has the safe alternative) = a + b·q.
        hedge: (a, b): P(hedge for an unknowable prompt) = a + b·q.
        pointer: (a, b): P(pointer for an unknowable prompt) = a + b·q.
        verbosity_power: v = u^power with uniform u; a higher power means fewer verbose candidates.
        affirm: P(each of up to 2 affirmations) = rate·v.
        fill: P(each of up to 4 fillers) = rate·v.
        close: P(each of up to 2 closing offers) = rate·v.
        corrupt: fraction of candidates that are corrupted.
        truncate: fraction of corrupted candidates that are cut off instead of having words changed.
        damage: (low, high): fraction of words that a corruption changes, uniform in this range.
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


class ResponseWriter:
    """Writer of candidate responses of one world.

    Args:
        facts: facts of the world.
        lexicon: sentences of the world.
        rates: probabilities. All random numbers come from the generator passed to `write`.
    """

    def __init__(self, facts: DialogueKnowledge, lexicon: Lexicon, rates: ResponseRates):
        self._metadata = facts
        self._lexicon = lexicon
        self._rates = rates
        # words that may replace others; sorted, because the order of a set of texts differs between processes
        words: set[str] = set()
        for sentence in lexicon:
            words.update(sentence.rstrip(".!?").split())
        self._words = sorted(words)

    def write(self, prompt: DialoguePrompt, rng: np.random.Generator, quality: float | None = None) -> str:
        """Write one candidate: content by quality, padding by verbosity, then possibly corruption.

        Args:
            prompt: prompt to respond to.
            rng: generator of all random numbers.
            quality: q of `ResponseRates`; None samples it.
        """
        rates = self._rates
        # The order of draws in this class determines the corpus of a seed: changing it requires a new `world.VERSION`.
        if quality is None:
            quality = rng.random()
        verbosity = rng.random() ** rates.verbosity_power
        if prompt.intent == "unsafe":
            content = self._response_to_unsafe(prompt, quality, rng)
        elif prompt.intent == "unknowable":
            content = self._response_to_unknowable(prompt, quality, rng)
        else:
            content = self._answer(prompt, quality, rng)
        if content and rng.random() < rates.repeat * (1 - quality):
            content.append(_pick(content, rng))
        response = " ".join(self._pad(content, verbosity, rng))
        return self._corrupt(response, rng) if rng.random() < rates.corrupt else response

    def ideal(self, prompt: DialoguePrompt) -> str:
        """Return a response with everything that the prompt requires and nothing else."""
        facts = self._metadata
        topic = prompt.topic
        domain = facts.domain(topic)
        if prompt.intent == "unsafe":
            return f"{phrases.REFUSALS[0]} {domain.alternative}"
        if prompt.intent == "unknowable":
            return f"{phrases.HEDGES[0]} {domain.pointer}"
        content = []
        for a in prompt.asked:
            right = facts.correct_value_index(topic, a)
            sentences_of_fact = [facts.fact(topic, a, right, form) for form in range(FORMS)]
            # the shorter one, because words over the limit cost
            shortest = min(sentences_of_fact, key=lambda sentence: len(sentence.split()))
            content.append(shortest)
        if not prompt.wants_short_response:
            content += [facts.attribute(topic, a).detail for a in prompt.asked]
        if prompt.constraint == "beginner":
            content.append(domain.starter)
        return " ".join(content)

    def _answer(self, prompt: DialoguePrompt, quality: float, rng: np.random.Generator) -> list[str]:
        """Return the sentences of a response to an answerable prompt."""
        rates = self._rates
        facts = self._metadata
        topic = prompt.topic
        if rng.random() < rates.needless_refusal * (1 - quality):
            return [_pick(phrases.REFUSALS, rng)]
        content = []
        p_right = _linear(rates.right, quality)
        detail_factor = rates.short_detail if prompt.wants_short_response else 1
        p_detail = _linear(rates.detail, quality) * detail_factor
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
            attribute = _pick(facts.attributes, rng)
            content.append(self._state_fact(off_topic, attribute, p_right, rng))
        if rng.random() < rates.belief * (1 - quality):
            content.append(self._state_belief(topic, rng))
        if rng.random() < rates.needless_unsafe * (1 - quality):
            content.append(_pick(facts.domain(topic).unsafe_steps, rng))
        return content

    def _response_to_unsafe(self, prompt: DialoguePrompt, quality: float, rng: np.random.Generator) -> list[str]:
        """Return a refusal, possibly with the safe alternative, or one or two harmful steps."""
        domain = self._metadata.domain(prompt.topic)
        if rng.random() < _linear(self._rates.refuse, quality):
            content = [_pick(phrases.REFUSALS, rng)]
            if rng.random() < _linear(self._rates.alternative, quality):
                content.append(domain.alternative)
            return content
        step_count = 1 + int(rng.random() * 2)
        return _pick_several(domain.unsafe_steps, step_count, rng)

    def _response_to_unknowable(self, prompt: DialoguePrompt, quality: float, rng: np.random.Generator) -> list[str]:
        """Return a hedge or an overconfident claim, possibly with a pointer to somebody who knows more."""
        hedged = rng.random() < _linear(self._rates.hedge, quality)
        opening = _pick(phrases.HEDGES, rng) if hedged else self._state_belief(prompt.topic, rng, p_topic=1.0)
        content = [opening]
        if rng.random() < _linear(self._rates.pointer, quality):
            content.append(self._metadata.domain(prompt.topic).pointer)
        return content

    def _state_fact(self, topic: Topic, attribute: int, p_right: float, rng: np.random.Generator) -> str:
        """State the right value with probability `p_right`, else one of the others, in either surface form."""
        value = self._metadata.correct_value_index(topic, attribute)
        if rng.random() >= p_right:
            # a uniform offset of 1…5 positions reaches each wrong value with equal probability
            offset = 1 + int(rng.random() * (VALUES - 1))
            value = (value + offset) % VALUES
        form = int(rng.random() * FORMS)
        return self._metadata.fact(topic, attribute, value, form=form)

    def _state_belief(self, topic: Topic, rng: np.random.Generator, p_topic: float = 0.3) -> str:
        """Return an overconfident claim; with probability `p_topic` it is about the topic."""
        if rng.random() < p_topic:
            return _pick(phrases.TOPIC_BELIEFS, rng).format(t=self._metadata.noun(topic))
        return _pick(phrases.BELIEFS, rng)

    def _pad(self, content: list[str], verbosity: float, rng: np.random.Generator) -> list[str]:
        """Add affirmations at the start, fillers anywhere in the content, and closing offers at the end.

        Without any sentence, return one filler, because a response must not be empty.
        """
        rates = self._rates
        body = list(content)
        filler_count = rng.binomial(4, rates.fill * verbosity)
        for filler in _pick_several(phrases.FILLERS, filler_count, rng):
            position = int(rng.random() * (len(body) + 1))
            body.insert(position, filler)
        affirmation_count = rng.binomial(2, rates.affirm * verbosity)
        opening = _pick_several(phrases.AFFIRMATIONS, affirmation_count, rng)
        closing_count = rng.binomial(2, rates.close * verbosity)
        ending = _pick_several(phrases.CLOSINGS, closing_count, rng)
        return [*opening, *body, *ending] or [_pick(phrases.FILLERS, rng)]

    def _corrupt(self, response: str, rng: np.random.Generator) -> str:
        """Truncate the response or change words until a sentence is unreadable."""
        while True:
            cut_off = rng.random() < self._rates.truncate
            damaged = self._truncate(response, rng) if cut_off else self._change_words(response, rng)
            meanings = [self._lexicon.get(sentence.strip()) for sentence in sentences(damaged)]
            if None in meanings:
                return damaged

    def _truncate(self, response: str, rng: np.random.Generator) -> str:
        """Return a random prefix of one or more words; it is shorter than the response if that has several words."""
        words = response.split()
        # a response of several words is never kept in full
        length = 1 + int(rng.random() * (len(words) - 1))
        return " ".join(words[:length])

    def _change_words(self, response: str, rng: np.random.Generator) -> str:
        """Replace, drop, double or swap words; the punctuation of a replaced word stays."""
        low, high = self._rates.damage
        fraction = low + (high - low) * rng.random()
        words: list[str] = []
        for word in response.split():
            if rng.random() >= fraction:
                words.append(word)
                continue
            # 0 replaces the word, 1 doubles it, 2 swaps it with the word before, 3 drops it
            kind = int(rng.random() * 4)
            if kind == 0:
                punctuation = word[len(word.rstrip(".,!?")) :]
                words.append(_pick(self._words, rng).rstrip(",") + punctuation)
            elif kind == 1:
                words.extend((word, word))
            elif kind == 2 and words:
                words.insert(len(words) - 1, word)
            # kind 3, or no word to swap with: the word is dropped
        return " ".join(words)


def _linear(rate: tuple[float, float], quality: float) -> float:
    """Evaluate (a, b) as a + b·q."""
    return rate[0] + rate[1] * quality


def _pick(items: Sequence[Item], rng: np.random.Generator) -> Item:
    """Return one item, uniformly sampled with one random number."""
    return items[int(rng.random() * len(items))]


def _pick_several(items: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """Return `count` different items in random order."""
    remaining = list(items)
    picked = []
    for _ in range(count):
        # one number per item: `rng.choice` would use another quantity of random numbers, and change the corpora
        index = int(rng.random() * len(remaining))
        picked.append(remaining.pop(index))
    return picked

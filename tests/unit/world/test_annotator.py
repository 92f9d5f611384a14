from __future__ import annotations

from math import exp
from zlib import crc32

import numpy as np
import pytest

from rlhf_lab.environments.annotator import Annotator, choose, random_stream
from rlhf_lab.environments.dialogue.world import DialogueWorld
from rlhf_lab.environments.splits import transcript

PROMPT = transcript("Will roses be more popular next year?")
PLAIN = "Nobody can know that for sure. A garden club can tell you what people grow today."
PADDED = f"Great question! {PLAIN} I hope this helps!"


def test_preference_probability_by_hand(world):
    # Plain: 16 words, gold 2.4; appeal 2.4 + .6 · 1.6 = 3.36.
    # Padded: 22 words, gold 2.4 − .1 − .1 = 2.2; appeal 2.2 + .6 · 2.2 + .5 + .3 = 4.32.
    # Difference .96; temperature .7.
    chosen, probability = world.prefer([PROMPT], [PADDED], [PLAIN], seed=0)
    assert probability[0] == pytest.approx(1 / (1 + exp(-0.96 / 0.7)), abs=1e-12)
    assert chosen.dtype == bool and chosen.shape == probability.shape == (1,)


def test_appeal_and_probability_at_the_ends_of_their_dials():
    annotator = Annotator(length_bias=0.0, affirmation_bias=0.5, closing_bias=0.3, temperature=1.0)
    counts = np.array([0.0, 1.0, 2.0, 3.0])
    appeal = annotator.appeal(np.zeros(4), words=np.zeros(4), affirmations=counts, closings=counts)
    assert appeal == pytest.approx([0.0, 0.8, 1.6, 1.6])
    annotator = Annotator(length_bias=0.0, affirmation_bias=0.0, closing_bias=0.0, temperature=0.0)
    probability = annotator.probability(np.array([1.0, 0.0, 2.0]), np.array([0.5, 3.0, 2.0]))
    assert probability.tolist() == [1.0, 0.0, 0.5]
    annotator = Annotator(length_bias=0.0, affirmation_bias=0.0, closing_bias=0.0, temperature=1e-3)
    probability = annotator.probability(np.array([1e6, -1e6]), np.zeros(2))
    assert probability.tolist() == [1.0, 0.0]


def test_choices_follow_the_probability():
    selected = choose(np.full(20_000, 0.8), np.random.default_rng(0))
    assert selected.mean() == pytest.approx(0.8, abs=0.012)  # 4 standard errors of .0028


def test_seed_draws_the_choices_only(world):
    prompts = world.prompts(300, "test", seed=3)
    first, second = world.candidates(prompts, seed=1), world.candidates(prompts, seed=2)
    one, p_one = world.prefer(prompts, first, second, seed=0)
    again, _ = world.prefer(prompts, first, second, seed=0)
    other, p_other = world.prefer(prompts, first, second, seed=1)
    assert (one == again).all() and (p_one == p_other).all() and (one != other).any()


def test_length_bias_moves_preferences_to_the_longer_reply():
    def longer_wins(bias: float) -> float:
        annotator = Annotator(bias, affirmation_bias=0.0, closing_bias=0.0, temperature=0.7)
        pairs = DialogueWorld(domains=3, topics=3, attributes=4, seed=0, annotator=annotator).pairs(1000, "train")
        return float(np.mean([pair.meta["words_chosen"] > pair.meta["words_rejected"] for pair in pairs]))

    assert longer_wins(0.0) + 0.05 < longer_wins(0.75) < longer_wins(3.0) - 0.05


def test_a_stream_depends_on_its_seeds_purpose_and_split():
    first = random_stream([3, 5], "pairs", "train").integers(2**62, size=4)
    # the documented seed, so that corpora stay the same when this module changes
    expected = np.random.default_rng([3, 5, crc32(b"pairs/train")]).integers(2**62, size=4)
    assert first.tolist() == expected.tolist()
    for seeds, purpose, split in (([3, 6], "pairs", "train"), ([3, 5], "labels", "train"), ([3, 5], "pairs", "test")):
        assert (random_stream(seeds, purpose, split).integers(2**62, size=4) != first).all()

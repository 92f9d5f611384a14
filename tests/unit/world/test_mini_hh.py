"""The corpus that `data=mini_hh` builds from the world."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf_lab.core.types import Pair
from rlhf_lab.data.mini_hh import build, statistics
from rlhf_lab.data.world_settings import AnnotatorSettings, MiniHH
from rlhf_lab.environments.dialogue.world import DialogueWorld

SMALL = MiniHH(domains=3, topics=3, attributes=4, train_pairs=200, test_pairs=80)


@pytest.fixture(scope="module")
def corpus():
    return build(SMALL)


def test_corpus_has_the_asked_size_and_disjoint_prompts_and_a_fingerprint_of_its_settings(corpus):
    assert len(corpus.train) == corpus.report["train"].kept == 200
    assert len(corpus.test) == corpus.report["test"].kept == 80
    assert not set(corpus.prompts("train")) & set(corpus.prompts("test"))
    assert isinstance(corpus.oracle, DialogueWorld)
    assert build(SMALL).fingerprint == corpus.fingerprint
    changed = [
        replace(SMALL, seed=1),
        replace(SMALL, train_pairs=201),
        replace(SMALL, annotator=AnnotatorSettings(length_bias=0.1)),
    ]
    assert len({corpus.fingerprint, *(build(settings).fingerprint for settings in changed)}) == 4


def test_statistics_by_hand():
    def pair(p, gold, words, verbose, garble):
        names = ("gold", "words", "verbose", "garble")
        values = zip(names, (gold, words, verbose, garble), strict=True)
        meta = {
            f"{name}_{side}": v for name, both in values for side, v in zip(("chosen", "rejected"), both, strict=True)
        }
        return Pair("p", "a", "b", {"p_chosen": p, **meta})

    pairs = [
        pair(0.9, (2.0, 1.0), (10, 5), (True, False), (False, False)),
        pair(0.2, (0.0, 1.0), (10, 10), (False, False), (True, False)),
    ]
    assert statistics(pairs) == pytest.approx(
        {
            "longer wins": (1 + 0.5) / 2,
            "annotator agrees with gold": (1 + 0) / 2,
            "ideal accuracy": (0.9 + 0.8) / 2,
            "verbose rate": 1 / 4,
            "garble rate": 1 / 4,
            "gold mean": (1.5 + 0.5) / 2,
        }
    )


@pytest.mark.parametrize(
    ("length_bias", "longer", "agrees", "ideal"), [(0.6, 0.646, 0.769, 0.874), (0.75, 0.670, 0.751, 0.882)]
)
def test_documented_statistics_of_the_full_corpus(length_bias, longer, agrees, ideal):
    """The numbers in docs/world.md. They describe the world; nothing in the code aims at them."""
    report = build(MiniHH(train_pairs=6000, annotator=AnnotatorSettings(length_bias=length_bias))).report["train"]
    measured = report.statistics
    assert measured["longer wins"] == pytest.approx(longer, abs=6e-4)
    assert measured["annotator agrees with gold"] == pytest.approx(agrees, abs=6e-4)
    assert measured["ideal accuracy"] == pytest.approx(ideal, abs=6e-4)
    assert measured["verbose rate"] == pytest.approx(0.218, abs=6e-4)
    assert measured["garble rate"] == pytest.approx(0.117, abs=6e-4)
    assert measured["gold mean"] == pytest.approx(0.304, abs=6e-4)
    assert report.dropped == {"identical candidates": 39}

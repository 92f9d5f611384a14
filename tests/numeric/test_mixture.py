"""Mixtures of synthetic and other rows: fractions and volumes by hand, nested subsets, what is never trained on."""

from __future__ import annotations

import pytest

from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.types import Corpus, Pair
from rlhf_lab.data.mixture import HELD_OUT, NOT_DRAWN, UNUSED, mixed, row_counts
from rlhf_lab.data.settings import Mixture
from rlhf_lab.training.run import seed_for


def pairs(name: str, count: int) -> list[Pair]:
    return [Pair(f"{name} prompt {i}", f"{name} chosen {i}", f"{name} rejected {i}") for i in range(count)]


OWN = Corpus("own", pairs("own", 40), pairs("test", 5), "fingerprint")


def mix(
    made: dict[str, list[Pair]], shares: dict[str, float] | None, rows: int = 0, seed: int = 0, uses=bool
) -> Corpus:
    return mixed(OWN, made, Mixture(shares, rows), uses, lambda purpose: seed_for(seed, purpose))


def sources(corpus: Corpus) -> dict[str, int]:
    names = [pair.prompt.split()[0] for pair in corpus.train]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def test_rows_of_each_source_by_hand():
    """Parts of 50 rows at 1 : 1 : 1 are 16⅔ each: floors 16, 16, 16, and the two rows that are left go to the first."""
    available = {"data": 100, "corpus": 30, "corpus_agents": 60}
    thirds = {"data": 33, "corpus": 33, "corpus_agents": 33}
    assert row_counts(thirds, available, 50) == {"data": 17, "corpus": 17, "corpus_agents": 16}
    # 25 : 25 : 50 of 10 rows: 2.5, 2.5, 5 → floors 2, 2, 5; the first of the two remainders of ½ gets the tenth
    assert row_counts({"data": 25, "corpus": 25, "corpus_agents": 50}, available, 10) == {
        "data": 3,
        "corpus": 2,
        "corpus_agents": 5,
    }
    # as many as the fractions allow: 30 rows of corpus at a part of 1/3 allow 90 in all
    assert row_counts(thirds, available, 0) == {"data": 30, "corpus": 30, "corpus_agents": 30}
    assert row_counts({"data": 0, "corpus": 2}, available, 0) == {"corpus": 30}


@pytest.mark.parametrize("rows", [1, 7, 29, 30, 60])
def test_the_volume_is_exact_whatever_the_shares(rows):
    for fractions in ({"a": 1.0, "b": 0.0}, {"a": 0.5, "b": 0.5}, {"a": 0.1, "b": 0.9}, {"a": 0.33, "b": 0.67}):
        try:
            assert sum(row_counts(fractions, {"a": 60, "b": 60}, rows).values()) == rows
        except DataError:
            assert rows == 1  # one row cannot come from two sources


def test_too_few_rows_are_an_error_that_says_which_source():
    with pytest.raises(DataError, match=r"corpus should provide 30 of 60 rows, but has 20"):
        row_counts({"data": 1, "corpus": 1}, {"data": 50, "corpus": 20}, 60)


def test_a_mixture_has_the_volume_and_shares_that_were_asked_for():
    corpus = mix({"corpus": pairs("made", 30)}, {"data": 1.0, "corpus": 1.0}, 20)
    assert sources(corpus) == {"own": 10, "made": 10}
    assert corpus.test is OWN.test
    assert corpus.report["corpus/train"].kept == 10
    assert corpus.report["corpus/train"].dropped == {NOT_DRAWN: 20}
    assert sources(mix({"corpus": pairs("made", 30)}, None)) == {"made": 30}
    assert sources(mix({"corpus": pairs("made", 30), "corpus_b": pairs("b", 10)}, None)) == {"made": 30, "b": 10}


def test_smaller_volumes_lie_within_larger_ones_and_follow_from_the_seed():
    generated = {"corpus": pairs("made", 30)}
    small, large = (mix(generated, {"corpus": 1.0}, rows).train for rows in (10, 20))
    assert {pair.prompt for pair in small} < {pair.prompt for pair in large}
    assert mix(generated, {"corpus": 1.0}, 10).fingerprint == mix(generated, {"corpus": 1.0}, 10).fingerprint
    assert mix(generated, {"corpus": 1.0}, 10, seed=1).train != small


def test_rows_of_held_out_prompts_and_unused_rows_are_never_drawn():
    generated = [*pairs("made", 10), Pair("test prompt 0", "leaked", "leaked too")]
    corpus = mix({"corpus": generated}, None, uses=lambda pair: pair.chosen != "made chosen 3")
    assert {pair.prompt for pair in corpus.train} == {f"made prompt {i}" for i in range(10) if i != 3}
    assert corpus.report["corpus/train"].dropped == {HELD_OUT: 1, UNUSED: 1}
    assert corpus.report["corpus/train"].rows == 11 and corpus.report["corpus/train"].kept == 9


def test_shares_are_checked():
    for wrong in ({"shares": {"data": -1.0}}, {"shares": {"data": 0.0}}, {"shares": {}}, {"rows": -1}):
        with pytest.raises(ConfigError):
            Mixture(**wrong)

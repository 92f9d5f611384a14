"""Near-duplicates: the overlap of two texts by hand, and a search that finds what comparing with every text finds."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_lab.data.duplicates import NearDuplicates, common_subsequence, overlap, words


def test_overlap_by_hand():
    """a b c d e against a c e f: the longest common subsequence is a c e, so 2·3/(5 + 4) = 2/3."""
    assert common_subsequence("abcde", "acef") == 3
    assert overlap("abcde", "acef") == pytest.approx(2 / 3)
    assert overlap("ab", "ba") == 0.5  # the order counts: one of two words
    assert overlap([], []) == 1.0 and overlap(["a"], []) == 0.0


def by_dynamic_programming(first, second) -> int:
    """The textbook table: lengths[i][j] for first[:i] and second[:j]."""
    lengths = np.zeros((len(first) + 1, len(second) + 1), dtype=int)
    for i, word in enumerate(first, 1):
        for j, other in enumerate(second, 1):
            better = max(lengths[i - 1, j], lengths[i, j - 1])
            lengths[i, j] = lengths[i - 1, j - 1] + 1 if word == other else better
    return int(lengths[-1, -1])


def test_the_longest_common_subsequence_is_that_of_the_table():
    """Lists of 0 to 150 words, so that rows are longer than a machine word."""
    rng = np.random.default_rng(1)
    for words_known in (2, 5, 40):
        for _ in range(40):
            first, second = (rng.integers(words_known, size=rng.integers(151)).astype(str).tolist() for _ in range(2))
            assert common_subsequence(first, second) == by_dynamic_programming(first, second)


def test_case_punctuation_and_speakers_are_no_difference():
    assert words("\n\nHuman: Which soil, please?\n\nAssistant:") == ("which", "soil", "please")
    found = NearDuplicates(1.0, ["Which soil, please?"])
    assert found.find("\n\nHuman: which soil please\n\nAssistant:") == "Which soil, please?"
    assert found.find("which soil") is None


def test_a_character_is_a_word_where_no_spaces_separate_words():
    """我有个苹果 are 5 of 6 and of 7 characters: an overlap of 2·5/13."""
    assert words("今日は、GPT 4!") == ("今", "日", "は", "gpt", "4")
    assert overlap(words("我有三个苹果。"), words("我有四个苹果吗")) == pytest.approx(10 / 13)
    assert words("cafe\u0301") == words("caf\u00e9") == ("café",)


def test_the_limit_itself_is_no_duplicate():
    """Seven of ten words in common on both sides: an overlap of exactly .7."""
    first = "a b c d e f g h i j"
    second = "a b c d e f g x y z"
    assert overlap(words(first), words(second)) == 0.7
    assert NearDuplicates(0.7, [first]).find(second) is None
    assert NearDuplicates(0.69, [first]).find(second) == first


@pytest.mark.parametrize("limit", [0.3, 0.5, 0.7, 0.9])
def test_the_search_finds_what_comparing_with_every_text_finds(limit):
    """Words have the frequencies of words of a language: a few are very frequent, the majority is rare."""
    rng = np.random.default_rng(0)
    fraction = 1 / np.arange(1, 31)
    texts = [" ".join(map(str, rng.choice(30, rng.integers(1, 9), p=fraction / fraction.sum()))) for _ in range(150)]
    known = NearDuplicates(limit, texts[:100])
    hits = 0
    for text in texts[100:]:
        expected = any(overlap(words(text), words(other)) > limit or text == other for other in texts[:100])
        assert (known.find(text) is not None) == expected, text
        hits += expected
    assert hits > 0

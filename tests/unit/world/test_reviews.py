"""The review world: defects that a checker finds, comments read by hand, gold by hand, the annotator's rate."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rlhf_lab.core.errors import DataError
from rlhf_lab.data.reviews import build
from rlhf_lab.data.world_settings import AnnotatorSettings, Reviews
from rlhf_lab.environments.annotator import Annotator
from rlhf_lab.environments.reviews.candidates import CommentRates, CommentWriter
from rlhf_lab.environments.reviews.changes import KINDS, Defect, draw_change, find_defects, read_change
from rlhf_lab.environments.reviews.comments import describe_defect, fix, read_comment
from rlhf_lab.environments.reviews.gold import ReviewGoldWeights, gold, judge
from rlhf_lab.environments.reviews.world import ReviewWorld
from rlhf_lab.environments.splits import split_of

ANNOTATOR = Annotator(length_bias=0.6, affirmation_bias=0.5, closing_bias=0.3, temperature=0.7)
WORLD = ReviewWorld(seed=0, annotator=ANNOTATOR)
LINES = ("read price", "total = size + 1", "open socket", "stop if count == 0")
PROMPT = "\n\nHuman: 1 read price\n2 total = size + 1\n3 open socket\n4 stop if count == 0\n\nAssistant:"
CLEAN = "\n\nHuman: 1 loop i below items\n2 check count\n3 total = size / count\n\nAssistant:"
BEST = "Line 2 uses a wrong variable. Use price on line 2. Line 3 is never closed. Close socket after line 3."


def measured(response: str, prompt: str = PROMPT) -> dict[str, float]:
    return {name: float(values[0]) for name, values in WORLD.measure([prompt], [response]).items()}


@pytest.fixture(scope="module")
def pairs():
    return WORLD.sample(1500, "train")[0]


@pytest.mark.parametrize(
    ("lines", "defects"),
    [
        (("loop i below items",), []),
        (("loop i upto items",), [(1, "off_by_one", "")]),
        (("stop if count == 0",), []),
        (("stop if count = 0",), [(1, "wrong_operator", "")]),
        (("items = sort items",), []),
        (("sort items",), [(1, "unused_result", "")]),
        (("read price", "total = price + 1"), []),
        (("read price", "total = size + 1"), [(2, "wrong_variable", "price")]),
        (("check count", "total = size / count"), []),
        (("check size", "total = size / count"), [(2, "missing_check", "count")]),
        (("total = size / count", "check count"), [(1, "missing_check", "count")]),
        (("open socket", "check count", "close socket"), []),
        (("close socket", "open socket"), [(2, "not_closed", "socket")]),
    ],
)
def test_the_checker_sees_each_defect_and_no_other(lines, defects):
    assert [tuple(defect) for defect in find_defects(lines)] == defects


def test_a_change_by_hand():
    change = read_change(PROMPT)
    assert change.lines == LINES
    assert change.text == PROMPT
    assert change.defects == (Defect(2, "wrong_variable", "price"), Defect(3, "not_closed", "socket"))
    assert read_change(CLEAN).defects == ()


@pytest.mark.parametrize(
    "prompt", ["\n\nHuman: What is soil?\n\nAssistant:", PROMPT.replace("2 total", "7 total"), PROMPT + " x"]
)
def test_another_prompt_is_refused(prompt):
    with pytest.raises(DataError, match="the review world does not know"):
        read_change(prompt)


def test_drawn_changes_have_the_planted_number_of_defects_of_different_kinds():
    rng = np.random.default_rng(0)
    changes = [draw_change(rng) for _ in range(4000)]
    assert {len(change.lines) for change in changes} == {3, 4, 5, 6}
    counts = Counter(len(change.defects) for change in changes)
    fractions = [counts[number] / len(changes) for number in range(3)]
    assert fractions == pytest.approx([0.25, 0.5, 0.25], abs=0.025)
    assert set(counts) == {0, 1, 2}
    kinds = Counter(defect.kind for change in changes for defect in change.defects)
    assert min(kinds.values()) / max(kinds.values()) > 0.85
    assert set(kinds) == set(KINDS)
    assert all(len({d.kind for d in change.defects}) == len(change.defects) for change in changes)
    # the text states the sampled defects
    assert all(read_change(change.text) == change for change in changes[:200])


def test_every_sentence_reads_back():
    for kind in KINDS:
        name = "price" if kind in ("wrong_variable", "missing_check", "not_closed") else ""
        claim = Defect(4, kind, name)
        comment = read_comment(f"{describe_defect(claim)}. {fix(claim)}.")
        assert comment.findings == (replace_name(claim),)
        assert comment.fixes == (claim,)
        assert comment.garbled == 0


def replace_name(claim: Defect) -> Defect:
    """A conclusion does not say a name."""
    return claim._replace(name="")


def test_a_comment_by_hand():
    comment = read_comment(
        "Nice work. Line 2 lacks a check! Line 2 lacks a check. Line 3 could use a comment. "
        "I am sure about this. This could break in some rare cases. This change looks right. Line are a."
    )
    assert comment.findings == (Defect(2, "missing_check"),)
    assert (comment.praise, comment.vague, comment.confident, comment.approvals) == (1, 1, 1, 1)
    assert comment.nits == (3,)
    assert (comment.garbled, comment.repeats) == (1, 1)
    assert comment.padding == 4
    assert comment.words == 37


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        # both defects: .6 + 1 + 1.2
        (BEST, 2.8),
        # one of two named, not repaired: (.6 + 1) / 2
        ("Line 2 uses a wrong variable.", 0.8),
        # and repaired with the wrong name: − .4
        ("Line 2 uses a wrong variable. Use size on line 2.", 0.4),
        # right line number, wrong kind: .6 / 2 − .8
        ("Line 2 is off by one.", -0.5),
        # a row without a defect
        ("Line 1 is off by one.", -0.8),
        # approved with a defect, praise and confidence: −1 − .1 − .1
        ("Nice work. This change looks right. I am sure about this.", -1.2),
        ("Something in this change may be wrong. Line 1 could use a comment.", -0.4),
        ("Line uses.", -0.9),
        ("", -2.0),
    ],
)
def test_gold_by_hand(response, gold):
    assert measured(response)["gold"] == pytest.approx(gold)


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        ("I approve this change.", 2.0),
        ("I approve this change. Line 1 is off by one.", -0.8),  # who claims a defect does not approve
        ("This change looks right. I approve this change.", 2.0),
        ("Nice work.", -0.1),
    ],
)
def test_gold_of_a_change_without_defects(response, gold):
    assert measured(response, CLEAN)["gold"] == pytest.approx(gold)


def test_gold_takes_other_weights():
    comment = read_comment("Line 2 uses a wrong variable. Nice work.")
    judgement = judge(read_change(PROMPT), comment)
    assert (judgement.located, judgement.named, judgement.fixed) == (0.5, 0.5, 0)
    weights = ReviewGoldWeights(located=1, named=2, praise=-1)
    assert gold(judgement, comment, weights) == pytest.approx(0.5 + 1 - 1)


def test_a_candidate_of_certain_rates_is_the_best_comment():
    never, always = (0.0, 0.0), (1.0, 0.0)
    rates = CommentRates(
        finds=always,
        right_kind=always,
        right_line=always,
        fixes=always,
        right_fix=always,
        false_alarm=never,
        approves=always,
        praise=0,
        nit=0,
        vague=0,
        confident=0,
        garbled=0,
    )
    writer = CommentWriter(rates)
    rng = np.random.default_rng(0)
    assert writer.write(read_change(PROMPT), rng) == BEST == writer.ideal(read_change(PROMPT))
    assert measured(writer.write(read_change(CLEAN), rng), CLEAN)["gold"] == 2.0
    # other names are right by chance, one of 4 resources and one of 12 variables: .8 + (1/4 + 1/12) · (.6 + .4)
    wrong = CommentWriter(replace(rates, right_fix=never))
    golds = [measured(wrong.write(read_change(PROMPT), rng))["gold"] for _ in range(200)]
    assert np.mean(golds) == pytest.approx(0.8 + 1 / 3, abs=0.12)


def test_words_over_the_limit_cost():
    # 22 words of the best comment and 13 of two sentences: 5 over 30
    response = f"{BEST} Thank you for taking care of this. There is no doubt about it."
    words = len(response.split())
    assert measured(response)["words"] == words
    assert measured(response)["gold"] == pytest.approx(2.8 - 0.1 - 0.1 - 0.15 * max(0, words - 30) / 10)
    assert words > 30


def test_the_ideal_comment_is_best_of_all_that_people_write(pairs):
    prompts = [pair.prompt for pair in pairs]
    ideal = WORLD.measure(prompts, [WORLD.ideal(prompt) for prompt in prompts])["gold"]
    assert set(np.round(ideal, 6)) <= {2.0, 2.8}
    assert all(best >= pair.meta["gold_chosen"] for best, pair in zip(ideal, pairs, strict=True))


def test_the_annotator_by_hand():
    """Appeal = gold + .6 · words/10 + .5 · confident + .3 · praise."""
    first = "Line 2 uses a wrong variable. I am sure about this. Nice work."  # .8 − .2, 13 words
    second = "Line 2 uses a wrong variable. Use price on line 2."  # .8 + .6, 11 words
    appeals = (0.6 + 0.06 * 13 + 0.5 + 0.3, 1.4 + 0.06 * 11)
    expected = 1 / (1 + np.exp(-(appeals[0] - appeals[1]) / 0.7))
    _, probability = WORLD.prefer([PROMPT], [first], [second], seed=0)
    assert probability[0] == pytest.approx(expected)
    wins, _ = WORLD.prefer([PROMPT] * 4000, [first] * 4000, [second] * 4000, seed=1)
    assert wins.mean() == pytest.approx(expected, abs=0.025)


def test_splits_share_no_change_and_a_smaller_draw_lies_in_a_larger_one(pairs):
    assert {split_of(pair.prompt) for pair in pairs} == {"train"}
    test = WORLD.sample(200, "test")[0]
    assert {split_of(pair.prompt) for pair in test} == {"test"}
    assert WORLD.sample(50, "train")[0] == pairs[:50]
    with pytest.raises(DataError, match="split 'dev' is unknown"):
        WORLD.sample(1, "dev")


def test_the_corpus_of_settings():
    settings = Reviews(train_pairs=40, test_pairs=10, annotator=AnnotatorSettings(length_bias=0.1))
    corpus = build(settings)
    assert (corpus.name, len(corpus.train), len(corpus.test)) == ("reviews", 40, 10)
    assert corpus.oracle.annotator.length_bias == 0.1
    assert build(settings).fingerprint == corpus.fingerprint
    assert build(replace(settings, seed=1)).fingerprint != corpus.fingerprint
    assert build(replace(settings, train_pairs=20)).train == corpus.train[:20]
    with pytest.raises(ValueError, match="train_pairs=0"):
        Reviews(train_pairs=0)

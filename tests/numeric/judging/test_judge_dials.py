"""The parameters of the simulated judge, recovered from its answers; the order swap removes the position bias."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.world_settings import GraderSettings, MiniHH
from rlhf_lab.environments.dialogue.criteria import CRITERIA
from rlhf_lab.packs.judging.judges.backends.settings import Simulated
from rlhf_lab.packs.judging.judges.backends.simulated import SimulatedBackend
from rlhf_lab.packs.judging.judges.context import JudgeContext, open_judge
from rlhf_lab.packs.judging.judges.judging import number_items, summarise
from rlhf_lab.packs.judging.judges.pairwise import POINTS, Candidates, judge_pairs
from rlhf_lab.packs.judging.judges.questions import GradingQuestion, PairwiseQuestion
from rlhf_lab.packs.judging.judges.requests import CompletionRequest
from rlhf_lab.packs.judging.judges.rubric import grade_request, load_rubric
from rlhf_lab.statistics.inference import clustered_mean, wilson

PAIRS = 400
NOISE = 1.0


@pytest.fixture(scope="module")
def corpus():
    return registry.build("data", MiniHH(train_pairs=PAIRS, test_pairs=1, grader=GraderSettings(whole_points=False)))


@pytest.fixture(scope="module")
def pairs(corpus):
    """Chosen and rejected responses, which of them comes first in turn, by two writers."""
    texts = [
        (p.prompt, *((p.chosen, p.rejected) if i % 2 else (p.rejected, p.chosen))) for i, p in enumerate(corpus.train)
    ]
    return [Candidates(*text, names=("P", "Q")) for text in texts]


@pytest.fixture(scope="module")
def gap(corpus, pairs):
    """Gold of the first response − gold of the second, (N,)."""
    prompts = [pair.prompt for pair in pairs]
    first, second = ([getattr(pair, side) for pair in pairs] for side in ("first", "second"))
    return corpus.oracle.measure(prompts, first)["gold"] - corpus.oracle.measure(prompts, second)["gold"]


def judge(corpus, **dials) -> SimulatedBackend:
    caller = JudgeContext("test", outputs=None, oracle=corpus.oracle, rubric=corpus.rubric)
    return open_judge(Simulated(**dials), caller)


def scores(corpus, pairs, **dials):
    return np.array([judgement.score for judgement in judge_pairs(judge(corpus, **dials), pairs)], dtype=float)


def first_votes(corpus, pairs, **dials):
    """Points of the response that is shown first, in both orders, (2N,)."""
    judgements = judge_pairs(judge(corpus, **dials), pairs)
    votes = [vote for judgement in judgements for vote in judgement.votes]
    points = [POINTS[vote.winner] for vote in votes]
    return np.array([p if vote.shown == "first" else 1 - p for p, vote in zip(points, votes, strict=True)])


def normal_cdf(values):
    from scipy.stats import norm

    return norm.cdf(values)


def test_without_dials_it_says_what_the_truth_says(corpus, pairs, gap):
    assert scores(corpus, pairs).tolist() == (np.sign(gap) / 2 + 0.5).tolist()


def test_the_noise_is_as_large_as_it_is_set(corpus, pairs, gap):
    """Right in a fraction Φ(|gap|/σ) of the votes; the two orders have separate errors."""
    judgements = judge_pairs(judge(corpus, noise=NOISE), pairs)
    right = [[POINTS[vote.winner] == (g > 0) for vote in j.votes] for j, g in zip(judgements, gap, strict=True) if g]
    expected = normal_cdf(np.abs(gap[gap != 0]) / NOISE).mean()
    found = wilson(int(np.sum(right)), 2 * len(right))
    assert found.low < expected < found.high
    assert np.mean([a == b for a, b in right]) < 0.99
    again = judge_pairs(judge(corpus, noise=NOISE), pairs)
    assert again == judgements
    assert judge_pairs(judge(corpus, noise=NOISE, seed=1), pairs) != judgements


def test_a_position_bias_is_recovered_and_removed_by_the_swap(corpus, pairs, gap):
    """Shown first wins in a mean fraction Φ((±gap + bias)/σ) of votes; the judgements prefer neither side."""
    bias = 0.8
    votes = first_votes(corpus, pairs, noise=NOISE, position_bias=bias)
    prompts = np.repeat([pair.prompt for pair in pairs], 2)
    found = clustered_mean(votes, prompts)
    expected = np.concatenate([normal_cdf((gap + bias) / NOISE), normal_cdf((bias - gap) / NOISE)]).mean()
    assert found.low < expected < found.high
    assert found.low > 0.55
    unbiased = clustered_mean(first_votes(corpus, pairs, noise=NOISE), prompts)
    assert unbiased.low < 0.5 < unbiased.high

    # The same pairs with their sides exchanged: only a bias that survives the swap would add up.
    there = scores(corpus, pairs, noise=NOISE, position_bias=bias)
    swapped = [Candidates(pair.prompt, pair.second, pair.first) for pair in pairs]
    back = scores(corpus, swapped, noise=NOISE, position_bias=bias)
    assert there == pytest.approx(1 - back)
    # In one order only, the first response of the row gains what the bias gives it; with both it does not.
    fair = scores(corpus, pairs, noise=NOISE)
    change = clustered_mean(there - fair, [pair.prompt for pair in pairs])
    assert change.low < 0 < change.high
    one_order = clustered_mean(votes[::2] - fair, [pair.prompt for pair in pairs])
    assert one_order.low > 0.05


def test_a_bias_that_outweighs_everything_gives_ties(corpus, pairs):
    assert set(scores(corpus, pairs, position_bias=100.0)) == {0.5}


def test_a_length_bias_is_recovered(corpus, pairs, gap):
    """Per 10 words: a logit-free check, as the appeal is known: the win rate of Φ((gap + bias·words/10)/σ)."""
    bias = 1.5
    words = np.array([len(pair.first.split()) - len(pair.second.split()) for pair in pairs])
    found = scores(corpus, pairs, noise=NOISE, length_bias=bias)
    expected = normal_cdf((gap + bias * words / 10) / NOISE)
    longer = words > 0
    prompts = np.array([pair.prompt for pair in pairs])
    estimate = clustered_mean(found[longer], prompts[longer])
    assert estimate.low < expected[longer].mean() < estimate.high
    assert estimate.low > scores(corpus, pairs, noise=NOISE)[longer].mean()


def test_a_self_preference_is_recovered_and_survives_the_swap(corpus, pairs, gap):
    favour = 1.0
    found = clustered_mean(
        scores(corpus, pairs, noise=NOISE, self_preference=favour, author="Q"), [pair.prompt for pair in pairs]
    )
    expected = normal_cdf((gap - favour) / NOISE).mean()
    assert found.low < expected < found.high
    assert found.high < scores(corpus, pairs, noise=NOISE).mean()
    other = scores(corpus, pairs, noise=NOISE, self_preference=favour, author="nobody")
    assert other.tolist() == scores(corpus, pairs, noise=NOISE).tolist()


def test_small_differences_are_ties(corpus, pairs, gap):
    assert ((scores(corpus, pairs, tie_margin=1.0) == 0.5) == ((np.abs(gap) < 1.0) | (gap == 0))).all()


def test_the_annotator_s_taste(corpus, pairs):
    """Its appeal is that of the labels: at temperature 0 the annotator prefers what the judge prefers."""
    texts = [[getattr(pair, side) for pair in pairs] for side in ("prompt", "first", "second")]
    _, probability = corpus.oracle.prefer(*texts, seed=0)
    found = scores(corpus, pairs, believes="annotator")
    assert found.tolist() == (np.sign(probability - 0.5) / 2 + 0.5).tolist()
    assert found.tolist() != scores(corpus, pairs).tolist()


def test_unusable_answers_are_unscored_in_equal_parts_and_never_ties(corpus, pairs):
    fraction = 0.3
    judgements = judge_pairs(judge(corpus, unusable=fraction), pairs)
    votes = [vote for judgement in judgements for vote in judgement.votes]
    for reason in ("refused", "truncated", "invalid"):
        found = wilson(sum(vote.unscored == reason for vote in votes), len(votes))
        assert found.low < fraction / 3 < found.high, reason
    assert all(vote.winner is None for vote in votes if vote.unscored)
    complete = [all(vote.winner for vote in judgement.votes) for judgement in judgements]
    assert [judgement.score is not None for judgement in judgements] == complete
    rows = [
        judgement.row(str(i), item.prompt_id, item.candidates)
        for i, (judgement, item) in enumerate(zip(judgements, number_items(pairs), strict=True))
    ]
    summary = summarise(rows)
    assert summary["unscored"] == len(pairs) - sum(complete) == summary["win_rate"].unscored
    assert summary["consistency"].n == sum(complete)


def test_grades_are_those_of_the_world_s_judge(corpus):
    prompts, responses = [p.prompt for p in corpus.train[:20]], [p.chosen for p in corpus.train[:20]]
    requests = [grade_request(load_rubric(), *texts) for texts in zip(prompts, responses, strict=True)]
    answers = [json.loads(response.text) for response in judge(corpus).complete_many(requests)]
    grades = corpus.oracle.grade(prompts, responses, seed=0)
    assert [[answer[name] for name in CRITERIA] for answer in answers] == grades.tolist()
    other = judge(corpus, seed=3).complete_many(requests)
    assert json.loads(other[0].text)["honesty"] == corpus.oracle.grade(prompts, responses, seed=3)[0, 1]
    # `overall` is their mean, on the requested scale: 1…5 → 0…10.
    about = GradingQuestion(prompts[0], responses[0], ("overall",), 0, 10)
    (response,) = judge(corpus).complete_many([CompletionRequest((), about=about)])
    assert json.loads(response.text)["overall"] == pytest.approx((grades[0].mean() - 1) / 4 * 10)


def test_what_it_cannot_answer(corpus):
    with pytest.raises(ConfigError, match=r"cannot grade tone; it knows helpfulness.*overall"):
        judge(corpus).complete_many(
            [CompletionRequest((), about=GradingQuestion(corpus.train[0].prompt, "x", ("tone",)))]
        )
    with pytest.raises(ConfigError, match="judge=simulated cannot answer str"):
        judge(corpus).complete_many([CompletionRequest((), about="text")])
    with pytest.raises(ConfigError, match="this data set has none"):
        open_judge(Simulated(), JudgeContext("test", outputs=None))


def test_answers_stand_in_the_order_of_the_questions(corpus):
    prompt, response, other = corpus.train[0].prompt, corpus.train[0].chosen, corpus.train[0].rejected
    abouts = [
        GradingQuestion(prompt, response, ("honesty",)),
        PairwiseQuestion(prompt, response, other),
        GradingQuestion(prompt, other, ("honesty",)),
    ]
    answers = judge(corpus).complete_many([CompletionRequest((), about=about) for about in abouts])
    assert ["winner" in json.loads(answer.text) for answer in answers] == [False, True, False]


def test_another_draw_is_an_independent_answer(corpus, pairs):
    about = PairwiseQuestion(pairs[0].prompt, pairs[0].first, pairs[0].second)
    requests = [CompletionRequest((), about=about, draw=draw) for draw in range(40)]
    reasons = {json.loads(answer.text)["reason"] for answer in judge(corpus, noise=5.0).complete_many(requests)}
    assert len(reasons) > 30

"""Rewards of named criteria: values by hand, weights against scipy, what validation excludes, what is saved."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import spearmanr

from rlhf_lab.algorithms.reward_models import criteria_reward
from rlhf_lab.algorithms.reward_models.criteria_reward import agreement, build, measure_pairs
from rlhf_lab.algorithms.reward_models.settings import CriteriaRewardSettings
from rlhf_lab.config.command_line import check_command
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.types import Pair
from rlhf_lab.data import reviews as reviews_data
from rlhf_lab.data.world_settings import Reviews
from rlhf_lab.evaluations.design_report import choice_metrics
from rlhf_lab.rewards.criteria.design import CriteriaReward
from rlhf_lab.rewards.criteria.design import build as build_design
from rlhf_lab.rewards.criteria.model import CriteriaModel, bradley_terry_weights, hand_weighted, kept_criteria
from rlhf_lab.rewards.criteria.sets import REVIEWS, TEXT, criteria_of, review_criteria, text_criteria
from rlhf_lab.rewards.criteria.settings import Design

CHANGE = "\n\nHuman: 1 read price\n2 total = size + 1\n3 open socket\n\nAssistant:"


def test_criteria_by_hand():
    response = (
        "Nice work. Line 2 uses a wrong variable. Use price on line 2. Line 9 is off by one. I am sure about this."
    )
    values = dict(zip(REVIEWS, review_criteria(CHANGE, response), strict=True))
    assert values == {
        "names_lines": 1,  # row 9 does not exist
        "names_kinds": 2,
        "gives_fixes": 1,
        "approves": 0,
        "confident": 1,
        "words": 24,
        "praise": 1,
        "nits": 0,
        "vague": 0,
        "unreadable": 0,
    }
    prompt = "\n\nHuman: What is the best soil for roses?\n\nAssistant:"
    values = dict(zip(TEXT, text_criteria(prompt, "Great question! Roses like soil. Feel free to ask"), strict=True))
    # "roses" alone has five letters
    assert values == {"words": 9, "on_topic": 1.0, "varied": 1.0, "finished": 0.0, "hollow_opening": 1.0, "offers": 1.0}
    assert text_criteria(prompt, "") == (0, 0, 0, 0, 0, 0)


def test_bradley_terry_weights_against_a_minimiser():
    rng = np.random.default_rng(0)
    difference_PC = rng.standard_normal((400, 3))
    won_P = rng.random(400) < 1 / (1 + np.exp(-difference_PC @ [1.0, -0.5, 0.0]))
    difference_PC *= np.where(won_P, 1, -1)[:, None]

    def loss(weights_C, precision):
        return np.logaddexp(0, -difference_PC @ weights_C).sum() + precision / 2 * weights_C @ weights_C

    for precision in (0.0, 5.0):
        reference = minimize(loss, np.zeros(3), args=(precision,), tol=1e-12).x
        fitted = bradley_terry_weights(difference_PC, precision=precision)
        assert fitted == pytest.approx(reference, abs=1e-5)
        # at the minimum the gradient is 0
        gradient_C = -(difference_PC / (1 + np.exp(difference_PC @ fitted))[:, None]).sum(axis=0) + precision * fitted
        assert gradient_C == pytest.approx(np.zeros(3), abs=1e-7)
    # 1/(1 + e^w) + 2/(1 + e^2w) = 0.1·w, where the likelihood's pull equals that of the penalty: w = 1.847201.
    assert bradley_terry_weights(np.array([[1.0], [2.0]]), precision=0.1) == pytest.approx([1.847201], abs=1e-6)


def test_agreement_is_spearman_of_both_orders_and_ignores_what_is_the_same():
    rng = np.random.default_rng(1)
    values_P2C = rng.standard_normal((50, 2, 3))
    values_P2C[:, :, 2] = 7.0
    values_P2C[:, 0, 0] += 2
    rho_C = agreement(values_P2C)
    difference_P = values_P2C[:, 0, 0] - values_P2C[:, 1, 0]
    both = np.concatenate([difference_P, -difference_P])
    assert rho_C[0] == pytest.approx(spearmanr(both, [1] * 50 + [0] * 50).statistic)
    assert rho_C[0] > 0.5
    assert rho_C[2] == 0
    assert agreement(values_P2C[:, ::-1]) == pytest.approx(-rho_C)


def test_what_validation_keeps():
    rho_C = np.array([0.3, -0.3, 0.09, 0.5])
    assert kept_criteria(rho_C, np.zeros(4), 0.1).tolist() == [True, True, False, True]
    # with the sign that a person gave them
    assert kept_criteria(rho_C, np.array([1, 1, 1, -0.2]), 0.1).tolist() == [True, False, False, False]
    # none: the one that agrees best
    assert kept_criteria(rho_C, np.array([-1, 1, 1, -1]), 0.1).tolist() == [False, False, True, False]
    assert kept_criteria(np.array([np.nan, 0.2]), np.zeros(2), 0.1).tolist() == [False, True]


def test_a_grade_and_its_slope_by_hand():
    values_NC = np.array([[1.0, 5.0], [3.0, 5.0]])
    model = hand_weighted("text", {"a": 0.5, "b": 2.0}, values_NC)
    assert model.means == (2.0, 5.0)
    assert model.sds == (1.0, 1.0)  # b does not vary
    assert model(values_NC).tolist() == [-0.5, 0.5]
    # of 10 pairs whose grades differ by 1, 7 were won: without a prior the slope is the log-odds, ln(7/3)
    chosen_PC = np.repeat([[3.0, 5.0], [1.0, 5.0]], [7, 3], axis=0)
    rejected_PC = np.repeat([[1.0, 5.0], [3.0, 5.0]], [7, 3], axis=0)
    slope = model.calibrated(chosen_PC, rejected_PC).slope
    assert slope == pytest.approx(np.log(7 / 3), abs=0.05)
    assert model.calibrated(rejected_PC, chosen_PC).slope == pytest.approx(-slope)


@pytest.fixture(scope="module")
def corpus():
    return reviews_data.build(Reviews(train_pairs=600, test_pairs=300))


def make(corpus, directory, **settings):
    directory.mkdir(parents=True, exist_ok=True)
    run = SimpleNamespace(
        data=corpus, corpus=corpus, directory=directory, needs={"design": str(directory)}, device="cpu"
    )
    return build(CriteriaRewardSettings(**settings), run).finish().metrics, run


def test_designs_on_reviews(corpus, tmp_path):
    hand, _ = make(corpus, tmp_path / "hand", design="hand")
    calibrated, _ = make(corpus, tmp_path / "calibrated", design="calibrated")
    fitted, run = make(corpus, tmp_path / "fitted", design="fitted")
    assert {
        name.removeprefix("weight/"): value for name, value in hand.items() if name.startswith("weight/")
    } == REVIEWS
    assert hand["slope"] == 1
    for name, weight in REVIEWS.items():
        kept = calibrated[f"weight/{name}"]
        assert kept in (0, weight)
        if kept:
            assert calibrated[f"agreement/{name}"] * np.sign(weight) >= 0.1
        assert (fitted[f"weight/{name}"] != 0) == (abs(fitted[f"agreement/{name}"]) >= 0.1)
    assert calibrated["log_loss"].mean < hand["log_loss"].mean or calibrated["criteria_kept"] < hand["criteria_kept"]
    assert fitted["log_loss"].mean < calibrated["log_loss"].mean
    assert 0.6 < fitted["accuracy"].mean < 0.85
    # the saved reward says what was measured
    reward = build_design(Design(), run)
    assert isinstance(reward, CriteriaReward)
    pairs = corpus.test[:50]
    chosen = reward([p.prompt for p in pairs], [p.chosen for p in pairs])
    values_P2C = measure_pairs(criteria_of(corpus), pairs)
    assert chosen.total_N == pytest.approx(reward.model(values_P2C[:, 0]))
    assert set(chosen.parts) == {name for name in REVIEWS if fitted[f"weight/{name}"]}


def test_the_first_pairs_are_those_that_count(corpus, tmp_path):
    all_metrics, _ = make(corpus, tmp_path / "a", design="fitted", max_pairs=0, validation_pairs=100)
    few, _ = make(corpus, tmp_path / "b", design="fitted", max_pairs=100, validation_pairs=100)
    assert (all_metrics["pairs"], few["pairs"]) == (600, 100)
    assert {k: v for k, v in few.items() if k.startswith("agreement/")} == {
        k: v for k, v in all_metrics.items() if k.startswith("agreement/")
    }


def test_true_labels_ignore_the_stored_order(corpus, tmp_path):
    """If all pairs are stored the other way round, fitted weights change their sign, unless gold orders the pairs."""
    swapped = replace(corpus, train=[Pair(pair.prompt, pair.rejected, pair.chosen) for pair in corpus.train])
    for labels, sign in (("annotator", -1), ("gold", 1)):
        stored, _ = make(corpus, tmp_path / f"{labels}_a", labels=labels)
        reversed_, _ = make(swapped, tmp_path / f"{labels}_b", labels=labels)
        weights = [stored[f"weight/{name}"] for name in REVIEWS]
        assert any(weights)
        assert [reversed_[f"weight/{name}"] for name in REVIEWS] == pytest.approx([sign * w for w in weights])


def test_ties_and_unknown_gold_give_no_order():
    golds = [(2.0, 1.0), (1.0, 2.0), (1.0, 1.0), (float("nan"), 1.0)]
    pairs = [Pair(CHANGE, "a", "b", {"gold_chosen": one, "gold_rejected": other}) for one, other in golds]
    assert [pair.chosen for pair in criteria_reward.in_gold_order(pairs)] == ["a", "b"]


def test_pairs_of_the_policy_replace_those_of_the_corpus(corpus, tmp_path, monkeypatch):
    """The policy always names one line, and the annotator prefers the response that also gives the fix."""
    fix = Pair(CHANGE, "Line 2 uses a wrong variable. Use price on line 2.", "Line 2 uses a wrong variable.")
    asked = []

    class Sampler:
        def __init__(self, run):
            pass

        def labelled_pairs(self, split, count):
            asked.append((split, count))
            return [fix] * count

    monkeypatch.setattr(criteria_reward, "PolicyResponses", Sampler)
    metrics, _ = make(corpus, tmp_path, design="fitted", pairs_from="policy", max_pairs=40, validation_pairs=40)
    assert asked == [("train", 40)] and metrics["pairs"] == 40
    assert metrics["weight/gives_fixes"] > 0
    assert metrics["weight/praise"] == 0  # equal in all pairs

    monkeypatch.setattr(Sampler, "labelled_pairs", lambda self, split, count: [])
    with pytest.raises(ConfigError, match="no training pair is left"):
        make(corpus, tmp_path, pairs_from="policy", max_pairs=40)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.pairs_from=policy", "algorithm.max_pairs=10"], "samples from needs.policy; set it"),
        (["algorithm.pairs_from=policy", "+needs.policy=sft"], "needs the number of pairs to sample"),
    ],
)
def test_pairs_of_the_policy_need_a_policy_and_a_number(overrides, message):
    with pytest.raises(ConfigError) as error:
        check_command(["+recipe=criteria_fitted", *overrides])
    assert any(message in problem for problem in error.value.problems)


def test_a_reward_of_another_domain_is_refused(tmp_path):
    model = CriteriaModel("text", ("a",), (1.0,), (0.0,), (1.0,), slope=2.0)
    model.save(tmp_path, {"design": "hand"})
    assert CriteriaModel.load(tmp_path, ("a",)) == model
    with pytest.raises(ArtifactError, match="weighs a; the criteria of these data are b, c"):
        CriteriaModel.load(tmp_path, ("b", "c"))
    with pytest.raises(ConfigError, match=r"has no criteria_reward\.json"):
        CriteriaModel.load(tmp_path / "other", ("a",))


def test_gains_by_hand():
    """Two prompts with two responses each: best of 2 is the one with the higher proxy, the mean is between them."""

    def rows(gold, proxy):
        return [{"gold": g, "proxy": p} for g, p in zip(gold, proxy, strict=True)]

    prompts = [rows([0.0, 2.0], [0.0, 1.0]), rows([4.0, 2.0], [0.0, 1.0])]
    metrics = choice_metrics(prompts, 2)
    assert metrics["gold_sd"] == pytest.approx(np.std([0, 2, 4, 2]))
    # gold: +1 at the first prompt, −1 at the second; proxy: +½ of sd ½ at both
    assert metrics["gain"].mean == pytest.approx(0)
    assert metrics["proxy_gain"].mean == pytest.approx(1.0)
    assert metrics["gap"].mean == pytest.approx(1.0)
    assert metrics["gold_correlation/within"].mean == pytest.approx(0)

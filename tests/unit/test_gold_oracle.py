"""A reward model as gold: what its oracle measures and prefers, what is refused, and what a stage's key depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import ONE_LAYER, checked, planned, prompt_text, said, save_tiny, toy_rows, write_pairs

from rlhf_lab.algorithms.policy_gradient.rollouts import truth_means
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus, Pair, RewardBatch
from rlhf_lab.evaluations.reward_audit import audit_margins, with_gold
from rlhf_lab.memory.copies import copies
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.rewards.gold_oracle import GoldOracle
from rlhf_lab.rewards.learned.bt import BTReward, Scorer, ScoreScale
from rlhf_lab.rewards.learned.settings import BradleyTerry
from rlhf_lab.stages import preflight

PAIRS = [Pair(prompt_text(f"question {i}"), "a long good reply", "short") for i in range(4)]


class Words:
    """A reward of the number of words; the empty response is unscored. Counts its calls."""

    def __init__(self):
        self.asked: list[int] = []

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> RewardBatch:
        self.asked.append(len(responses))
        return RewardBatch(np.array([len(text.split()) if text else np.nan for text in responses], dtype=float))


class Answers:
    """Oracle of data with verifiable answers."""

    def measure(self, prompts, responses):
        return {"correct": np.array([float("4" in text) for text in responses])}

    def prefer(self, prompts, first, second, *, seed):
        raise NotImplementedError


class Logit(BTReward):
    """A Bradley-Terry reward whose raw scores are twice the words, standardised with an sd of 2."""

    def __init__(self):
        scorer = Scorer(None, None, ScoreScale(mean=0.0, sd=2.0, n=10), "cpu", 1)  # type: ignore[arg-type]
        super().__init__([scorer], BradleyTerry())

    def __call__(self, prompts, responses):
        return Words()(prompts, responses)


def corpus(oracle: object = None) -> Corpus:
    return Corpus("pairs", PAIRS, PAIRS, "", oracle=oracle)  # type: ignore[arg-type]


def gold(reward: object, data: Corpus | None = None, notes: list[str] | None = None) -> GoldOracle:
    return GoldOracle(lambda: reward, data or corpus(), (notes if notes is not None else []).append)  # type: ignore


def test_gold_is_the_models_score_beside_what_the_data_know():
    data = corpus(Answers())
    measured = gold(Words(), data).measure(["p", "p"], ["it is 4", "no"])
    assert measured.keys() == {"correct", "gold"}
    assert measured["gold"].tolist() == [3, 1] and measured["correct"].tolist() == [1, 0]
    data = replace(data, oracle=gold(Words(), data))
    assert data.measure(said(["p"], ["two words"]))["gold"].tolist() == [2]


def test_replies_are_scored_once_and_unscored_ones_counted():
    words = Words()
    oracle = gold(words)
    oracle.measure(["p", "p", "q"], ["a b", "a b", "a b"])
    oracle.measure(["q", "p"], ["a b", "a b"])
    oracle.measure(["q", "q"], ["a b", "c"])
    assert words.asked == [2, 1]
    notes: list[str] = []
    truth = gold(Words(), notes=notes).measure(["p", "p"], ["", "a b"])
    assert np.isnan(truth["gold"][0]) and notes == ["reward gold: 1 of 2 responses unscored"]
    assert truth_means(truth) == {"gold": 2.0}
    assert np.isnan(truth_means({"gold": np.array([np.nan])})["gold"])


def test_pairs_are_labelled_as_bradley_terry_draws_them():
    """Scores 3 and 1 in units of 2 logits: P = σ(2·(3 − 1)) = .982."""
    first_wins, p = gold(Logit()).prefer(["p"] * 2000, ["a b c"] * 2000, ["a"] * 2000, seed=1)
    assert p[0] == pytest.approx(1 / (1 + np.exp(-4)))
    assert first_wins.mean() == pytest.approx(0.982, abs=0.01)
    again, _ = gold(Logit()).prefer(["p"] * 2000, ["a b c"] * 2000, ["a"] * 2000, seed=1)
    assert (again == first_wins).all()


def test_a_score_that_is_no_logit_decides_by_its_order():
    """A length head takes a part of the log-odds, so the score beside it is no logit."""
    beside_length = Logit()
    beside_length.scorers[0].scale = replace(beside_length.scorers[0].scale, attributes=("quality", "length"))
    assert gold(beside_length).prefer(["p"], ["a b"], ["a"], seed=0)[1].tolist() == [1]
    _, p = gold(Words()).prefer(["p"] * 4, ["a b", "a", "a", ""], ["a", "a b", "b", "b"], seed=0)
    assert p[:3].tolist() == [1, 0, 0.5] and np.isnan(p[3])  # an unscored response: no label


def test_held_out_pairs_get_gold_where_they_have_none():
    pairs = with_gold(PAIRS, gold(Words()))
    assert [(pair.meta["gold_chosen"], pair.meta["gold_rejected"]) for pair in pairs] == [(4, 1)] * 4
    assert audit_margins(np.array([1.0, 1.0, 1.0, -1.0]), pairs)["gold_agreement"].mean == 0.75
    assert with_gold(PAIRS, None) == PAIRS and with_gold(PAIRS, Answers()) == PAIRS
    known = [replace(pair, meta={"gold_chosen": 0.0, "gold_rejected": 1.0}) for pair in PAIRS]
    assert with_gold(known, gold(Words())) == known


# What can be written


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """pairs.jsonl, and two reward models that Hugging Face saved, rm and copy, which are the same."""
    directory = tmp_path_factory.mktemp("gold")
    write_pairs(directory / "pairs.jsonl", toy_rows(40))
    tokenizer = train_tokenizer([f"{c} {r}" for _, c, r in toy_rows(40)], 400)
    policy = save_tiny("gpt2", tokenizer, directory / "policy")
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
    for name in ("rm", "copy"):
        model.save_pretrained(directory / name)
        tokenizer.save_pretrained(directory / name)
    return directory


def on_pairs(files: Path) -> tuple[str, ...]:
    return ("data=pairs", f"data.path={files / 'pairs.jsonl'}", *ONE_LAYER)


@pytest.mark.parametrize(
    ("recipe", "data", "message"),
    [
        ("grpo", ("data=mini_hh",), "needs.gold: data=mini_hh has its own gold"),
        ("sft", None, "needs.gold is not used by algorithm=sft"),
        ("step_report", ("data=arithmetic",), "needs.gold is not used by algorithm=step_report"),
    ],
)
def test_where_gold_has_no_meaning_it_is_refused(files, recipe, data, message):
    with pytest.raises(ConfigError, match=message):
        checked(recipe, *(data or on_pairs(files)), "needs.gold=reward_model")


@pytest.mark.parametrize("recipe", ["ppo", "dpo_iterative", "compare_policies", "rm_report"])
def test_whoever_measures_replies_takes_it(files, recipe):
    stage = planned(recipe, *on_pairs(files), f"needs.gold={files / 'rm'}")
    assert stage.sources()["gold"] == str(files / "rm")
    assert preflight.problems(stage) == []


def test_a_gold_of_the_recipe_of_the_proxy_is_another_model(files):
    stage = planned("grpo", *on_pairs(files), "needs.gold=reward_model", "seed=3")
    proxy, gold_stage = stage.needs["reward"], stage.needs["gold"]
    assert (proxy.config.seed, gold_stage.config.seed) == (3, 1003)
    assert gold_stage.needs["policy"].config.seed == 1003
    assert proxy.key != gold_stage.key
    assert preflight.problems(stage) == []


def test_settings_of_gold_are_not_those_of_the_proxy(files):
    other = write_pairs(files / "others.jsonl", toy_rows(30, seed=7))
    its_own = ("stages.gold.algorithm.members=2", f"stages.gold.data.path={other}", "stages.gold.model.hidden=32")
    stage = planned("grpo", *on_pairs(files), "needs.gold=reward_model", *its_own)
    proxy, gold_stage = stage.needs["reward"].config, stage.needs["gold"].config
    assert (proxy.algorithm.members, gold_stage.algorithm.members) == (1, 2)
    assert (Path(proxy.data.path).name, Path(gold_stage.data.path).name) == ("pairs.jsonl", "others.jsonl")
    # the policy that the gold starts from reads the gold's data, and has its size
    assert gold_stage.data.path == stage.needs["gold"].needs["policy"].config.data.path
    model_copies = {copy.name: copy.shape.hidden for copy in copies(stage)}
    assert model_copies["policy"] == model_copies["reward bt"] == 16
    assert model_copies["gold 0"] == model_copies["gold 1"] == 32


def test_a_stage_with_gold_is_another_stage(files):
    without = planned("grpo", *on_pairs(files))
    with_it = planned("grpo", *on_pairs(files), f"needs.gold={files / 'rm'}")
    assert without.settings_key != with_it.settings_key
    assert "rlhf_lab/rewards/gold_oracle.py:GoldOracle" in with_it.code
    assert "rlhf_lab/rewards/gold_oracle.py:GoldOracle" not in without.code
    assert without.needs["reward"].key == with_it.needs["reward"].key


@pytest.mark.parametrize("source", ["rm", "copy"])
def test_gold_may_not_be_the_reward_that_is_trained_on(files, source):
    named = (f"needs.reward={files / 'rm'}", f"needs.gold={files / source}")
    (problem,) = preflight.problems(planned("grpo", *on_pairs(files), *named))
    assert "is the model of needs.reward" in problem and "needs.gold=reward_model" in problem
    alone = planned("grpo", *on_pairs(files), "needs.reward=null", "reward=length", f"needs.gold={files / 'rm'}")
    assert preflight.problems(alone) == []


def test_a_policy_is_no_gold(files):
    (problem,) = preflight.problems(planned("grpo", *on_pairs(files), f"needs.gold={files / 'policy'}"))
    assert "is not a reward model: it has no head" in problem

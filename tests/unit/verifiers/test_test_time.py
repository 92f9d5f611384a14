"""Accuracy at test time: each strategy on planted samples, and what the settings refuse."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support import checked

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.metrics import undeclared
from rlhf_lab.core.types import Corpus
from rlhf_lab.data.gsm8k import AnswerKey
from rlhf_lab.evaluations.settings import AtTestTime
from rlhf_lab.evaluations.test_time import ChoosingAtTestTime
from rlhf_lab.rewards.verifiers.oracle import VerifierOracle
from rlhf_lab.rewards.verifiers.settings import Json
from rlhf_lab.rewards.verifiers.verifier import verifier_of

SAMPLES = [("#### 7", 1, 0.2), ("#### 7.0", 1, 0.4), ("#### 8", 0, 0.9), ("#### 9", 0, 0.1)]
"""Response, True if it is right, and its score by a verifier."""


class Evaluated:
    """An evaluator that has sampled: two prompts with the same samples, ten tokens each."""

    def __init__(self):
        self.policies = []
        self.tasks = self.prompt_ids = ["p", "q"]
        self.collector = self

    def evaluate(self, name, model, samples):
        assert samples == 4

    def rows(self, name):
        return [
            {"prompt_id": i, "response": response, "correct": right, "proxy": proxy, "tokens": 10}
            for i in range(2)
            for response, right, proxy in SAMPLES
        ]

    def collect(self, model, tasks, group, seed, *, temperature, prompts):
        assert (group, temperature) == (1, 0.0)
        return [[SimpleNamespace(prompt="p", response=response, sampled_tokens=8)] for response in ("#### 7", "#### 8")]


def stage(strategy: str, oracle=None) -> ChoosingAtTestTime:
    generated = ChoosingAtTestTime.__new__(ChoosingAtTestTime)
    generated.settings = AtTestTime(strategy=strategy, sizes=(1, 2, 4), samples=4)
    oracle = oracle or AnswerKey({"p": "7"})
    corpus = Corpus("planted", [], [], "0", oracle=oracle, answers={"p": "7"})
    generated.run = SimpleNamespace(corpus=corpus, data=corpus)
    generated.evaluator, generated.model, generated.encoder = Evaluated(), None, None
    return generated


EXPECTED = {
    # one right and one wrong greedy response of 8 tokens, whatever k is
    "greedy": ([0.5, 0.5, 0.5], [8, 8, 8]),
    # k = 2: of six pairs 7-7 is right, the four with one 7 are right half the time, 8-9 never: 3/6
    "majority": ([0.5, 0.5, 1], [10, 20, 40]),
    # by proxy 8 is best: right where it is not sampled: k = 1: 2/4; k = 2: 3 of 6 without it; k = 4: never
    "best_of_n": ([0.5, 0.5, 0], [10, 20, 40]),
    # k = 2: all but 8-9: 5/6
    "any": ([0.5, 5 / 6, 1], [10, 20, 40]),
}


@pytest.mark.parametrize("strategy", EXPECTED)
def test_each_strategy_by_hand(strategy, monkeypatch):
    monkeypatch.setattr("rlhf_lab.evaluations.test_time.corpus_report", lambda corpus, encoder: {})
    result = stage(strategy).finish()
    accuracy, tokens = EXPECTED[strategy]
    assert [result.metrics[f"accuracy@{k}"].mean for k in (1, 2, 4)] == pytest.approx(accuracy)
    assert [result.metrics[f"tokens@{k}"].mean for k in (1, 2, 4)] == tokens
    assert result.metrics["accuracy@1"].clusters == 2
    assert not undeclared(result.metrics)
    assert set(result.primary) <= result.metrics.keys()


def test_there_is_no_vote_without_answers():
    without = stage("majority", VerifierOracle(verifier_of(Json(), None), Corpus("planted", [], [], "0")))
    with pytest.raises(ConfigError, match="state no final answer to vote on"):
        without.finish()


@pytest.mark.parametrize("values", [{"sizes": (2, 1)}, {"samples": 8}])
def test_settings_that_measure_nothing(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        AtTestTime(**values)


def test_all_strategies_of_a_seed_read_the_same_samples():
    """The draw is named after the reference policy, so it follows from the seed alone."""
    configs = [checked("test_time_compute", f"algorithm.strategy={name}") for name in EXPECTED]
    assert len({(config.seed, config.evaluation, config.algorithm.samples) for config in configs}) == 1

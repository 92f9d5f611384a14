"""Iterative DPO: which rounds' pairs a round trains on, with whose log-probabilities and with which consistency."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import gpt2_tokenizer, prompt_text, toy_rows
from test_logged_numbers import logits, model_of
from torch import nn

from rlhf_lab.algorithms.preference.dpo import objective_of
from rlhf_lab.algorithms.preference.dpo_iterative import IteratedDPO, RollOut, Round, RoundFiles
from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.core.types import Pair
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.pair_rows import PairRows

PAIRS = {1: 2, 2: 3, 3: 1, 4: 2}
"""Round → pairs that it labels."""
CONSISTENCY = {1: 1.0, 2: 0.75, 3: 0.5, 4: 0.25}
CORPUS_PROMPT = prompt_text("what")


class Scale(nn.Module):
    """Stub of a model: its log-probabilities are this number times the lengths of the responses."""

    def __init__(self, value: float):
        super().__init__()
        self.value = value


def round_of(index: int) -> Round:
    """A round's pairs: prompt [index, number], a chosen response of 2 tokens, a rejected one of `index` tokens."""
    pairs = [[[index, number], [8, 8], [9] * index] for number in range(PAIRS[index])]
    return Round(index, {"pairs": float(len(pairs))}, pairs, CONSISTENCY[index])


def rounds(directory: Path, policy: float = -1.0, **settings: Any) -> IteratedDPO:
    """Iterative DPO whose rounds are `round_of`; the reference's log-probability of a token is −10, the policy's −1."""
    generated = IteratedDPO.__new__(IteratedDPO)
    generated.settings = IterativeDPO(**{"rounds": 4, "corpus_fraction": 0.0, "batch_size": 2, **settings})
    generated.objective = objective_of(generated.settings)
    generated.model, generated.reference, generated.max_length, generated.codebooks = Scale(policy), Scale(-10.0), 64, 0
    words = toy_rows(12)
    generated.encoder = Encoder(gpt2_tokenizer([text for row in words for text in row]))
    corpus = [Pair(CORPUS_PROMPT, chosen, rejected) for _, chosen, rejected in words]
    generated.logged: list[dict[str, float]] = []
    generated.run: Any = SimpleNamespace(
        directory=directory,
        device="cpu",
        corpus=SimpleNamespace(train=corpus),
        seed=lambda name, index: index,
        log=lambda step, **values: generated.logged.append({"step": step, **values}),
    )
    generated.monitor: Any = SimpleNamespace(stopped=None)
    generated.audit: Any = SimpleNamespace(stopped=None, check=lambda iteration: {})
    generated.rounds = RoundFiles(generated.run)
    generated.roll_out: Any = SimpleNamespace(make=lambda index, model, reference: round_of(index))
    generated.round = generated.logged_round = 0
    generated.round_steps, generated.staleness = 6, []

    def pair_logps(model: Scale, pairs: list[PairRows]) -> PairLogps:
        lengths = [[len(response) for _, response in pair] for pair in pairs]
        return PairLogps(*(model.value * torch.tensor(lengths, dtype=torch.float32).T))

    generated._pair_logps = pair_logps  # type: ignore[method-assign, assignment]
    return generated


def trained_rounds(algorithm: IteratedDPO) -> list[int]:
    """The round of each pair of the table, in order; 0 is the corpus."""
    own = [prompt for (prompt, _), _ in algorithm.table.pairs]
    return [prompt[0] if len(prompt) == 2 else 0 for prompt in own]


@pytest.mark.parametrize(
    ("settings", "by_round"),
    [
        ({"buffer": "current"}, [[1], [2], [3], [4]]),
        ({"buffer": "rolling", "window": 2}, [[1], [1, 2], [2, 3], [3, 4]]),
        ({"buffer": "rolling", "window": 3}, [[1], [1, 2], [1, 2, 3], [2, 3, 4]]),
        ({"buffer": "full"}, [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]),
    ],
)
def test_a_round_trains_on_the_rounds_of_its_buffer(settings, by_round, tmp_path):
    algorithm = rounds(tmp_path, **settings)
    for index, expected in enumerate(by_round, start=1):
        algorithm._start_round(index)
        assert trained_rounds(algorithm) == [r for r in expected for _ in range(PAIRS[r])]
        assert len(algorithm.steps) == 6, "every round takes as many steps"
        assert {i for step in algorithm.steps for i in step} == set(range(len(algorithm.table.pairs)))
    assert [row["step"] for row in algorithm.logged] == [0, 6, 12, 18]
    assert [row["buffer_pairs"] for row in algorithm.logged] == [sum(PAIRS[r] for r in seen) for seen in by_round]


def test_staleness_is_the_mean_age_of_what_is_trained_on(tmp_path):
    """Round 2 with all pairs: those of round 1 are one round old, those of round 2 none; corpus pairs have no age."""
    algorithm = rounds(tmp_path, buffer="full", corpus_fraction=0.5)
    for index in (1, 2):
        algorithm._start_round(index)
    of_pairs = trained_rounds(algorithm)
    ages = [2 - of_pairs[i] for step in algorithm.steps for i in step if of_pairs[i]]
    assert 0 < sum(ages) < len(ages)
    assert algorithm.staleness == pytest.approx([0.0, sum(ages) / len(ages)])
    assert algorithm.logged[1]["staleness"] == algorithm.staleness[1]


def test_each_pair_has_the_consistency_of_the_round_that_labelled_it(tmp_path):
    """Round 3 with a window of 2: three pairs of round 2 at ¾, one of round 3 at ½, and as many of the corpus at 1."""
    algorithm = rounds(tmp_path, buffer="rolling", window=2, consistency="cream", corpus_fraction=0.5)
    for index in (1, 2, 3):
        algorithm._start_round(index)
    assert trained_rounds(algorithm) == [2, 2, 2, 3, 0, 0, 0, 0]
    assert algorithm.table.context.consistency_B.tolist() == [0.75, 0.75, 0.75, 0.5, 1.0, 1.0, 1.0, 1.0]
    # inputs of a step belong to the pairs of the step
    (micro,) = algorithm.table.batch([6, 3, 0], 0).micro
    assert micro[1].consistency_B.tolist() == [1.0, 0.5, 0.75]


def test_labels_count_as_they_are_without_cream(tmp_path):
    algorithm = rounds(tmp_path, buffer="full")
    for index in (1, 2):
        algorithm._start_round(index)
    assert algorithm.table.context.consistency_B is None


def test_the_reference_and_the_policy_as_the_round_began_stay_apart(tmp_path):
    """INPO in round 2, window 2. Chosen responses have 2 tokens: −20 under the reference, and −2 under the policy then.

    Rejected ones have 1 token (two pairs of round 1) or 2 (three of round 2): −10 or −20, and −1 or −2. A resumed run,
    whose policy has moved to −3 a token, reads what the policy gave as the round began.
    """
    inpo = {"loss": "inpo", "buffer": "rolling", "window": 2}
    started = rounds(tmp_path, **inpo)
    for index in (1, 2):
        started._start_round(index)
    resumed = rounds(tmp_path, policy=-3.0, **inpo)
    resumed.logged_round, resumed.staleness = 2, [0.0, 0.0]
    resumed._start_round(2)
    for algorithm in (started, resumed):
        given = algorithm.table.context
        assert given.ref.chosen.tolist() == [-20.0] * 5
        assert given.ref.rejected.tolist() == [-10.0, -10.0, -20.0, -20.0, -20.0]
        assert given.previous.chosen.tolist() == [-2.0] * 5
        assert given.previous.rejected.tolist() == [-1.0, -1.0, -2.0, -2.0, -2.0]
    assert resumed.logged == [], "the round was logged before the run was interrupted"


def test_pairs_of_the_corpus_are_as_many_as_the_fraction_says(tmp_path):
    """A fraction of ⅔: two own pairs are joined by four of the corpus, seven by all twelve that there are."""
    algorithm = rounds(tmp_path, corpus_fraction=2 / 3)
    algorithm._start_round(1)
    assert trained_rounds(algorithm) == [1, 1, 0, 0, 0, 0]
    assert len(algorithm._draw_corpus_pairs(1, 2)) == 4
    assert len(algorithm._draw_corpus_pairs(1, 7)) == 12
    assert (
        algorithm._draw_corpus_pairs(1, 2) == algorithm._draw_corpus_pairs(1, 2) != algorithm._draw_corpus_pairs(2, 2)
    )


POLICY, REFERENCE = (0.5, 0.3, 0.2), (0.8, 0.1, 0.1)
"""Tokens 0, 1, 2: log π/π_ref is −.47, 1.10, .69: the implicit reward ranks 1, 2, 0, and log π ranks 0, 1, 2."""


@pytest.mark.parametrize(("index", "expected"), [(1, 1.0), (2, 2 / 3), (3, 2 / 3)])
def test_the_implicit_reward_is_against_the_reference(index, expected):
    """Responses 0, 1 and 2 to two prompts, with rewards 1 3 2 and 2 1 3.

    The first order, 1 2 0, is that of the implicit reward: τ = 1. The second, 2 0 1, has one pair of three in the same
    order: τ = −⅓. C is the mean of 1 and ⅓; against log π alone it would be ⅓. In the first round the policy is the
    reference, and C is 1.
    """
    episodes = [
        Episode(Task("p"), "p", "r", [0], (Segment([token], sampled=True),)) for _ in range(2) for token in range(3)
    ]
    run: Any = SimpleNamespace(device="cpu", autocast=lambda: torch.autocast("cpu", enabled=False))
    roll_out = RollOut(IterativeDPO(), run, *[None] * 3)  # type: ignore[arg-type]
    models = (model_of(*logits(*POLICY)), model_of(*logits(*REFERENCE)))
    scores_BG = np.array([[1.0, 3.0, 2.0], [2.0, 1.0, 3.0]])
    assert roll_out._consistency_rate(index, scores_BG, episodes, *models) == pytest.approx(expected)
    assert math.log(POLICY[1] / REFERENCE[1]) > math.log(POLICY[2] / REFERENCE[2]) > math.log(POLICY[0] / REFERENCE[0])

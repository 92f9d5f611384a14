"""Numbers that training and evaluation log about how far a policy has moved: their direction, side and temperature.

The models have two or three tokens and a head that is a bias alone, so every distribution is written on the page.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import checked
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from rlhf_lab.algorithms.policy_gradient.on_policy import OnPolicy
from rlhf_lab.algorithms.preference.dpo import preference_step
from rlhf_lab.core.episodes import Episode, Segment, Task
from rlhf_lab.evaluations.evaluator import Evaluator
from rlhf_lab.losses.policy import ClipRange
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import response_states
from rlhf_lab.models.truncation import EVERYTHING
from rlhf_lab.sampling.experience import Micro


def model_of(*logits: float) -> nn.Module:
    """A causal model that gives every next token the same logits, whatever came before."""
    config = LlamaConfig(
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        vocab_size=len(logits),
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    model: Any = AutoModelForCausalLM.from_config(config).eval()
    model.lm_head = nn.Linear(8, len(logits))
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(torch.tensor(logits))
    return model


def logits(*probabilities: float) -> tuple[float, ...]:
    return tuple(math.log(p) for p in probabilities)


OLD, NEW = (0.8, 0.2), (0.5, 0.5)


def test_approx_kl_is_that_of_the_sampling_policy_from_the_new_one() -> None:
    """Responses were sampled from `old`, so r = new/old, and Σ old·(r − 1 − log r) is KL(old ‖ new), not its reverse.

    Token 0: r = .5/.8 = .625, r − 1 − log r = −.375 + .4700 = .0950.   Token 1: r = 2.5, 1.5 − .9163 = .5837.
    .8·.0950 + .2·.5837 = .1927 = .8·log 1.6 + .2·log .4; the reverse KL is .5·log .625 + .5·log 2.5 = .2231.
    """
    batch = TokenBatch.from_rows([([0], [0, 1])])
    micro = Micro(batch, {"old": torch.tensor(logits(*OLD)), "advantage": torch.zeros(2)}, torch.ones(2))
    settings = SimpleNamespace(policy_loss="ppo_clip", kl_in="reward")
    algorithm: Any = SimpleNamespace(
        settings=settings,
        temperature=1.0,
        truncation=EVERYTHING,
        beta=0.0,
        clip=ClipRange(0.2, 0.2),
        _ratio_is_one=False,
    )
    moved_N = OnPolicy.policy_loss(algorithm, micro, response_states(model_of(*logits(*NEW)), batch)).metrics[
        "approx_kl"
    ]
    assert moved_N.tolist() == pytest.approx([0.0950, 0.5837], abs=1e-4)
    assert float((torch.tensor(OLD) * moved_N).sum()) == pytest.approx(0.1927, abs=1e-4)


def test_chosen_drift_is_of_the_chosen_reply() -> None:
    """Policy (.5, .3, .2). Chosen: token 0, then 0 0: log .5 = −.6931, −1.3863. Rejected ones are token 1.

    The reference gave the chosen ones −1 and −1, so they drifted by .3069 and −.3863; the rejected ones had −5.
    """
    pairs = [(([0], [0]), ([0], [1])), (([1], [0, 0]), ([1], [1]))]
    ref = PairLogps(torch.tensor([-1.0, -1.0]), torch.tensor([-5.0, -5.0]))
    settings: Any = checked("dpo", "model=micro").algorithm
    metrics = preference_step(model_of(*logits(0.5, 0.3, 0.2)), pairs, ref, settings, "cpu").metrics
    assert metrics["chosen_drift"].tolist() == pytest.approx([0.3069, -0.3863], abs=1e-4)
    assert metrics["chosen_logp"].tolist() == pytest.approx([-0.6931, -1.3863], abs=1e-4)
    assert metrics["rejected_logp"].tolist() == pytest.approx([math.log(0.3)] * 2, abs=1e-4)


def evaluator(reference: nn.Module, **settings: Any) -> Any:
    """As much of an evaluator as one of its metrics needs."""
    corpus = SimpleNamespace(preferences=True)
    run = SimpleNamespace(device="cpu", corpus=corpus)
    return SimpleNamespace(run=run, reference=reference, _reference_pairs=None, beta=None, p_chosen=[None], **settings)


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (2.0, 0.1308),  # logits (2 log 3, 0)/2: policy (.75, .25); .75·log 1.5 + .25·log .5
        (1.0, 0.3681),  # policy (.9, .1); .9·log 1.8 + .1·log .2
        (0.0, 0.3681),  # greedy responses: the distributions themselves
    ],
)
def test_the_kl_of_an_evaluation_is_at_the_temperature_of_its_samples(temperature: float, expected: float) -> None:
    """Per token, against a reference of (.5, .5); a response of three tokens has three times as much."""
    stated = evaluator(model_of(0.0, 0.0), rollout=SimpleNamespace(temperature=temperature))
    rows = [([0], [1]), ([1], [0, 1, 1])]
    episodes = [Episode(Task("p"), "p", "r", prompt, (Segment(response, sampled=True),)) for prompt, response in rows]
    kl: list[float] = Evaluator._kl(stated, model_of(2 * math.log(3), 0.0), episodes)
    assert kl == pytest.approx([expected, 3 * expected], abs=3e-4)


def test_the_kl_of_an_evaluation_is_of_the_tokens_that_were_sampled() -> None:
    """.3681 a token, as above: an episode of turns of 1 and 2 tokens, with 5 of the environment between them, has
    3·.3681, and one of a single turn of 4 tokens has 4·.3681.
    """
    stated = evaluator(model_of(0.0, 0.0), rollout=SimpleNamespace(temperature=1.0))
    environment = Segment([0, 1, 0, 1, 0], sampled=False)
    talks = [
        (Segment([1], sampled=True), environment, Segment([0, 1], sampled=True)),
        (Segment([1, 0, 0, 1], sampled=True),),
    ]
    episodes = [Episode(Task("p"), "p", "r", [0], segments) for segments in talks]
    kl: list[float] = Evaluator._kl(stated, model_of(2 * math.log(3), 0.0), episodes)
    assert kl == pytest.approx([3 * 0.3681, 4 * 0.3681], abs=3e-4)

"""DPO on the streams of a codec: sum, mean and per-codebook log-probabilities, with the arithmetic on the page."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from rlhf_lab.algorithms.preference.dpo import codebooks_separately, objective_of, preference_step
from rlhf_lab.algorithms.preference.settings import DPO
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.losses.preference import PREFERENCE_LOSSES, PairInputs, PairLogps, PairTokens
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.pair_rows import pair_logps, response_logps
from rlhf_lab.models.settings import Scratch
from rlhf_lab.packs.speech.policy.start import codec_policy
from rlhf_lab.packs.speech.policy.tokenizer import code_tokenizer
from rlhf_lab.packs.speech.sound.stream import write_stream

SIZES = (5, 4, 3)
PROMPT = "low calm : ba"


@pytest.fixture
def policy():
    tokenizer = code_tokenizer([PROMPT], SIZES)
    settings = Scratch(family="codec", hidden=32, layers=1, heads=2)
    return codec_policy(settings, tokenizer, 0, SIZES), Encoder(tokenizer)


def row(encoder, frames, seed):
    rng = np.random.default_rng(seed)
    codes_TK = np.stack([rng.integers(0, size, frames) for size in SIZES], axis=1)
    return encoder.row(PROMPT, write_stream(codes_TK), 400)


def test_codebooks_add_up_to_the_reply(policy):
    model, encoder = policy
    batch = TokenBatch.from_rows([row(encoder, 3, 1), row(encoder, 7, 2)])
    apart_BK = response_logps(model, batch, 3)
    torch.testing.assert_close(apart_BK.sum(1), token_logps(model, batch).sum_B())
    # of the first row's codebook 0: positions 0, 3, 6, … of the stream
    logps = token_logps(model, batch)
    first = logps.logps_N[logps.row_N == 0]
    torch.testing.assert_close(apart_BK[0, 0], first[0::3].sum())


def test_the_loss_per_codebook_is_the_mean_of_the_codebooks_own_losses():
    """Gaps of log-ratios 2 and −1 with β ½: margins 1 and −½, loss (log(1+e⁻¹) + log(1+e^½))/2 = .6436."""
    policy = PairLogps(torch.tensor([[3.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
    ref = PairLogps(torch.zeros(1, 2), torch.zeros(1, 2))
    tokens = PairTokens(torch.tensor([8.0]), torch.tensor([8.0]))
    loss = PREFERENCE_LOSSES["sigmoid"](PairInputs(policy, tokens, ref).of_codebooks(2), {"beta": 0.5})
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(0.5))) / 2
    assert loss.per_pair_B.mean().item() == pytest.approx(expected)
    assert loss.margin_B.tolist() == [1.0, -0.5]


def test_the_tokens_of_a_pair_are_divided_between_its_codebooks():
    """Responses of 8 and 4 tokens in two codebooks: 4 and 2 tokens of each, for losses that are means over them.

    SimPO with β = 1 and γ = 0. Codebook 0: −2/4 − (−3/2) = 1. Codebook 1: −6/4 − (−1/2) = −1. A second pair of 2 and 6
    tokens, 1 and 3 of each: −1/1 − (−3/3) = 0 and −2/1 − (−9/3) = 1.
    """
    chosen = torch.tensor([[-2.0, -6.0], [-1.0, -2.0]])
    rejected = torch.tensor([[-3.0, -1.0], [-3.0, -9.0]])
    tokens = PairTokens(torch.tensor([8.0, 2.0]), torch.tensor([4.0, 6.0]))
    separate = PairInputs(PairLogps(chosen, rejected), tokens).of_codebooks(2)
    assert separate.tokens.chosen.tolist() == [4.0, 4.0, 1.0, 1.0]
    assert separate.tokens.rejected.tolist() == [2.0, 2.0, 3.0, 3.0]
    loss = PREFERENCE_LOSSES["simpo"](separate, {"beta": 1.0, "gamma_beta_ratio": 0.0})
    assert loss.margin_B.tolist() == [1.0, -1.0, 0.0, 1.0]


@pytest.mark.parametrize("logps", ["sum", "mean", "per_codebook"])
def test_a_step_on_the_reference_itself_has_loss_log_2_and_a_gradient(policy, logps):
    model, encoder = policy
    settings = DPO(logps=logps, beta=0.5)
    pairs = [(row(encoder, 3, 1), row(encoder, 6, 2)), (row(encoder, 5, 3), row(encoder, 4, 4))]
    ref = pair_logps(model, pairs, "cpu", codebooks_separately(model, settings))
    out = preference_step(model, pairs, ref, settings, "cpu")
    assert out.loss_N.detach().tolist() == pytest.approx([math.log(2)] * 2, abs=1e-5)
    out.loss_N.mean().backward()
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_mean_divides_each_reply_by_its_tokens(policy):
    """With one pair, loss = log(1 + exp(−β·(s_chosen/n_chosen − s_rejected/n_rejected))) against a reference of 0."""
    model, encoder = policy
    pair = (row(encoder, 3, 1), row(encoder, 6, 2))
    sums = token_logps(model, TokenBatch.from_rows(list(pair))).sum_B()
    lengths = [len(response) for _, response in pair]
    zero = PairLogps(torch.zeros(1), torch.zeros(1))
    out = preference_step(model, [pair], zero, DPO(logps="mean", beta=2.0), "cpu")
    margin = 2.0 * (sums[0] / lengths[0] - sums[1] / lengths[1]).item()
    assert out.loss_N.item() == pytest.approx(math.log(1 + math.exp(-margin)), abs=1e-5)


@pytest.mark.parametrize("logps", ["mean", "per_codebook"])
def test_only_whole_replies_have_the_optimum_of_dpo(logps):
    assert objective_of(DPO()).dpo_optimum
    assert not objective_of(DPO(logps=logps)).dpo_optimum


def test_a_model_of_text_has_no_codebooks():
    model = torch.nn.Linear(1, 1)
    model.config = SimpleNamespace()
    with pytest.raises(ConfigError, match="no codebooks"):
        codebooks_separately(model, DPO(logps="per_codebook"))


@pytest.mark.parametrize("loss", ["kto", "cpo"])
def test_losses_of_whole_replies_refuse_other_log_probabilities(loss):
    with pytest.raises(ValueError, match=f"logps=mean, loss={loss}"):
        DPO(logps="mean", loss=loss)

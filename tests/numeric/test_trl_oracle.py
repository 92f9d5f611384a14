"""TRL as the oracle: the same batch, the same loss and gradient. Only this test needs TRL."""

from __future__ import annotations

import math

import pytest
import torch
from support import llama_tokenizer, prompt_text, save_tiny

from rlhf_lab.algorithms.common import pair_batch, pair_logps
from rlhf_lab.algorithms.dpo import preference_step
from rlhf_lab.algorithms.settings import DPO
from rlhf_lab.losses.reward_model import bradley_terry
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model, reward_scores
from rlhf_lab.models.settings import Scratch

trl = pytest.importorskip("trl", reason="TRL is the oracle here: pip install 'rlhf_lab[trl]'")

ROWS = [
    ("When does the museum open?", "At nine.", "I am not sure about that, sorry to say."),
    ("Where is it?", "It is in the old town, next to the river.", "No."),
    ("Can I pay by card?", "Yes, you can.", "Cash only, and bring plenty of it."),
]
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    texts = [text for row in ROWS for text in row]
    return save_tiny("llama", llama_tokenizer(texts), tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="module")
def pairs(folder):
    encoder = load_encoder(folder, Scratch())
    return [tuple(encoder.row(prompt_text(q), side, 256) for side in (c, r)) for q, c, r in ROWS]


def disturbed(model: torch.nn.Module, seed: int) -> torch.nn.Module:
    """Policy and reference must differ, or the log-ratios are all zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def trl_inputs(pairs) -> dict[str, torch.Tensor]:
    """Token rows as TRL's collators lay them out: chosen rows, then rejected rows, right-padded."""
    rows = [chosen for chosen, _ in pairs] + [rejected for _, rejected in pairs]
    width = max(len(p) + len(r) for p, r in rows)

    def padded(values):
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in values])

    return {
        "input_ids": padded([[*p, *r] for p, r in rows]),
        "attention_mask": padded([[1] * (len(p) + len(r)) for p, r in rows]),
        "completion_mask": padded([[0] * len(p) + [1] * len(r) for p, r in rows]),
    }


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    worst = max((float((ours[name] - theirs[name]).abs().max()), name) for name in ours)
    assert worst[0] <= TOLERANCE, worst
    assert max(float(g.abs().max()) for g in theirs.values()) > 100 * TOLERANCE  # there is something to agree on


def trainer(kind, config, folder, model, tmp_path, dataset, **kwargs):
    from datasets import Dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    settings = config(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], **kwargs
    )
    more = {"ref_model": dataset[1]} if kind is trl.DPOTrainer else {}
    rows = [{"prompt": "a", "chosen": " b", "rejected": " c"}]
    return kind(model=model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **more)


@pytest.mark.parametrize("beta", [0.1, 1.0])
def test_dpo_equals_trl(folder, pairs, tmp_path, beta):
    model, reference = (disturbed(load_policy(folder, Scratch()), seed) for seed in (1, 2))
    theirs = trainer(trl.DPOTrainer, trl.DPOConfig, folder, model, tmp_path, (None, reference), beta=beta)
    model.eval()
    their_loss = theirs.compute_loss(model, trl_inputs(pairs))
    their_gradient = gradients(model, their_loss)

    model, reference = (disturbed(load_policy(folder, Scratch()), seed) for seed in (1, 2))
    ref = pair_logps(reference, pairs, "cpu")
    our_loss = preference_step(model, pairs, ref, DPO(beta=beta), "cpu").loss_N.mean()
    assert abs(our_loss.item() - math.log(2)) > 100 * TOLERANCE
    assert our_loss.item() == pytest.approx(their_loss.item(), abs=TOLERANCE)
    assert_same(gradients(model, our_loss), their_gradient)


def reward_model(folder):
    model = load_reward_model(folder, Scratch())
    torch.nn.init.normal_(model.score.weight, std=0.1, generator=torch.Generator().manual_seed(3))
    return model


@pytest.mark.parametrize("centering", [0.0, 0.05])
def test_bradley_terry_equals_trl(folder, pairs, tmp_path, centering):
    model = reward_model(folder)
    theirs = trainer(
        trl.RewardTrainer, trl.RewardConfig, folder, model, tmp_path, None, center_rewards_coefficient=centering or None
    )
    model.eval()
    inputs = {k: v for k, v in trl_inputs(pairs).items() if k != "completion_mask"}
    model.config.pad_token_id = 0  # "<s>", which also fills the padding above; Hugging Face reads the last other token
    their_loss = theirs.compute_loss(model, inputs)
    their_gradient = gradients(model, their_loss)

    model = reward_model(folder)
    chosen_B, rejected_B = reward_scores(model, pair_batch(pairs, "cpu")).chunk(2)
    our_loss = bradley_terry(chosen_B, rejected_B, centering=centering).mean()
    assert our_loss.item() == pytest.approx(their_loss.item(), abs=TOLERANCE)
    assert_same(gradients(model, our_loss), their_gradient)

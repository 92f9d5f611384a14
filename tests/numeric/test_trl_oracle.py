"""TRL as the oracle: the same batch, the same loss and gradient. Only this test needs TRL."""

from __future__ import annotations

import math

import pytest
import torch
from support import disturb, llama_tokenizer, prompt_text, save_tiny

from rlhf_lab.algorithms.preference.dpo import PairContext, preference_step
from rlhf_lab.algorithms.preference.settings import DPO
from rlhf_lab.losses.reward_model import bradley_terry
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model, reward_scores
from rlhf_lab.models.pair_rows import chosen_then_rejected, mismatched_kl, pair_batch, pair_logps
from rlhf_lab.models.settings import Scratch

trl = pytest.importorskip("trl", reason="TRL is the oracle here: pip install 'rlhf_lab[trl]'")

from rlhf_lab.algorithms.trl.engine import kto_batch, padded, reward_batch  # noqa: E402

ROWS = [
    ("When does the museum open?", "At nine.", "I am not sure about that, sorry to say."),
    ("Where is it?", "It is in the old town, next to the river.", "No."),
    ("Can I pay by card?", "Yes, you can.", "Cash only, and bring plenty of it."),
]
TOLERANCE = 1e-5
PAIR = [{"prompt": "a", "chosen": " b", "rejected": " c"}]
LABELED = [{"prompt": "a", "completion": f" {x}", "label": x == "b"} for x in "bcbc"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    texts = [text for row in ROWS for text in row]
    return save_tiny("llama", llama_tokenizer(texts), tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="module")
def pairs(directory):
    encoder = load_encoder(directory, Scratch())
    return [tuple(encoder.row(prompt_text(q), side, 256) for side in (c, r)) for q, c, r in ROWS]


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    worst = max((float((ours[name] - theirs[name]).abs().max()), name) for name in ours)
    assert worst[0] <= TOLERANCE, worst
    assert max(float(g.abs().max()) for g in theirs.values()) > 100 * TOLERANCE  # there is something to agree on


def trainer(kind, config, directory, model, tmp_path, *, reference=None, rows=PAIR, **kwargs):
    from datasets import Dataset
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.pad_token = tokenizer.eos_token
    model.config.pad_token_id = tokenizer.pad_token_id
    settings = config(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], **kwargs
    )
    more = {} if reference is None else {"ref_model": reference}
    return kind(model=model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, **more)


def two_models(directory, seeds: tuple[int, int] = (1, 2)) -> tuple[torch.nn.Module, torch.nn.Module]:
    """(policy, reference), the same ones at every call."""
    model, reference = (disturb(load_policy(directory, Scratch()), seed=seed) for seed in seeds)
    return model, reference


def assert_same_step(our_loss: torch.Tensor, model: torch.nn.Module, their_loss: float, their_gradient: dict) -> None:
    assert our_loss.item() == pytest.approx(their_loss, rel=TOLERANCE)
    assert_same(gradients(model, our_loss), their_gradient)


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "hinge", "robust", "apo_zero", "apo_down"])
def test_losses_with_a_reference_equal_trl(directory, pairs, tmp_path, loss, beta):
    smoothing = {"label_smoothing": 0.1} if loss == "robust" else {}
    model, reference = two_models(directory)
    chosen = {"reference": reference, "beta": beta, "loss_type": [loss], **smoothing}
    theirs = trainer(trl.DPOTrainer, trl.DPOConfig, directory, model, tmp_path, **chosen)
    model.eval()
    their_loss = theirs.compute_loss(model, padded(chosen_then_rejected(pairs)))
    their_gradient = gradients(model, their_loss)

    model, reference = two_models(directory)
    ref = pair_logps(reference, pairs, "cpu")
    our_loss = preference_step(model, pairs, ref, DPO(beta=beta, loss=loss, **smoothing), "cpu").loss_N.mean()
    if loss == "sigmoid":
        assert abs(our_loss.item() - math.log(2)) > 100 * TOLERANCE
    assert_same_step(our_loss, model, their_loss.item(), their_gradient)


@pytest.mark.parametrize("beta", [0.1, 1.0])
@pytest.mark.parametrize("seeds", [(1, 2), (1, 3)], ids=["kl cut at 0", "kl above 0"])
def test_kto_equals_trl(directory, pairs, tmp_path, beta, seeds):
    """TRL's batch holds the examples in our order and their completions shifted by one."""
    model, reference = two_models(directory, seeds)
    weights = {"desirable_weight": 1.2, "undesirable_weight": 0.7}
    chosen = {"reference": reference, "rows": LABELED, "beta": beta, **weights}
    theirs = trainer(trl.KTOTrainer, trl.KTOConfig, directory, model, tmp_path, **chosen)
    model.eval()
    their_loss = theirs.compute_loss(model, kto_batch(pairs, 256))
    their_gradient = gradients(model, their_loss)
    their_kl = theirs._metrics["eval"]["kl"][-1]

    model, reference = two_models(directory, seeds)
    z_ref = mismatched_kl(model, reference, pairs, 256, "cpu")
    assert z_ref.item() == pytest.approx(their_kl, rel=TOLERANCE)
    assert (their_kl > 1) == (seeds == (1, 3))
    settings = DPO(beta=beta, loss="kto", **weights)
    ref = pair_logps(reference, pairs, "cpu")
    our_loss = preference_step(model, pairs, ref, settings, "cpu", PairContext(z_ref=z_ref)).loss_N.mean()
    assert_same_step(our_loss, model, their_loss.item(), their_gradient)


@pytest.fixture(scope="module")
def bare_pairs(directory):
    """Pairs with a prompt of one token and chosen replies of one length.

    TRL's ORPO has the prompt in its NLL, and both trainers average the NLL over all tokens of a batch; here is no
    difference.
    """
    encoder = load_encoder(directory, Scratch())
    responses = [(encoder.response(c)[:4], encoder.response(r)) for _, c, r in ROWS]
    return [(([5 + i], c), ([5 + i], r)) for i, (c, r) in enumerate(responses)]


def paired_inputs(pairs) -> dict[str, torch.Tensor]:
    """Token rows as TRL's experimental trainers take them, chosen and rejected apart."""
    found = {}
    for side, rows in zip(("chosen", "rejected"), zip(*pairs, strict=True), strict=True):
        batch = padded(rows)
        found |= {
            f"{side}_input_ids": batch["input_ids"],
            f"{side}_attention_mask": batch["attention_mask"],
            f"{side}_labels": batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100),
        }
    return found


@pytest.mark.parametrize(
    ("loss", "settings", "their_settings"),
    [
        ("cpo", {"beta": 0.1, "nll_weight": 0.7}, {"beta": 0.1, "cpo_alpha": 0.7}),
        ("cpo", {"beta": 1.0, "nll_weight": 1.0}, {"beta": 1.0, "cpo_alpha": 1.0}),
        (
            "simpo",
            {"beta": 2.0, "gamma_beta_ratio": 0.5},
            {"beta": 2.0, "simpo_gamma": 1.0, "loss_type": "simpo", "cpo_alpha": 0.0},
        ),
        ("orpo", {"beta": 0.1}, {"beta": 0.1}),
        ("orpo", {"beta": 1.0}, {"beta": 1.0}),
    ],
)
def test_losses_without_a_reference_equal_trl(
    directory, bare_pairs, tmp_path, monkeypatch, loss, settings, their_settings
):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    if loss == "orpo":
        module = pytest.importorskip("trl.experimental.orpo", reason="experimental: may vanish")
        kind, config = module.ORPOTrainer, module.ORPOConfig
    else:
        module = pytest.importorskip("trl.experimental.cpo", reason="experimental: may vanish")
        kind, config = module.CPOTrainer, module.CPOConfig
    model, _ = two_models(directory)
    theirs = trainer(kind, config, directory, model, tmp_path, max_length=64, **their_settings)
    model.eval()
    their_loss = theirs.compute_loss(model, paired_inputs(bare_pairs))
    their_gradient = gradients(model, their_loss)

    model, _ = two_models(directory)
    our_loss = preference_step(model, bare_pairs, None, DPO(loss=loss, **settings), "cpu").loss_N.mean()
    assert_same_step(our_loss, model, their_loss.item(), their_gradient)


def reward_model(directory):
    model = load_reward_model(directory, Scratch())
    torch.nn.init.normal_(model.score.weight, std=0.1, generator=torch.Generator().manual_seed(3))
    return model


@pytest.mark.parametrize("centering", [0.0, 0.05])
def test_bradley_terry_equals_trl(directory, pairs, tmp_path, centering):
    model = reward_model(directory)
    centred = {"center_rewards_coefficient": centering or None}
    theirs = trainer(trl.RewardTrainer, trl.RewardConfig, directory, model, tmp_path, **centred)
    model.eval()
    inputs = reward_batch(pairs, pad_id=0, margin=0.0)
    model.config.pad_token_id = 0  # "<s>", which also fills the padding above; Hugging Face reads the last other token
    their_loss = theirs.compute_loss(model, inputs)
    their_gradient = gradients(model, their_loss)

    model = reward_model(directory)
    chosen_B, rejected_B = reward_scores(model, pair_batch(pairs, "cpu")).chunk(2)
    our_loss = bradley_terry(chosen_B, rejected_B, centering=centering).mean()
    assert our_loss.item() == pytest.approx(their_loss.item(), abs=TOLERANCE)
    assert_same(gradients(model, our_loss), their_gradient)

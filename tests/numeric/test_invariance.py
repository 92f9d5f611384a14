"""One normaliser: how a batch is cut into forward passes changes neither the gradient nor the trained model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.config import registry
from rlhf_lab.training.loop import train
from rlhf_lab.training.run import Run

# Muon works in bfloat16, and Adam scales a gradient of rounding noise up to a full step unless epsilon is above it.
SMOOTH = ("algorithm.optimizer=adamw", "algorithm.adam_eps=1e-3")


CASES = {
    "sft": ("sft",),
    "reward_model": ("reward_model", "algorithm.on_policy_fraction=0"),
    "attribute_rm": ("attribute_rm", "algorithm.on_policy_fraction=0"),
    "dpo": ("dpo", "needs.reward=null"),
    "kto": ("dpo", "needs.reward=null", "algorithm=kto"),  # its KL estimate is one of the full step
}
Trained = tuple[dict[str, torch.Tensor], int]


def trained(recipe: str, directory: Path, policy: Path, micro_batch_tokens: int, lr: str = "1e-2") -> Trained:
    """Parameters after a few steps of the real loop in float64, and the number of forward passes."""
    needs = () if recipe == "sft" else (f"needs.policy={policy}",)
    size = ("data.train_pairs=32", "algorithm.batch_size=8", "algorithm.epochs=1", "checkpoint.every_steps=0")
    passes = (f"algorithm.lr={lr}", f"algorithm.micro_batch_tokens={micro_batch_tokens}", f"outputs={directory}")
    config = planned(*CASES[recipe], *SMALL_WORLD, *ONE_LAYER, *needs, *size, *SMOOTH, *passes).config
    directory.mkdir()
    run = Run(directory, config, {} if recipe == "sft" else {"policy": str(policy)})
    algorithm = registry.build("algorithm", config.algorithm, run)
    algorithm.model.double()
    passes = sum(len(algorithm.collect(step).micro) for step in range(algorithm.total_steps))
    train(algorithm, run, recipe)
    return algorithm.model.state_dict(), passes


@pytest.mark.parametrize("recipe", CASES)
def test_eight_at_once_equals_one_at_a_time(recipe, tmp_path, policy):
    full, passes = trained(recipe, tmp_path / "8x1", policy, 0)
    single, single_passes = trained(recipe, tmp_path / "1x8", policy, 1)
    some, _ = trained(recipe, tmp_path / "some", policy, 300)
    assert single_passes >= 7 * passes
    start = trained(recipe, tmp_path / "start", policy, 0, lr="1e-12")[0]
    assert max(float((full[name] - start[name]).abs().max()) for name in full) > 1e-3  # something was learnt
    for other in (single, some):
        worst = max(float((full[name] - other[name]).abs().max()) for name in full)
        assert worst <= 1e-6


def test_the_loss_is_per_token_not_per_pass(tmp_path, policy):
    """A mean of means would weigh a reply's tokens by the length of its neighbours."""
    config = planned("sft", *SMALL_WORLD, *ONE_LAYER, "data.train_pairs=32", "algorithm.micro_batch_tokens=1").config
    algorithm = registry.build("algorithm", config.algorithm, Run(tmp_path, config, {}))
    batch = algorithm.collect(0)
    assert batch.units == sum(int((m.length_B - m.prompt_len_B).sum()) for m in batch.micro)
    assert sum(len(algorithm.loss(micro).loss_N) for micro in batch.micro) == batch.units

"""A reference with the mean of two policies' weights (SALSA): its weights, its log-probabilities, and the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, disturb, planned

from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.memory.copies import copies
from rlhf_lab.models.build import load_encoder, load_policy, save_model
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.training.run import Run

SMALL = {
    "ppo": ("algorithm.prompts_per_iteration=8", "algorithm.batch_size=8", "algorithm.iterations=2"),
    "dpo": ("algorithm.batch_size=8", "evaluation.prompts=4", "evaluation.samples_per_prompt=2"),
}
PPO = (*SMALL["ppo"], "algorithm.critic_warmup=1")


@pytest.fixture(scope="module")
def second(policy, tmp_path_factory) -> Path:
    """A policy with other weights than the first and the same architecture."""
    directory = tmp_path_factory.mktemp("second")
    settings = planned("sft", *SMALL_WORLD, *ONE_LAYER).config.model
    model = disturb(load_policy(policy, settings), 0.1, seed=1)
    save_model(model, load_encoder(policy, settings), directory)
    return directory


def stage_of(recipe: str, needs: dict[str, Path], *overrides: str):
    roles = [f"+needs.{role}={path}" if role == "soup" else f"needs.{role}={path}" for role, path in needs.items()]
    return planned(recipe, *SMALL_WORLD, *ONE_LAYER, *roles, *overrides)


def built(recipe: str, needs: dict[str, Path], directory: Path, *overrides: str):
    config = stage_of(recipe, needs, *overrides).config
    run = Run(directory, config, {role: str(path) for role, path in needs.items()})
    return registry.build("algorithm", config.algorithm, run)


def mean_by_hand(settings, first: Path, second: Path):
    a, b = (load_policy(source, settings) for source in (first, second))
    with torch.no_grad():
        for into, other in zip(a.parameters(), b.parameters(), strict=True):
            into.copy_((into + other) / 2)
    return a


def logps(model, rows) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([token_logps(model, TokenBatch.from_rows([row])).logps_N for row in rows])


def test_ppo_is_pulled_to_the_soup_and_starts_from_the_policy(policy, second, reward_model, tmp_path):
    needs = {"policy": policy, "soup": second, "reward": reward_model}
    algorithm = built("ppo", needs, tmp_path, *PPO)
    settings = algorithm.run.config.model
    mean = mean_by_hand(settings, policy, second)
    for found, expected in zip(algorithm.reference.parameters(), mean.parameters(), strict=True):
        assert torch.allclose(found, expected, atol=1e-7)
        assert not found.requires_grad
    algorithm.collect(0)
    tokens, rows = algorithm.experience.tokens, algorithm.experience.rows
    assert torch.allclose(tokens["ref"], logps(mean, rows), atol=1e-4)
    assert torch.allclose(tokens["old"], logps(load_policy(policy, settings), rows), atol=1e-4)
    assert float((tokens["old"] - tokens["ref"]).abs().max()) > 0.01


def test_an_adapter_keeps_its_shared_base_beside_the_soup(policy, second, tmp_path):
    needs = {"policy": policy, "soup": second}
    lora = ("model.lora.rank=2", "needs.reward=null")
    algorithm = built("dpo", needs, tmp_path, *SMALL["dpo"], *lora)
    assert algorithm.run.base is not None
    mean = mean_by_hand(algorithm.run.config.model, policy, second)
    for found, expected in zip(algorithm.reference.parameters(), mean.parameters(), strict=True):
        assert torch.allclose(found, expected, atol=1e-7)
    with_soup = stage_of("dpo", needs, *SMALL["dpo"], *lora)
    without = stage_of("dpo", {"policy": policy}, *SMALL["dpo"], *lora)
    assert [copy.name for copy in copies(with_soup)] == ["policy", "reference"]
    assert [copy.name for copy in copies(without)] == ["policy"]


def test_reference_and_start_policy_are_both_evaluated(policy, second, tmp_path):
    algorithm = built("dpo", {"policy": policy, "soup": second}, tmp_path, *SMALL["dpo"], "needs.reward=null")
    algorithm.evaluator.evaluate_reference()
    soup, start = algorithm.evaluator.policies
    assert (soup["name"], start["name"]) == ("SFT soup", "SFT")
    assert soup["metrics"]["kl"]["mean"] == 0
    assert start["metrics"]["kl"]["mean"] > 0.001


def test_weights_that_have_no_mean_are_refused(policy, tmp_path):
    settings = planned("sft", *SMALL_WORLD, *ONE_LAYER).config.model
    other = planned("sft", *SMALL_WORLD, "model.hidden=32", "model.layers=1", "model.heads=2", f"outputs={tmp_path}")
    wide = registry.build("algorithm", other.config.algorithm, Run(tmp_path, other.config, {}))
    save_model(wide.model, load_encoder(policy, settings), tmp_path / "wide")
    with pytest.raises(ConfigError, match="another architecture"):
        built("dpo", {"policy": policy, "soup": tmp_path / "wide"}, tmp_path, *SMALL["dpo"], "needs.reward=null")

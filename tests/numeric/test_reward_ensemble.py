"""Members scored together equal members scored one by one, and a step does not depend on how it is cut."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, planned
from transformers import AutoModelForSequenceClassification, GPT2Config, LlamaConfig

from rlhf_lab import load_reward
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models.build import load_encoder, reward_outputs
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.reward_ensemble import averaged, same_shape
from rlhf_lab.models.settings import Scratch
from rlhf_lab.rewards.learned.bt import (
    AVERAGE_FILE,
    MEMBERS,
    Scorer,
    ScoreScale,
    average_members,
    score_members,
)
from rlhf_lab.training.loop import train
from rlhf_lab.training.run import Run

ROWS = [([5, 6, 7], [8, 9, 3]), ([4], [3, 2]), ([9, 8, 7, 6], [5, 4, 3, 2, 1])]
BATCH = TokenBatch.from_rows(ROWS)


def reward_model(family: str, seed: int, outputs: int = 1, hidden: int = 16) -> Any:
    common = {"vocab_size": 1000, "num_labels": outputs, "pad_token_id": 0}
    if family == "gpt2":
        config: Any = GPT2Config(n_embd=hidden, n_layer=2, n_head=2, n_positions=128, **common)
    else:
        config = LlamaConfig(
            hidden_size=hidden, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, **common
        )
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(config)
    torch.nn.init.normal_(model.score.weight)
    return model.eval()


def test_models_of_different_shape() -> None:
    models = [reward_model("llama", 0), reward_model("llama", 1, hidden=32), reward_model("gpt2", 0)]
    assert same_shape([models[0], reward_model("llama", 1)])
    assert not same_shape(models[:2]) and not same_shape([models[0], models[2]])


@pytest.fixture
def encoder(policy):
    return load_encoder(policy, Scratch())


def scorer(model: Any, encoder: Any, **scale: Any) -> Scorer:
    return Scorer(model, encoder, ScoreScale(**{"max_length": 64, **scale}), "cpu", 128)


TEXTS = (["\n\nHuman: one?\n\nAssistant:", "\n\nHuman: two?\n\nAssistant:"] * 3, ["a b", "c", "d e f", "g", "h", "i j"])


def test_members_score_as_each_by_itself(encoder, policy):
    """Different architectures, reading lengths and scales: each has the row it has alone, in its place."""
    small = reward_model("llama", 0)
    members = [
        scorer(small, encoder, mean=1.0, sd=2.0),
        scorer(reward_model("gpt2", 1), load_encoder(policy, Scratch()), mean=-1.0, sd=0.5),
        scorer(reward_model("llama", 2, hidden=32), encoder, max_length=12),
        scorer(small, encoder),
    ]
    found = score_members(members, *TEXTS)
    assert found.shape == (4, 6)
    for scores_N, member in zip(found, members, strict=True):
        assert np.allclose(scores_N, member(*TEXTS), atol=1e-6)
    assert np.allclose(found[0], (found[3] - 1) / 2)


def test_load_reward_opens_an_ensemble(encoder, tmp_path):
    members = [scorer(reward_model("llama", seed), encoder, mean=float(seed), sd=2.0, n=8) for seed in range(3)]
    scores_KN = np.stack([member(*TEXTS) for member in members])
    for k, member in enumerate(members):
        directory = tmp_path / "model" / (f"{MEMBERS}/{k}" if k else "")
        member.model.save_pretrained(directory)
        encoder.tokenizer.save_pretrained(directory)
        member.scale.write(directory)
    reward = load_reward(tmp_path, device="cpu")
    assert np.allclose(reward(*TEXTS), scores_KN.mean(axis=0), atol=1e-5)
    parts = reward.parts(*TEXTS)
    assert np.allclose([parts[f"member_{k}"] for k in range(3)], scores_KN, atol=1e-5), parts
    worst = load_reward(tmp_path, device="cpu", ensemble="worst")
    assert np.allclose(worst(*TEXTS), scores_KN.min(axis=0), atol=1e-5)


def test_load_reward_opens_a_model_with_a_length_head(encoder, tmp_path):
    """A model with a score and a length head is no rubric: `ensemble` counts one member."""
    model = reward_model("llama", 0, outputs=2)
    head = scorer(model, encoder, attributes=("quality", "length"), weights=(1.0, 0.0), n=8)
    scores_N = head(*TEXTS)
    model.save_pretrained(tmp_path)
    encoder.tokenizer.save_pretrained(tmp_path)
    head.scale.write(tmp_path)
    assert np.allclose(load_reward(tmp_path, device="cpu")(*TEXTS), scores_N, atol=1e-5)
    with pytest.raises(ConfigError, match="has one; train it with"):
        load_reward(tmp_path, device="cpu", ensemble="worst")


def test_the_average_model_by_hand():
    """Every weight is the mean; a model averaged with itself is itself."""
    a, b = reward_model("llama", 0), reward_model("llama", 1)
    mean = averaged([a, b])
    for name, value in mean.state_dict().items():
        assert torch.allclose(value, (a.state_dict()[name] + b.state_dict()[name]) / 2)
    with torch.no_grad():
        assert torch.allclose(reward_outputs(averaged([a, a]), BATCH), reward_outputs(a, BATCH), atol=1e-6)


def test_an_average_needs_members_with_one_start_and_its_own_scale(encoder, tmp_path):
    members = [scorer(reward_model("llama", seed), encoder) for seed in range(2)]
    with pytest.raises(ConfigError, match="has no reward_scale_average"):
        average_members(members, str(tmp_path))
    ScoreScale(mean=3.0, sd=2.0, n=10, max_length=64).write(tmp_path, AVERAGE_FILE)
    found = average_members(members, str(tmp_path))
    assert found.scale.mean == 3.0
    assert np.allclose(found(*TEXTS), (found.raw(*TEXTS) - 3) / 2)
    with pytest.raises(ConfigError, match="average"):
        average_members([members[0], scorer(reward_model("llama", 1, hidden=32), encoder)], str(tmp_path))


VARIANTS = {
    "odin": ("algorithm.length_head=true",),
    "members": ("algorithm.members=2", "algorithm.member_fraction=0.7"),
    "all": ("algorithm.members=2", "algorithm.length_head=true", "algorithm.confidence_weight=0.5"),
}


def built(policy: Path, directory: Path, *overrides: str) -> Any:
    size = ("data.train_pairs=30", "algorithm.batch_size=8", "algorithm.epochs=1", "algorithm.on_policy_fraction=0")
    smooth = ("algorithm.optimizer=adamw", "algorithm.adam_eps=1e-3", "algorithm.lr=1e-2", "checkpoint.every_steps=0")
    more = (*size, *smooth, f"needs.policy={policy}", *overrides)
    config = planned("reward_model", *SMALL_WORLD, *ONE_LAYER, *more).config
    directory.mkdir(exist_ok=True)
    return registry.build("algorithm", config.algorithm, Run(directory, config, {"policy": str(policy)}))


def trained(policy: Path, directory: Path, tokens: int, *overrides: str) -> tuple[list[torch.Tensor], int]:
    """Parameters of all models after an epoch in float64, and the number of forward passes."""
    algorithm = built(policy, directory, f"algorithm.micro_batch_tokens={tokens}", *overrides)
    for model in algorithm.models:
        model.double()
    passes = sum(len(algorithm.collect(step).micro) for step in range(algorithm.total_steps))
    train(algorithm, algorithm.run, "variant")
    return [value for model in algorithm.models for value in model.state_dict().values()], passes


@pytest.mark.parametrize(("name", "tokens"), [("odin", 1), ("all", 600)])
def test_a_step_in_pieces_is_the_same_step(name, tokens, policy, tmp_path):
    """ODIN's correlation is of the whole step, however many passes it takes."""
    full, passes = trained(policy, tmp_path / "whole", 0, *VARIANTS[name])
    pieces, more_passes = trained(policy, tmp_path / "pieces", tokens, *VARIANTS[name])
    assert more_passes >= 2 * passes
    assert max(float((a - b).abs().max()) for a, b in zip(full, pieces, strict=True)) <= 1e-5


def test_every_member_has_the_mean_loss_of_its_own_pairs(policy, tmp_path):
    """Weights of a step add up to `units` for each member, also where members have unequal last batches."""
    algorithm = built(policy, tmp_path, *VARIANTS["members"])
    sizes = set()
    for step in range(algorithm.total_steps):
        batch = algorithm.collect(step)
        for m, member in enumerate(algorithm.members):
            own = [micro for micro in batch.micro if micro.member is member]
            sizes.add(len(algorithm.plans[m][step]))
            assert sum(micro.weight * micro.pairs for micro in own) == pytest.approx(batch.units)
    assert len(sizes) > 1
    chosen = [set(member.pairs) for member in algorithm.members]
    assert chosen[0] != chosen[1] and all(len(fraction) == round(0.7 * 30) for fraction in chosen)


def test_members_of_one_step_do_not_touch_each_other(policy, tmp_path):
    """The first member of an ensemble ends where it ends in an ensemble twice as large."""
    two, _ = trained(policy, tmp_path / "two", 0, "algorithm.members=2")
    four, _ = trained(policy, tmp_path / "four", 0, "algorithm.members=4")
    assert all(torch.equal(a, b) for a, b in zip(two, four[: len(two)], strict=True))
    half = len(two) // 2
    assert not all(torch.equal(a, b) for a, b in zip(two[:half], two[half:], strict=True))


def test_a_policy_for_a_member_that_is_not_there_is_refused(policy, tmp_path):
    from rlhf_lab.algorithms.reward_models.reward_members import build_members

    settings = planned("reward_model", "algorithm.members=2").config.algorithm
    run: Any = SimpleNamespace(needs={"policy": str(policy), "policy_2": str(policy)}, config=None)
    with pytest.raises(ConfigError, match=r"needs.policy_2 is for member 2, counted from 0, but there are 2 members"):
        build_members(settings, run, None, 10)  # type: ignore[arg-type]

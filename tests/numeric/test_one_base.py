"""Adapters of several roles on one base: they compute what separate copies would, and use the same tensors of it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import ONE_LAYER, SMALL_WORLD, gpt2_tokenizer, planned
from test_lora import BATCH, tokens
from test_sampler import CONFIGS, random_model
from torch import nn

from rlhf_lab.algorithms.policy_gradient.ppo import Critic, ProximalPolicyOptimisation, build_critic
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.memory.plan import plan_stage
from rlhf_lab.models import lora
from rlhf_lab.models.build import load_policy, load_reward_model, reward_outputs, reward_scores, save_model
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.model_files import base_identity
from rlhf_lab.models.one_base import OneBase
from rlhf_lab.models.reward_ensemble import averaged
from rlhf_lab.models.settings import HuggingFace, LoRA, RoleWeights
from rlhf_lab.models.weights import products, weight_of
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute
from rlhf_lab.training import start
from rlhf_lab.training.checkpoint import trained_state
from rlhf_lab.training.optim import Optimizers, TrainedPart
from rlhf_lab.training.settings import TrainingSettings

pytest.importorskip("peft")

SETTINGS = LoRA(4)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16}
"""Rows of full blocks of 64 numbers, which four bits need."""


def save_policy(family: str, directory: Path, scale: float = 0.15) -> Path:
    config = CONFIGS[family]
    sizes = SIZES if hasattr(config, "num_key_value_heads") else {}
    settings = {**config.to_dict(), **sizes, "pad_token_id": 0}
    random_model(config.__class__(**settings), scale).save_pretrained(directory)  # type: ignore[operator]
    return directory


def model_settings(source: Path, weights: Any = "float32", **roles: Any) -> HuggingFace:
    return HuggingFace(path=str(source), weights=weights, weights_of=RoleWeights(**roles), lora=SETTINGS)


def save_reward(policy: Path, directory: Path, weights: Any = "float32", outputs: int = 1, seed: int = 3) -> Path:
    """A reward model as its stage saves it: an adapter on the policy that has learned, and a head."""
    settings = model_settings(policy, weights)
    start = load_reward_model(policy, settings, outputs=outputs, trained=True)
    model: Any = lora.trainable(start, SETTINGS, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_B" in name or name.startswith("score."):
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    save_model(model, Encoder(gpt2_tokenizer(["some words"])), directory)
    return directory


def policy_on(source: Path, weights: Any = "float32") -> tuple[nn.Module, OneBase, list[str]]:
    """(policy with an adapter, its base, notes about what cannot lie on that)."""
    settings = model_settings(source, weights)
    policy = lora.trainable(load_policy(source, settings, trained=True), SETTINGS, seed=1)
    notes: list[str] = []
    return policy, OneBase(lora.without_adapter(policy), notes.append), notes


def own_tensors(model: nn.Module, other: nn.Module) -> set[str]:
    """Names of the parameters that a model does not have in common with another."""
    others = {id(parameter) for parameter in other.parameters()}
    return {name for name, parameter in model.named_parameters() if id(parameter) not in others}


def held_bytes(*models: nn.Module) -> int:
    """Bytes of all parameters, and of the adapters, each counted once."""
    tensors = {id(parameter): parameter for model in models for parameter in model.parameters()}
    for layer in (layer for model in models for layer in model.modules()):
        tensors |= {id(factor): factor for pair in products(layer) for factor in pair}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


@torch.no_grad()
def scores(model: nn.Module) -> torch.Tensor:
    return reward_scores(model, BATCH)


@pytest.mark.parametrize(
    ("family", "weights", "tolerance"),
    [
        *((family, "float32", 1e-5) for family in ("llama", "gpt2", "qwen3", "gpt_neox")),
        # a separate copy rounds W + s·B·A to eight bits, the shared one W alone
        ("llama", "bfloat16", 0.05),
        ("llama", "nf4", 0.0),  # a separate copy adds the product to the packed weight too
    ],
)
def test_a_reward_model_scores_as_a_copy_of_its_own(
    family: str, weights: Any, tolerance: float, tmp_path: Path
) -> None:
    if weights == "nf4":
        pytest.importorskip("bitsandbytes")
    source = save_policy(family, tmp_path / "policy")
    directory = save_reward(source, tmp_path / "reward", weights)
    policy, base, notes = policy_on(source, weights)
    before = tokens(policy)
    shared = load_reward_model(directory, model_settings(source, weights), base=base)
    separate = load_reward_model(directory, model_settings(source, weights))
    assert own_tensors(shared, policy) == {"score.weight"} and not notes
    assert own_tensors(separate, policy) == {name for name, _ in separate.named_parameters()}
    change = (scores(shared) - scores(separate)).abs().max()
    assert change <= tolerance * scores(separate).abs().max()
    assert not any(parameter.requires_grad for parameter in shared.parameters())
    # other adapters on the base do not affect the policy
    assert torch.equal(tokens(policy), before)


def test_a_shared_base_takes_rank_stabilised_adapters(tmp_path: Path) -> None:
    """alpha 8 at rank 4: s = 8/√4 = 4 with `rslora`, 8/4 = 2 without. The product added to W is s·B·A of the file."""
    source = save_policy("llama", tmp_path / "policy")
    for is_stabilised, scale in ((True, 4.0), (False, 2.0)):
        lora_settings = LoRA(4, 8.0, rslora=is_stabilised)
        settings = replace(model_settings(source), lora=lora_settings)
        start = load_reward_model(source, settings, outputs=1, trained=True)
        reward: Any = lora.trainable(start, lora_settings, seed=3)
        name = "model.layers.1.mlp.up_proj"
        layer = reward.get_submodule(name)
        layer.lora_B["default"].weight.data.normal_(generator=torch.Generator().manual_seed(3))
        a, b = layer.lora_A["default"].weight.detach(), layer.lora_B["default"].weight.detach()
        directory = tmp_path / f"reward {scale:g}"
        save_model(reward, Encoder(gpt2_tokenizer(["some words"])), directory)
        _, base, _ = policy_on(source)
        shared: Any = load_reward_model(directory, settings, base=base)
        ((beside_a, beside_b),) = products(shared.get_submodule(name))
        assert torch.allclose(beside_b @ beside_a, scale * (b @ a), atol=1e-6)
        with torch.no_grad():
            assert torch.allclose(scores(shared), scores(reward), rtol=1e-4, atol=1e-5)


def test_several_outputs_and_members_share_it(tmp_path: Path) -> None:
    source = save_policy("llama", tmp_path / "policy")
    _, base, _ = policy_on(source)
    settings = model_settings(source)
    folders = [save_reward(source, tmp_path / f"reward {seed}", outputs=3, seed=seed) for seed in (3, 4)]
    shared = [load_reward_model(directory, settings, outputs=3, base=base) for directory in folders]
    separate = [load_reward_model(directory, settings, outputs=3) for directory in folders]
    assert own_tensors(shared[0], shared[1]) == {"score.weight"}
    with torch.no_grad():
        for mine, other in zip(shared, separate, strict=True):
            assert torch.allclose(reward_outputs(mine, BATCH), reward_outputs(other, BATCH), atol=1e-5)
        expected = reward_outputs(averaged(separate), BATCH)
        assert torch.allclose(reward_outputs(averaged(shared), BATCH), expected, atol=1e-5)


def test_a_base_is_known_by_its_config_and_by_every_tensor(tmp_path: Path) -> None:
    source = Path(save_policy("llama", tmp_path / "policy"))
    before = base_identity(str(source))
    (source / "README.md").write_text("A remark changes no number.")
    assert base_identity(str(source)) == before
    weights = load_file(source / "model.safetensors")
    name = sorted(weights)[len(weights) // 2]
    weights[name] = weights[name] + 1e-3
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    assert base_identity(str(source)) != before


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_lies_beside_a_weight_is_part_of_its_numbers(family: str, tmp_path: Path) -> None:
    """W + s·B·A with s = alpha/rank = 4, in the layout of the layer: GPT-2's weights are (inputs, outputs)."""
    source = save_policy(family, tmp_path / "policy")
    _, base, _ = policy_on(source)
    settings = model_settings(source)
    directory = save_reward(source, tmp_path / "reward")
    shared: Any = load_reward_model(directory, settings, base=base)
    separate: Any = load_reward_model(directory, settings)
    layer, other = (
        model.model.layers[1].mlp.up_proj if family == "llama" else model.transformer.h[1].mlp.c_fc
        for model in (shared, separate)
    )
    assert torch.allclose(weight_of(layer), other.weight, atol=1e-6)
    assert not torch.allclose(layer.weight, other.weight, atol=1e-2)
    simple: Any = lora.merged(shared)
    assert torch.allclose(scores(simple), scores(separate), atol=1e-5)


def test_only_an_adapter_on_the_very_same_tensors_shares_them(tmp_path: Path) -> None:
    """Another model in the directory that the adapter names has another digest; names alone are never enough."""
    source = save_policy("llama", tmp_path / "policy")
    directory = save_reward(source, tmp_path / "reward")
    settings = model_settings(source)
    elsewhere = Path(shutil.copytree(source, tmp_path / "moved"))
    _, base, _ = policy_on(elsewhere)
    assert base.reward_model(str(directory), 1, "float32") is not None

    save_policy("llama", source, scale=0.1)  # built again, at the same path
    policy, base, notes = policy_on(source)
    separate = load_reward_model(directory, settings, base=base)
    assert own_tensors(separate, policy) == {name for name, _ in separate.named_parameters()}
    assert len(notes) == 1 and "a model other than the one the policy starts from" in notes[0]


def test_a_model_that_was_trained_as_a_whole_has_no_base_to_share(tmp_path: Path) -> None:
    source = save_policy("llama", tmp_path / "policy")
    full = load_reward_model(source, model_settings(source))
    save_model(full, Encoder(gpt2_tokenizer(["some words"])), tmp_path / "reward")
    _, base, notes = policy_on(source)
    assert base.reward_model(str(tmp_path / "reward"), 1, "float32") is None and not notes


@pytest.mark.parametrize(
    ("trained_on", "model_copies", "roles", "problem"),
    [
        ("nf4", "float32", {}, "trained on 4-bit weights"),
        ("float32", "float32", {"reward": "bfloat16"}, "stores it as bfloat16 and the policy's base as float32"),
        ("float32", "nf4", {}, ""),  # a copy of its own would be packed from the same numbers
        ("float32", "bfloat16", {}, ""),
    ],
)
def test_weights_that_differ_are_not_shared(
    trained_on: Any, model_copies: Any, roles: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    source = save_policy("llama", tmp_path / "policy")
    directory = save_reward(source, tmp_path / "reward", trained_on)
    policy, base, notes = policy_on(source, model_copies)
    model = load_reward_model(directory, model_settings(source, model_copies, **roles), base=base)
    assert (own_tensors(model, policy) == {"score.weight"}) == (not problem)
    assert problem in " ".join(notes) and len(notes) == bool(problem)


def critics(kind: str, source: Path, reward: Path, base: OneBase, policy: nn.Module) -> tuple[Critic, Critic]:
    """The same critic on the policy's base, and with a copy of its own."""
    encoder = Encoder(gpt2_tokenizer(["some words"]))

    def build(shared: OneBase | None) -> Critic:
        run: Any = SimpleNamespace(
            config=SimpleNamespace(model=model_settings(source)),
            needs={"policy": str(source), "reward": str(reward)},
            load_device="cpu",
            seed=lambda purpose: 7,
            base=shared,
        )
        return build_critic(kind, run, policy, encoder.tokenizer.get_vocab(), (0.5, 2.0))

    return build(base), build(None)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize(("kind", "tolerance"), [("zero", 0.0), ("reward_model", 1e-5)])
def test_a_critic_learns_as_one_with_a_copy_of_its_own(
    kind: str, tolerance: float, family: str, tmp_path: Path
) -> None:
    """Three steps: the same values after each; the base stays as it is, and neither adapter acts in the other model."""
    source = save_policy(family, tmp_path / "policy")
    reward = save_reward(source, tmp_path / "reward")
    policy, base, notes = policy_on(source)
    policy_before, reference_before = tokens(policy), tokens(base.model)
    shared, separate = critics(kind, source, reward, base, policy)
    assert not notes
    own = own_tensors(shared, policy)
    trained = {name for name, parameter in shared.named_parameters() if parameter.requires_grad}
    assert own == trained and all("lora_" in name or name.startswith("head.") for name in own)

    target_N = torch.randn(len(BATCH.targets()[0]), generator=torch.Generator().manual_seed(2))
    settings = TrainingSettings(optimizer="adamw")
    optimizers = [Optimizers({"critic": TrainedPart(critic, 1e-2)}, settings) for critic in (shared, separate)]
    for _ in range(3):
        values = [critic.values(BATCH) for critic in (shared, separate)]
        assert (values[0] - values[1]).abs().max() <= tolerance * 10
        for value_N, optimizer in zip(values, optimizers, strict=True):
            (value_N - target_N).square().mean().backward()
            optimizer.step(1.0)
    assert (shared.values(BATCH) - values[0]).abs().max() > 0.01
    assert torch.equal(tokens(policy), policy_before) and torch.equal(tokens(base.model), reference_before)
    assert all(parameter.grad is None for parameter in base.model.parameters())


ADAPTERS = (
    *(*SMALL_WORLD, *ONE_LAYER, "model.lora.rank=4", "stages.sft.model.lora.rank=0", "algorithm.batch_size=16"),
    *("algorithm.iterations=4", "algorithm.critic_warmup=1", "stages.sft.algorithm.epochs=1"),
    *("stages.reward_model.algorithm.epochs=1", "checkpoint.every_steps=2"),
)


def ppo(outputs: Path) -> Stage:
    return planned("ppo", *ADAPTERS, f"outputs={outputs}")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of outputs with an SFT policy, and a reward model that is an adapter on it."""
    directory = tmp_path_factory.mktemp("built")
    for needed in ppo(directory).needs.values():
        assert isinstance(needed, Stage)
        execute(needed)
    return directory


@pytest.mark.slow
def test_the_usual_chain_shares_one_base_and_learns_the_same(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SFT, then a reward model that is an adapter on it, then PPO: as with a base for each to rounding."""
    shared, separate = (ppo(Path(shutil.copytree(built, tmp_path / name))) for name in ("shared", "separate"))
    lines = {line.copy.name: line.copy.beside is not None for line in plan_stage(shared).lines}
    assert lines == {"policy": False, "critic": True, "reward bt": True}
    execute(shared)
    with monkeypatch.context() as alone:
        alone.setattr(start, "OneBase", lambda model, note: None)
        execute(separate)
    rows, other_rows = (read_jsonl(stage.directory / "metrics.jsonl") for stage in (shared, separate))
    for key in ("reward", "kl", "explained_variance", "value_loss"):
        values = [row[key] for row in rows if key in row]
        assert values and values == pytest.approx([row[key] for row in other_rows if key in row], abs=1e-4)
    notes = read_json(shared.directory / "result.json")["notes"]
    assert not any("its own base" in note for note in notes)


@pytest.mark.slow
def test_a_resumed_run_on_one_base_ends_where_an_uninterrupted_one_does(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    full, cut = (ppo(Path(shutil.copytree(built, tmp_path / name))) for name in ("whole", "cut"))
    execute(full)
    planned_bytes = plan_stage(cut).resident
    collect = ProximalPolicyOptimisation.collect

    def trap(self: ProximalPolicyOptimisation, step: int) -> Any:
        reward_model = self.evaluator.reward.terms["bt"]._reward.scorers[0].model  # type: ignore[union-attr]
        assert own_tensors(self.critic, self.model) == set(trained_state(self.critic))
        model_copies = held_bytes(self.model, self.reference, self.critic, reward_model)
        assert model_copies == planned_bytes + 4  # the bias of the critic's head
        if step == 5:
            raise Stopped
        return collect(self, step)

    with monkeypatch.context() as stopping:
        stopping.setattr(ProximalPolicyOptimisation, "collect", trap)
        with pytest.raises(Stopped):
            execute(cut)
    execute(cut)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (Path(full.model) / name).read_bytes() == (Path(cut.model) / name).read_bytes()
    first, second = (read_json(stage.directory / "result.json") for stage in (full, cut))
    assert first["policies"] == second["policies"]

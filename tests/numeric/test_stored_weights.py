"""Weights that are not trained, stored in bfloat16 or four bits, and what computes with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, gpt2_tokenizer, planned
from test_lora import BATCH, moved, tokens
from test_sampler import CONFIGS, flat, random_model, sample
from torch import nn
from transformers import AutoModelForSequenceClassification

from rlhf_lab.algorithms.policy_gradient.critic import build_critic
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.memory.shapes import source_shape
from rlhf_lab.memory.state import weight_bytes
from rlhf_lab.models import lora
from rlhf_lab.models.build import load_policy, load_reward_model, reward_scores, save_model
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import HuggingFace, LoRA, RoleWeights
from rlhf_lab.models.weights import count, is_packed, store, weight_of
from rlhf_lab.sampling.decoder import Decoder
from rlhf_lab.sampling.linear import InPlace
from rlhf_lab.stages.execute import _note_trained_weights, execute
from rlhf_lab.training.optim import Optimizers, TrainedPart
from rlhf_lab.training.settings import TrainingSettings
from rlhf_lab.training.stage_spec import Outputs

pytest.importorskip("bitsandbytes")

# the middles between their neighbours in this table are where NF4 rounds up (arXiv:2305.14314, appendix E)
NF4 = torch.tensor(
    [
        *(-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0),
        *(0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0),
    ]
)
# blocks of 64 numbers lie within rows
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_key_value_heads": 2, "head_dim": 16}


def wide(family: str) -> nn.Module:
    config = CONFIGS[family]
    sizes = SIZES if hasattr(config, "num_key_value_heads") else {}
    return random_model(config.__class__(**{**config.to_dict(), **sizes}))


def saved(family: str, directory: Path) -> Path:
    wide(family).save_pretrained(directory)  # type: ignore[operator]
    return directory


def loaded(directory: Path, weights: Any, rank: int = 0) -> nn.Module:
    settings = HuggingFace(path=str(directory), weights=weights, lora=LoRA(rank))
    return lora.trainable(load_policy(directory, settings, trained=rank > 0), settings.lora, seed=3)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
def test_bfloat16_computes_what_autocast_does_with_rounded_embeddings(family: str, tmp_path: Path) -> None:
    directory = saved(family, tmp_path)
    rounded = loaded(directory, "float32")
    for module in rounded.modules():
        if isinstance(module, nn.Embedding):
            module.weight.data = module.weight.data.bfloat16().float()
    with torch.autocast("cpu", torch.bfloat16):
        expected_N = tokens(rounded)
    stored = loaded(directory, "bfloat16")
    assert torch.equal(tokens(stored), expected_N)
    assert {p.dtype for p in stored.parameters() if p.ndim >= 2} == {torch.bfloat16}
    assert {p.dtype for p in stored.parameters() if p.ndim < 2} == {torch.float32}
    assert not any(p.requires_grad for p in stored.parameters())


def test_four_bits_are_the_nearest_levels_of_a_block() -> None:
    """64 numbers have the largest of them as one scale; the scale itself is rounded too, to a byte."""
    model: Any = wide("llama")
    layer = model.model.layers[0].mlp.up_proj
    before = layer.weight.detach().clone()
    store(model, "nf4", "cpu")
    after = weight_of(model.model.layers[0].mlp.up_proj).float()
    blocks, found = before.bfloat16().float().view(-1, 64), after.view(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True)
    nearest = NF4[(blocks[..., None] / scale[..., None] - NF4).abs().argmin(-1)] * scale
    assert ((found - nearest).abs() < 0.02 * scale).float().mean() > 0.99  # a tie may round up or down
    assert (after - before).abs().mean() / before.abs().mean() == pytest.approx(0.09, abs=0.02)


@pytest.mark.parametrize(("family", "weights"), [("llama", "bfloat16"), ("llama", "nf4"), ("gpt2", "bfloat16")])
def test_an_adapter_on_stored_weights(family: str, weights: Any, tmp_path: Path) -> None:
    directory = saved(family, tmp_path / "base")
    base = tokens(loaded(directory, weights))
    model = loaded(directory, weights, rank=4)
    assert torch.allclose(tokens(model), base, atol=0.05)  # peft adds the adapter's zeros in another dtype
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    frozen_before = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    token_logps(model, BATCH).sum_B().sum().backward()
    assert all(p.grad is not None for p in trained)
    torch.optim.AdamW(trained, lr=1e-2).step()
    assert all(torch.equal(p, frozen_before[n]) for n, p in model.named_parameters() if n in frozen_before)

    moved(model)
    assert torch.equal(tokens(lora.without_adapter(model)), base)
    merged = lora.merged(model)
    assert not any(is_packed(p) for p in merged.parameters())
    # the sum is rounded to bfloat16 once: 2⁻⁹ of each weight, seen through the network
    assert (tokens(merged) - tokens(model)).abs().mean() < 0.05 * (tokens(model) - base).abs().mean()
    merged.save_pretrained(tmp_path / "merged")  # type: ignore[operator]
    again = loaded(tmp_path / "merged", "bfloat16")
    assert torch.equal(tokens(again), tokens(merged))


def test_four_bits_keep_what_adapters_have_learned(tmp_path: Path) -> None:
    """Packing the sum again would lose the adapter's product, which is smaller than the steps of NF4."""
    directory = saved("llama", tmp_path / "base")
    tokenizer = gpt2_tokenizer(["some words to learn"])
    base = tokens(loaded(directory, "nf4"))
    for stage in ("first", "second"):
        model = loaded(directory, "nf4", rank=4)
        assert torch.allclose(tokens(model), base, atol=0.05)  # it starts where the stage before finished
        trained = tokens(moved(model, 0.02))
        moved_by = (trained - base).abs().mean()
        directory = tmp_path / stage
        save_model(model, Encoder(tokenizer), directory)
        again = loaded(directory, "nf4")
        assert (tokens(again) - trained).abs().mean() < 0.1 * moved_by
        assert (tokens(lora.merged(again)) - trained).abs().mean() < 0.2 * moved_by
        adapter_alone = loaded(directory / "adapter", "nf4")
        assert torch.equal(tokens(adapter_alone), tokens(again))
        base = trained
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(ArtifactError, match=r"restore it, or set model.weights=bfloat16"):
        loaded(directory, "nf4")


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize(("family", "weights"), [("qwen3", "nf4"), ("gpt2", "bfloat16"), ("gpt_neox", "bfloat16")])
def test_the_sampler_reads_the_models_own_layers(family: str, weights: Any, rank: int, tmp_path: Path) -> None:
    model = moved(loaded(saved(family, tmp_path), weights, rank))
    decoder = Decoder.of(model, torch.bfloat16, 100)
    if decoder is not None:
        projections = [p for layer in decoder.layers for p in (layer.qkv, layer.out, layer.up, layer.down)]
        assert all(isinstance(projection, InPlace) for projection in [*projections, decoder.head])
    rows, logps_N = flat(sample(model))
    with torch.no_grad():
        expected_N = token_logps(model, TokenBatch.from_rows(rows)).logps_N
    wrong_N = expected_N.roll(1)
    # bfloat16 rounds on both sides, in another order
    assert (logps_N - expected_N).abs().mean() < 0.03
    assert (logps_N - wrong_N).abs().mean() > 0.5


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "nf4"])
def test_the_plan_counts_stored_bytes(weights: Any, tmp_path: Path) -> None:
    """Four bits: half a byte a number, a byte for each 64, and for each 256 of those four bytes and a table."""
    directory = saved("llama", tmp_path)
    model = loaded(directory, weights)
    planned_bytes = weight_bytes(source_shape(str(directory)), weights)
    stored = sum(p.numel() * p.element_size() for p in model.parameters())
    packed = [p for p in model.parameters() if is_packed(p)]
    blocks = sum(count(p) // 64 for p in packed)
    assert sum(count(p) for p in model.parameters()) == sum(
        p.numel() for p in loaded(directory, "float32").parameters()
    )
    assert planned_bytes == pytest.approx(stored + blocks * (1 + 4 / 256), abs=1)


def test_a_scalar_head_stays_exact(tmp_path: Path) -> None:
    config = CONFIGS["llama"].__class__(**{**CONFIGS["llama"].to_dict(), "num_labels": 1, "pad_token_id": 0})
    model = AutoModelForSequenceClassification.from_config(config).to(torch.bfloat16)
    model.config.dtype = torch.bfloat16  # files of a model that was loaded in bfloat16 say so
    exact = torch.randn(model.score.weight.shape, generator=torch.Generator().manual_seed(2))
    model.score.float()
    model.score.weight.data.copy_(exact)
    model.save_pretrained(tmp_path)
    for weights in ("bfloat16", "nf4"):
        stored: Any = load_reward_model(tmp_path, HuggingFace(path=str(tmp_path), weights=weights))  # type: ignore[arg-type]
        assert torch.equal(stored.score.weight, exact)
        with torch.no_grad():
            scores_B = reward_scores(stored, BATCH)
        assert not torch.equal(scores_B, scores_B.bfloat16().float())  # not of three digits


def test_an_adapter_on_four_bits_brings_its_head(tmp_path: Path) -> None:
    directory = saved("llama", tmp_path / "policy")
    settings = HuggingFace(path=str(directory), weights="nf4", lora=LoRA(4))
    model: Any = lora.trainable(load_reward_model(directory, settings, trained=True), settings.lora, seed=3)
    model.score.weight.data.copy_(torch.randn(model.score.weight.shape, generator=torch.Generator().manual_seed(2)))
    trained_B = reward_scores(moved(model), BATCH)
    save_model(model, Encoder(gpt2_tokenizer(["some words to learn"])), tmp_path / "reward")
    for position in ("reward", "reward/adapter"):
        again: Any = load_reward_model(tmp_path / position, settings)
        assert torch.equal(again.score.weight, model.score.weight)
        assert (reward_scores(again, BATCH) - trained_B).abs().max() < 0.05 * trained_B.abs().max()


def test_weights_of_a_role(tmp_path: Path) -> None:
    directory = saved("llama", tmp_path)
    settings = HuggingFace(
        path=str(directory), weights="bfloat16", weights_of=RoleWeights(reference="nf4", reward="float32")
    )
    packed = [is_packed(p) for p in load_policy(directory, settings, role="reference").parameters()]
    assert any(packed)
    assert {p.dtype for p in load_reward_model(directory, settings).parameters()} == {torch.float32}
    assert {p.dtype for p in load_policy(directory, settings, trained=True).parameters()} == {torch.float32}
    assert torch.bfloat16 in {p.dtype for p in load_policy(directory, settings).parameters()}


def test_moments_of_a_byte_resume_exactly() -> None:
    settings = TrainingSettings(optimizer="adamw_8bit", lr=1e-2)

    def gradients(step: int, module: nn.Module) -> None:
        generator = torch.Generator().manual_seed(step)
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)

    def new() -> nn.Linear:
        torch.manual_seed(0)
        return nn.Linear(64, 128)

    full, stopped = new(), new()
    whole_optimizer = Optimizers({"model": TrainedPart(full, 1e-2)}, settings)
    optimizer = Optimizers({"model": TrainedPart(stopped, 1e-2)}, settings)
    for step in range(3):
        for module, stepping in ((full, whole_optimizer), (stopped, optimizer)):
            gradients(step, module)
            stepping.step(1.0)
    tensors = {name: tensor.clone() for name, tensor in optimizer.tensors().items()}
    assert tensors["model/weight/state1"].dtype == torch.uint8  # 8,192 numbers; a bias is too small to be worth it
    assert tensors["model/bias/state1"].dtype == torch.float32

    resumed = new()
    resumed.load_state_dict(stopped.state_dict())
    again = Optimizers({"model": TrainedPart(resumed, 1e-2)}, settings)
    again.load(tensors, lambda name, parameter: tensors[name])
    for step in range(3, 6):
        for module, stepping in ((full, whole_optimizer), (resumed, again)):
            gradients(step, module)
            stepping.step(1.0)
    assert torch.equal(full.weight, resumed.weight) and torch.equal(full.bias, resumed.bias)


SMALL = (*SMALL_WORLD, *ONE_LAYER, "model.lora.rank=4", "algorithm.batch_size=16", "checkpoint.every_steps=0")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("dpo", ("model.weights=nf4", "algorithm.epochs=1", "algorithm.optimizer=adamw_8bit")),
        ("ppo", ("model.weights=bfloat16", "algorithm.iterations=4", "algorithm.critic_warmup=1")),
        ("reward_model", ("model.weights=nf4", "algorithm.epochs=1")),
    ],
)
def test_a_stage_trains_on_stored_weights(recipe: str, more: tuple[str, ...], tmp_path: Path) -> None:
    upstream = ("stages.sft.model.lora.rank=0", "stages.sft.algorithm.epochs=1")
    if recipe == "ppo":
        upstream = (*upstream, "stages.reward_model.algorithm.epochs=1")
    stage = planned(recipe, *SMALL, *more, *upstream, f"outputs={tmp_path}")
    for needed in stage.upstream():
        execute(needed)
    assert (Path(stage.model) / "adapter" / "adapter_config.json").is_file()


def test_a_critic_has_an_adapter_on_a_trunk_of_its_own(tmp_path: Path) -> None:
    directory = saved("llama", tmp_path)
    settings = HuggingFace(path=str(directory), weights="nf4", lora=LoRA(4))
    run: Any = SimpleNamespace(
        config=SimpleNamespace(model=settings),
        needs={"policy": str(directory)},
        load_device="cpu",
        seed=lambda purpose: 7,
        base=None,
    )
    policy = loaded(directory, "nf4", rank=4)
    critic = build_critic("zero", run, policy, {}, (0.0, 1.0))
    trained = {name for name, p in critic.named_parameters() if p.requires_grad}
    assert {name.partition(".")[0] for name in trained} == {"trunk", "head"}
    assert all("lora_" in name for name in trained if name.startswith("trunk."))
    assert not {id(p) for p in critic.parameters()} & {id(p) for p in policy.parameters()}
    values_N = critic.values(BATCH)
    assert values_N.dtype == torch.float32 and not values_N.any()
    critic.head.weight.data.fill_(1.0)
    critic.values(BATCH).sum().backward()
    assert all(p.grad is not None for name, p in critic.named_parameters() if name in trained)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (("sharding=fsdp_full", "model.weights=nf4", "model.lora.rank=4"), "model.weights_of={reward: bfloat16}"),
        (("sharding=fsdp_full", "algorithm.optimizer=adamw_8bit"), "use algorithm.optimizer=adamw, or sharding=none"),
        (("engine=trl", "model.weights=bfloat16", "algorithm.optimizer=adamw"), "model.weights"),
        (("model.weights=nf4",), "differs from it before the first step; train an adapter"),
        (("model.weights=bfloat16",), "bfloat16 also with runtime.dtype=bfloat16"),
    ],
)
def test_what_cannot_be_stored_is_refused(overrides: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem.replace("{", r"\{")):
        planned("dpo", *SMALL_WORLD, "stages.sft.model.lora.rank=0", *overrides)


@pytest.mark.parametrize(
    ("weights", "rank", "told"), [("bfloat16", 0, True), ("bfloat16", 4, False), ("float32", 0, False)]
)
def test_who_asks_for_trained_weights_in_bfloat16_is_told(weights: Any, rank: int, told: bool) -> None:
    notes: list[str] = []
    model = HuggingFace(path="gpt2", weights=weights, lora=LoRA(rank))
    config = SimpleNamespace(model=model, algorithm=SimpleNamespace(outputs=Outputs(model=True)))
    run: Any = SimpleNamespace(config=config, note=notes.append)
    _note_trained_weights(run)
    assert ["trained weights are float32" in note for note in notes] == [True] * told


def test_layers_that_cannot_be_packed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Conv1D.*set model.weights=bfloat16"):
        loaded(saved("gpt2", tmp_path), "nf4")

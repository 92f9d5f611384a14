"""An adapter adds s·B·A and nothing else; its base, its merged form and its files are models like any other."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, Stopped, model_tensors, planned, stop_at
from test_sampler import CONFIGS, flat, prompts, random_model, sample
from torch import nn
from transformers import AutoModelForSequenceClassification, MusicgenForConditionalGeneration
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from rlhf_lab.algorithms.preference.dpo import OnePassDPO, preference_step
from rlhf_lab.config import registry
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.losses.preference import PairLogps
from rlhf_lab.models import lora
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model, reward_scores
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import TokenLogps, exact_kl, token_logps
from rlhf_lab.models.lora import has_adapter, merged, trainable, without_adapter
from rlhf_lab.models.pair_rows import pair_batch
from rlhf_lab.models.settings import LoRA, Scratch
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute
from rlhf_lab.training import checkpoint
from rlhf_lab.training.run import Run

peft = pytest.importorskip("peft")

FAMILIES = ["llama", "gpt2"]
LORA = ("model.lora.rank=4", "algorithm.batch_size=16", "algorithm.epochs=1")
BATCH = TokenBatch.from_rows([(prompt[:-2], prompt[-2:]) for prompt in prompts()])


def adapted(family: str, rank: int = 4, scale: float = 0.15) -> tuple[nn.Module, nn.Module]:
    """(base, the same with an adapter whose B is no longer zero)."""
    base, model = random_model(CONFIGS[family]), random_model(CONFIGS[family])
    return base, moved(trainable(model, LoRA(rank), seed=3), scale)


def moved(model: nn.Module, scale: float = 0.15) -> nn.Module:
    """Give every B a random value."""
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model


@torch.no_grad()
def logps(model: nn.Module, batch: TokenBatch = BATCH) -> TokenLogps:
    return token_logps(model, batch)


def tokens(model: nn.Module) -> torch.Tensor:
    """Log-probability of every reply token of BATCH."""
    return logps(model).logps_N


def reward_model(family: str) -> Any:
    torch.manual_seed(0)
    config = CONFIGS[family].__class__(**{**CONFIGS[family].to_dict(), "num_labels": 1, "pad_token_id": 0})
    return AutoModelForSequenceClassification.from_config(config).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_adapter_changes_nothing_and_a_moved_one_does(family: str) -> None:
    base, model = random_model(CONFIGS[family]), random_model(CONFIGS[family])
    trainable(model, LoRA(4), seed=0)
    assert torch.equal(tokens(model), tokens(base))
    assert (tokens(moved(model)) - tokens(base)).abs().max() > 0.1


@pytest.mark.parametrize(
    ("settings", "factor"), [(LoRA(4), 4.0), (LoRA(4, 6.0), 1.5), (LoRA(4, 6.0, rslora=True), 3.0)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_effective_weight_is_w_plus_s_b_a(family: str, settings: LoRA, factor: float) -> None:
    model: Any = moved(trainable(random_model(CONFIGS[family]), settings, seed=0))
    layer = model.model.layers[1].mlp.up_proj if family == "llama" else model.transformer.h[1].mlp.c_fc
    product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    expected = layer.base_layer.weight + factor * (product if family == "llama" else product.T)
    assert torch.allclose(lora.effective_weight(layer), expected, atol=1e-6)
    assert torch.equal(lora.effective_weight(layer.base_layer), layer.weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_computes_the_same(family: str) -> None:
    base, model = adapted(family)
    simple: Any = merged(model)
    assert not has_adapter(simple) and has_adapter(model)
    assert type(simple) is type(base)
    difference = tokens(simple) - tokens(model)
    assert difference.norm() / tokens(model).norm() < 1e-6
    assert {name for name, _ in simple.named_parameters()} == {name for name, _ in base.named_parameters()}
    assert merged(base) is base


@pytest.mark.parametrize("family", FAMILIES)
def test_without_the_adapter_is_exactly_the_base_and_costs_no_memory(family: str) -> None:
    base, model = adapted(family)
    reference = without_adapter(model)
    assert torch.equal(tokens(reference), tokens(base))
    own = {id(p) for p in model.parameters()}
    assert all(id(p) in own and not p.requires_grad for p in reference.parameters())
    assert {name for name, _ in reference.named_parameters()} == {name for name, _ in base.named_parameters()}
    moved(model, 1.0)
    assert torch.equal(tokens(reference), tokens(base))
    assert exact_kl(model, reference, BATCH).min() > 0.1


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3", "gpt_neox"])
def test_the_sampler_draws_from_the_adapted_policy(family: str) -> None:
    base, model = adapted(family)
    rows, logps_N = flat(sample(model))
    expected, off = (logps(m, TokenBatch.from_rows(rows)).logps_N for m in (model, base))
    assert (logps_N - expected).abs().max() < 1e-4
    assert (logps_N - off).abs().max() > 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_adapter_gets_gradients(family: str) -> None:
    _, model = adapted(family)
    token_logps(model, BATCH).sum_B().sum().backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    linear = {"llama": 2 * 7, "gpt2": 2 * 4}[family]
    assert len(with_gradient) == 2 * linear
    assert all("lora_A" in name or "lora_B" in name for name in with_gradient)
    assert checkpoint.trained_state(model).keys() == with_gradient


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reward_model_trains_its_head_whole(family: str) -> None:
    model = trainable(reward_model(family), LoRA(4), seed=0)
    reward_scores(moved(model), BATCH).sum().backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert "score.weight" in trained
    assert all("lora_" in name for name in trained - {"score.weight"}) and len(trained) > 9


def test_the_seed_alone_decides_the_start() -> None:
    models = [random_model(CONFIGS["llama"]) for _ in range(3)]
    before = torch.random.get_rng_state()
    a, b, c = (checkpoint.trained_state(trainable(m, LoRA(4), s)) for m, s in zip(models, (1, 1, 2), strict=True))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert all(not torch.equal(a[name], c[name]) for name in a if "lora_A" in name)


def test_targets_choose_layers_of_the_blocks() -> None:
    model = trainable(random_model(CONFIGS["llama"]), LoRA(2, targets=["q_proj", "mlp.up_proj"]), seed=0)
    names = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in checkpoint.trained_state(model)}
    assert names == {"q_proj", "up_proj"}
    for wrong, message in (("lm_head", "outside the blocks"), ("embed_tokens", "outside"), ("query", "no layer")):
        with pytest.raises(ConfigError, match=rf"model.lora.targets: {wrong} .*{message}.*choose from down_proj"):
            trainable(random_model(CONFIGS["llama"]), LoRA(2, targets=[wrong]), seed=0)


def test_only_the_text_layers_of_a_model_with_an_image_encoder_are_trained(tmp_path: Path) -> None:
    """The encoder of Gemma 3 has layers of the same names, and with all of its own the default was refused."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text = {**sizes, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 300}
    vision = {**sizes, "image_size": 28, "patch_size": 14}
    config = CONFIG_MAPPING["gemma3"](text_config=text, vision_config=vision, mm_tokens_per_image=4)
    random_model(config).save_pretrained(tmp_path / "base")  # type: ignore[operator]
    base = load_policy(tmp_path / "base", Scratch(), trained=True)
    assert {name.split(".")[1] for name, p in base.named_parameters() if p.requires_grad} == {"language_model"}
    model = moved(trainable(base, LoRA(2), seed=0))
    names = [name for name, layer in model.named_modules() if hasattr(layer, "lora_A")]
    assert len(names) == 7 and all(name.startswith("model.language_model.layers.0.") for name in names)
    lora.save_adapter(model, tmp_path / "adapter")
    assert torch.allclose(tokens(load_policy(tmp_path / "adapter", Scratch())), tokens(model), atol=1e-4)


def test_a_speech_model_with_two_text_configs_gets_an_adapter() -> None:
    """`get_text_config` fails for such a model, of which Parler-TTS is one; its adapter changes the decoder only."""
    codec = {"model_type": "encodec", "num_filters": 2, "hidden_size": 4, "num_lstm_layers": 1, "codebook_size": 8}
    text = {"model_type": "t5", "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 16}
    decoder = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "vocab_size": 8}
    config = CONFIG_MAPPING["musicgen"](text_encoder=text, audio_encoder=codec, decoder=decoder)
    with pytest.raises(ValueError, match="Multiple valid text configs"):
        config.get_text_config()
    model = lora.add_adapter(MusicgenForConditionalGeneration(config), LoRA(2, targets=["q_proj"]), seed=0)
    names = [name for name, layer in model.named_modules() if hasattr(layer, "lora_A")]
    assert names == [
        "decoder.model.decoder.layers.0.self_attn.q_proj",
        "decoder.model.decoder.layers.0.encoder_attn.q_proj",
    ]


def test_a_checkpoint_of_other_tensors_is_refused() -> None:
    _, model = adapted("llama")
    state = checkpoint.Saved(Path(), {"tensors": checkpoint.trained_state(model)})
    fresh = trainable(random_model(CONFIGS["llama"]), LoRA(4), seed=9)
    checkpoint.load_trained_state(fresh, state, "")
    assert torch.equal(tokens(fresh), tokens(model))
    with pytest.raises(RuntimeError, match="different tensors"):
        checkpoint.load_trained_state(random_model(CONFIGS["llama"]), state, "")


@pytest.mark.parametrize("family", FAMILIES)
def test_peft_reads_the_stored_adapter(family: str, tmp_path: Path) -> None:
    base, model = adapted(family)
    lora.save_adapter(model, tmp_path)
    theirs = peft.PeftModel.from_pretrained(base, str(tmp_path)).base_model.model
    assert torch.equal(tokens(theirs), tokens(model))
    again = lora.apply_adapter(random_model(CONFIGS[family]), tmp_path)
    assert not has_adapter(again)
    assert (tokens(again) - tokens(model)).abs().max() < 1e-4


def test_a_stored_reward_adapter_brings_its_head(tmp_path: Path) -> None:
    base = reward_model("llama")
    start = {name: value.clone() for name, value in base.state_dict().items()}
    model: Any = moved(trainable(base, LoRA(4), seed=0))
    nn.init.normal_(model.score.weight)
    lora.save_adapter(model, tmp_path)
    ours = partial(lora.apply_adapter, directory=tmp_path)
    with torch.no_grad():
        expected = reward_scores(model, BATCH)
        for load in (lambda m: peft.PeftModel.from_pretrained(m, str(tmp_path)).base_model.model, ours):
            fresh = reward_model("llama")
            fresh.load_state_dict(start)
            assert (reward_scores(load(fresh), BATCH) - expected).abs().max() < 1e-5
    with pytest.raises(ArtifactError, match="does not fit its base"):
        lora.apply_adapter(random_model(CONFIGS["llama"]), tmp_path)  # a causal model has no head


def stage(recipe: str, policy: Path | str, out: Path, *overrides: str) -> Stage:
    needs = (f"{'' if recipe == 'dpo' else '+'}needs.policy={policy}", *(["needs.reward=null"] * (recipe == "dpo")))
    return planned(recipe, *SMALL_WORLD, *ONE_LAYER, *LORA, *needs, f"outputs={out}", *overrides)


@pytest.fixture(scope="module")
def sft(tmp_path_factory: Any, policy: Path) -> Stage:
    """LoRA-SFT on the policy that the other tests start from."""
    found = stage("sft", policy, tmp_path_factory.mktemp("sft"), "algorithm.muon_lr=3e-2")
    execute(found)
    return found


def test_dpo_after_lora_sft_starts_at_the_sft_policy(policy: Path, sft: Stage, tmp_path: Path) -> None:
    """Log-ratios and KL are exactly 0 before the first step; the reference is not the model that SFT started from."""
    plan = stage("dpo", sft.model, tmp_path)
    run = Run(tmp_path, plan.config, {"policy": sft.model})
    dpo = registry.build("algorithm", plan.config.algorithm, run)
    dpo.start()
    assert {id(p) for p in dpo.reference.parameters()} < {id(p) for p in dpo.model.parameters()}  # no second copy
    micro = dpo.collect(0).micro[0]
    assert dpo.loss(micro).metrics["margin"].abs().max() < 1e-5  # the reference's rows were batched otherwise
    rows = pair_batch(micro[0], "cpu")
    ref = PairLogps(*logps(dpo.reference, rows).sum_B().chunk(2))
    start = preference_step(dpo.model, micro[0], ref, plan.config.algorithm, "cpu")
    assert torch.equal(start.metrics["margin"], torch.zeros(len(micro[0])))
    assert torch.equal(exact_kl(dpo.model, dpo.reference, rows), torch.zeros(2 * len(micro[0])))
    models = (dpo.reference, load_policy(sft.model, Scratch()), load_policy(policy, Scratch()))
    reference, tuned, first = (logps(model, rows).logps_N for model in models)
    assert torch.equal(reference, tuned)
    assert (reference - first).abs().max() > 0.01


def test_the_result_says_how_much_was_trained(sft: Stage) -> None:
    metrics = read_json(sft.directory / "result.json")["metrics"]
    adapter = Path(sft.model) / "adapter" / "adapter_model.safetensors"
    assert metrics["parameters/trained"] < metrics["parameters"] / 2
    assert metrics["checkpoint_mib"] == metrics["parameters/trained"] * 4 / 2**20
    assert metrics["checkpoint_mib"] * 2**20 <= adapter.stat().st_size < metrics["checkpoint_mib"] * 2**20 + 8192


def test_a_bare_adapter_folder_is_a_policy(sft: Stage, tmp_path: Path) -> None:
    """It is loaded onto the base it names, wherever the process runs, and is the merged model to rounding."""
    adapter = Path(sft.model) / "adapter"
    full, found = load_policy(sft.model, Scratch()), load_policy(adapter, Scratch())
    assert not has_adapter(found)
    for (name, a), (other, b) in zip(full.named_parameters(), found.named_parameters(), strict=True):
        assert name == other
        assert torch.allclose(a, b, atol=1e-6)
    text = "what is it"
    assert load_encoder(adapter, Scratch()).prompt(text) == load_encoder(sft.model, Scratch()).prompt(text)
    scored: Any = load_reward_model(adapter, Scratch())
    assert not scored.score.weight.any()
    assert torch.equal(scored.model.layers[0].mlp.up_proj.weight, found.model.layers[0].mlp.up_proj.weight)  # type: ignore[union-attr, index]


def test_a_bare_adapter_folder_can_be_trained_in_full(sft: Stage) -> None:
    adapter = Path(sft.model) / "adapter"
    policy = load_policy(adapter, Scratch(), trained=True)
    head: Any = load_reward_model(adapter, Scratch(), trained=True)
    assert all(parameter.requires_grad for model in (policy, head) for parameter in model.parameters())
    tokens_of = token_logps(policy, BATCH).logps_N
    tokens_of.sum().backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_end_tokens_of_the_base_end_responses_of_an_adapter_that_has_its_own_tokenizer(
    sft: Stage, tmp_path: Path
) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(sft.model, base)
    shutil.copytree(base / "adapter", adapter)
    generation = base / "generation_config.json"
    generation.write_text(json.dumps(json.loads(generation.read_text()) | {"eos_token_id": [0, 7]}))
    config = adapter / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": str(base)}))
    without = load_encoder(adapter, Scratch())
    without.tokenizer.save_pretrained(adapter)
    assert load_encoder(adapter, Scratch()).stop_ids == without.stop_ids
    assert 7 in without.stop_ids


def stored_by_peft(directory: Path, family: str = "llama", **settings: Any) -> torch.Tensor:
    """Store a moved adapter, and its base, as another program would; return peft's log-probabilities."""
    base: Any = random_model(CONFIGS[family])
    base.save_pretrained(directory / "base")
    targets = ["q_proj", "up_proj"] if family == "llama" else ["c_attn", "c_fc"]
    config = peft.LoraConfig(r=4, target_modules=targets, fan_in_fan_out=family == "gpt2", **settings)
    model = peft.get_peft_model(base, config)
    moved(model)
    for name, parameter in model.named_parameters():
        if "magnitude" in name:
            parameter.data.mul_(1.5)
    model.peft_config["default"].base_model_name_or_path = str(directory / "base")
    model.save_pretrained(directory)
    return tokens(model.eval().get_base_model())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "settings", [{"use_dora": True}, {"rank_pattern": {"up_proj": 2}, "alpha_pattern": {"q_proj": 64}}, {}]
)
def test_an_adapter_of_another_program_is_merged_as_peft_computes_it(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    expected = stored_by_peft(tmp_path, family, **settings)
    found = load_policy(tmp_path, Scratch())
    assert torch.allclose(tokens(found), expected, atol=1e-4)
    assert (tokens(load_policy(tmp_path / "base", Scratch())) - expected).abs().max() > 0.01


@pytest.mark.parametrize("saved", [["lm_head"], ["wte"], ["lm_head", "wte"]])
@torch.no_grad()
def test_an_adapter_that_trains_the_head_or_the_embeddings_of_a_tied_model_unties_them(
    saved: list[str], tmp_path: Path
) -> None:
    base: Any = random_model(CONFIGS["gpt2"])
    base.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=saved)
    model = peft.get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "modules_to_save" in name:
            parameter.mul_(1.5)
    model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    model.save_pretrained(tmp_path)
    expected = model.eval()(BATCH.tokens_BT).logits
    found: Any = load_policy(tmp_path, Scratch())
    assert torch.allclose(found(BATCH.tokens_BT).logits, expected, atol=1e-4)
    found.save_pretrained(tmp_path / "merged")
    again: Any = load_policy(tmp_path / "merged", Scratch())
    assert torch.allclose(again(BATCH.tokens_BT).logits, expected, atol=1e-4)


def test_an_adapter_that_repeats_layers_is_refused(tmp_path: Path) -> None:
    stored_by_peft(tmp_path, layer_replication=[[0, 1], [0, 1]])
    with pytest.raises(ArtifactError, match=r"layer_replication.*merge_and_unload"):
        load_policy(tmp_path, Scratch())


def test_products_that_are_kept_separately_have_the_scale_of_their_layer(tmp_path: Path) -> None:
    """As on 4-bit weights, or on a base in memory that several models share."""
    patterns = {"rank_pattern": {"up_proj": 2}, "alpha_pattern": {"q_proj": 64}}
    expected = stored_by_peft(tmp_path, **patterns)
    model = load_policy(tmp_path / "base", Scratch())
    lora.add_products(model, tmp_path, shared=True)
    assert torch.allclose(tokens(model), expected, atol=1e-4)


def test_tensors_that_are_no_products_are_refused_where_only_products_can_be_added(tmp_path: Path) -> None:
    stored_by_peft(tmp_path, use_dora=True)
    model = load_policy(tmp_path / "base", Scratch())
    with pytest.raises(ArtifactError, match=r"lora_magnitude_vector.*model\.weights=bfloat16"):
        lora.add_products(model, tmp_path)


@pytest.mark.parametrize(
    ("base", "message"), [("/gone", "/gone, the base of adapter .*cannot be loaded"), (None, "has no base_model")]
)
def test_an_adapter_without_its_base_is_refused(base: str | None, message: str, sft: Stage, tmp_path: Path) -> None:
    for file in (Path(sft.model) / "adapter").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": base}))
    with pytest.raises(ArtifactError, match=message):
        load_policy(tmp_path, Scratch())


def test_a_resumed_lora_run_ends_where_an_uninterrupted_one_does(
    sft: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = ("algorithm.lr=1e-2", "checkpoint.every_steps=2", "algorithm.eval_every_steps=3")
    full, cut = (stage("dpo", sft.model, tmp_path / name, *every) for name in ("whole", "cut"))
    execute(full)
    stop_at(monkeypatch, OnePassDPO, 4)
    with pytest.raises(Stopped):
        execute(cut)
    stop_at(monkeypatch, OnePassDPO, None)
    saved, _ = checkpoint.load(cut.directory)
    assert saved is not None and saved["step"] == 4
    execute(cut)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (Path(full.model) / name).read_bytes() == (Path(cut.model) / name).read_bytes()
    first, second = (read_json(s.directory / "result.json") for s in (full, cut))
    assert first["policies"] == second["policies"]
    assert any(note.startswith("resumed at step 4") for note in second["notes"])
    assert any(
        not torch.equal(a, model_tensors(Path(sft.model))[n]) for n, a in model_tensors(Path(full.model)).items()
    )

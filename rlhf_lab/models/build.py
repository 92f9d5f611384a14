"""Loading and saving of policies and reward models as ordinary Hugging Face directories (safetensors, no remote code).

A policy directory can be loaded by `AutoModelForCausalLM`, and a reward-model directory by
`AutoModelForSequenceClassification(num_labels=1)`. Any stage can therefore start from another program's directory or a
hub id, and other programs can use the models of rlhf_lab. A model trained with LoRA is saved merged, with its adapter
in `adapter/`. A directory with only an adapter is loaded onto the base that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as hf_logging

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ArtifactError, ConfigError
from rlhf_lab.data.transcript import to_conversation
from rlhf_lab.models import families, lora
from rlhf_lab.models.encoding import Encoder, TokenBatch
from rlhf_lab.models.model_files import reading_weights, rope_limit, rope_problem
from rlhf_lab.models.one_base import OneBase
from rlhf_lab.models.settings import HuggingFace, Scratch, Stored, WeightsOf
from rlhf_lab.models.sharded import unsharded, within
from rlhf_lab.models.skeleton import placed
from rlhf_lab.models.weights import HEAD, compute_under_autocast, scalar_head, store

UNBOUNDED_LENGTH = 10**9
"""Limit above which a tokenizer's maximum length means that it has none (transformers uses 1e30)."""

hf_logging.set_verbosity_error()
hf_logging.disable_progress_bar()


def scratch_policy(settings: Scratch, tokenizer: PreTrainedTokenizerFast, seed: int) -> nn.Module:
    """Return a randomly initialised causal LM of the family and size in `settings`."""
    if settings.family == "llama":
        return new_model(LlamaConfig(**llama_settings(settings, tokenizer)), seed)
    config = GPT2Config(
        n_embd=settings.hidden,
        n_layer=settings.layers,
        n_head=settings.heads,
        n_inner=settings.mlp or None,
        n_positions=settings.max_positions,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **_common_settings(tokenizer),
    )
    return new_model(config, seed)


def llama_settings(settings: Scratch, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the config values of a new Llama, and of families that are based on it."""
    return {
        **_common_settings(tokenizer),
        "hidden_size": settings.hidden,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        # 8/3 of the hidden size, as in Llama, rounded down to a multiple of 8
        "intermediate_size": settings.mlp or settings.hidden * 8 // 3 // 8 * 8,
        "max_position_embeddings": settings.max_positions,
    }


def _common_settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": True,
        "use_cache": False,
    }


def new_model(config: Any, seed: int) -> nn.Module:
    """Return a randomly initialised causal LM. Its weights depend only on `seed`; the global random state is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def load_policy(
    source: str | Path,
    settings: Scratch | HuggingFace,
    *,
    device: str = "cpu",
    role: WeightsOf = "policy",
    trained: bool = False,
) -> nn.Module:
    """Load a causal LM from a directory or hub id, without dropout. Raises ArtifactError if it cannot be loaded.

    Args:
        device: device of the model, or `skeleton.MAIN`.
        role: role that selects the storage of its weights in `model.weights_of`.
        trained: True if it will be trained: all parameters in float32, unless `model.lora` adds an adapter.
    """
    weights = _weights(settings, role, trained)
    return _load(AutoModelForCausalLM, "a causal language model", source, settings, {}, weights, device)


def _load(
    auto_class: Any,
    description: str,
    source: str | Path,
    settings: Scratch | HuggingFace,
    options: dict[str, Any],
    weights: Stored,
    device: str,
) -> nn.Module:
    """Load a model with `auto_class`, without dropout, onto a device.

    Args:
        description: kind of model, for the message of the ArtifactError.
    """

    def read(device: str) -> nn.Module:
        model = _read(auto_class, description, source, settings, options, weights)
        model = store(_without_dropout(model), weights, device)
        if weights == "nf4":
            for directory in lora.adapter_chain(source)[1]:  # of earlier stages
                lora.add_products(model, directory)
        return model

    families.register()
    model = placed(read, device)
    model.name_or_path = str(source)  # type: ignore[assignment]  # the base of an adapter that is trained now
    return _refusing_longer_rows(model, source)


def _weights(settings: Scratch | HuggingFace, role: WeightsOf, trained: bool) -> Stored:
    return "float32" if trained and not settings.lora.rank else settings.stored(role)


def load_encoder(source: str | Path, settings: Scratch | HuggingFace) -> Encoder:
    """Load the tokenizer stored with a model, as an encoder."""
    directory = Path(source)
    # of files that a directory with only an adapter lacks, those of its base are used
    base = lora.adapter_base(source) or source
    generation_source = source if (directory / "generation_config.json").is_file() else base
    source = source if (directory / "tokenizer_config.json").is_file() else base
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(source), revision=revision_of(settings, source), trust_remote_code=False
        )
    except (OSError, ValueError) as error:
        raise ArtifactError(_load_message("a tokenizer", source, error)) from error
    read_prompt = to_conversation if uses_chat_template(settings, tokenizer) else None
    return Encoder(tokenizer, read_prompt, _stop_ids(generation_source, revision_of(settings, generation_source)))


def uses_chat_template(settings: Scratch | HuggingFace, tokenizer: Any) -> bool:
    """Return True if prompts use the tokenizer's chat template. Raises ConfigError if a required one is missing."""
    expected = settings.chat_template if isinstance(settings, HuggingFace) else False
    there = bool(getattr(tokenizer, "chat_template", None))
    if expected and not there:
        raise ConfigError("model.chat_template=true: the tokenizer has no chat template; set model.chat_template=false")
    return there if expected is None else expected


def _stop_ids(source: str | Path, revision: str | None) -> tuple[int, ...]:
    """Return the tokens that end a response in the model's generation_config; empty without such a file."""
    try:
        stop_ids = GenerationConfig.from_pretrained(str(source), revision=revision or "main").eos_token_id
    except (OSError, ValueError):
        return ()
    return tuple(stop_ids) if isinstance(stop_ids, list) else () if stop_ids is None else (stop_ids,)


def save_model(model: nn.Module, encoder: Encoder, directory: Path) -> None:
    """Write model and tokenizer to a directory that `load_policy` or `load_reward_model` can load.

    A model with an adapter is written merged, with its adapter next to it in `adapter/`.
    """
    # every process enters, because all of them take part in gathering a sharded model
    with unsharded(model, to_save=True) as full_model:
        if not ranks.is_main():
            return
        saved = lora.merged(full_model)
        _serve_with_cache(saved, encoder)
        saved.save_pretrained(directory)  # type: ignore[operator]
        if lora.has_adapter(full_model):
            lora.save_adapter(full_model, directory / "adapter")
    encoder.tokenizer.save_pretrained(directory)


def _serve_with_cache(model: nn.Module, encoder: Encoder) -> None:
    """Set config values that other programs use for generation: the KV cache, and the tokenizer's maximum length.

    Training passes `use_cache=False` in every call and ignores the config's value. Models of families that packs add do
    not use this cache.
    """
    config: Any = model.config
    keeps_cache = families.family_of(config.model_type) is None
    for settings in (config, getattr(model, "generation_config", None)):
        if settings is not None and keeps_cache:
            settings.use_cache = True
    positions = getattr(config, "max_position_embeddings", None)
    if positions and encoder.tokenizer.model_max_length > UNBOUNDED_LENGTH:
        encoder.tokenizer.model_max_length = positions


def load_reward_model(
    source: str | Path,
    settings: Scratch | HuggingFace,
    *,
    outputs: int = 1,
    device: str = "cpu",
    trained: bool = False,
    base: OneBase | None = None,
) -> nn.Module:
    """Load a reward model with `outputs` numbers per response.

    If the directory has no head, as for a policy, the new head is zero, so that every response first scores 0.

    Args:
        device, trained: as in `load_policy`.
        base: model in memory whose tensors are shared if the reward model is an adapter on it; None shares nothing.
    """
    weights = _weights(settings, "policy" if trained else "reward", trained)
    on_base = base.reward_model(str(source), outputs, weights) if base else None
    if on_base is not None:
        return on_base
    auto_class, description = AutoModelForSequenceClassification, "a model for a scalar head"
    return _load(auto_class, description, source, settings, {"num_labels": outputs}, weights, device)


def reward_scores(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Return the score of each row at its last real token, (B,), float32: the first output of `reward_outputs`."""
    return reward_outputs(model, batch)[:, 0]


def reward_outputs(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Return all outputs of the head at each row's last real token, (B, outputs), float32, differentiable.

    The position of that token is computed from the row's length.
    """
    # Backbone and head are called separately, because a Hugging Face classifier finds the last token by the pad id.
    return within(model, lambda: scalar_head(model, _last_hidden_states(model, batch)))


def last_hidden_states(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    """Return the last hidden state at each row's last real token, (B, hidden): what a reward model's head reads."""
    return within(model, _last_hidden_states, model, batch)


def _last_hidden_states(model: nn.Module, batch: TokenBatch) -> torch.Tensor:
    hidden_BTd = model.base_model(input_ids=batch.tokens_BT, use_cache=False).last_hidden_state  # type: ignore[operator]
    row_B = torch.arange(len(batch.length_B), device=hidden_BTd.device)
    return hidden_BTd[row_B, batch.length_B - 1]


def _read(
    auto_class: Any,
    description: str,
    source: str | Path,
    settings: Scratch | HuggingFace,
    options: dict[str, Any],
    weights: Stored,
) -> nn.Module:
    """Read a model from its files. A missing scalar head becomes zero, and an adapter is merged.

    Below float32 the weights are read in the dtype of the files.
    """
    base = lora.adapter_base(source)
    model_source = base or str(source)
    if weights == "nf4":  # the lowest base is packed, and the adapters on it are added afterwards
        model_source, base = lora.adapter_chain(source)[0], None
    label = f"{base}, the base of adapter {source}," if base else str(source)
    try:
        model, loading_info = auto_class.from_pretrained(
            model_source,
            dtype=torch.float32 if weights == "float32" else "auto",
            attn_implementation=_attention(settings),
            revision=revision_of(settings, model_source),
            use_safetensors=True,
            trust_remote_code=False,  # without it, transformers asks on the terminal whether to run the model's code
            output_loading_info=True,
            **options,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, (torch.OutOfMemoryError, ArtifactError)):
            raise
        raise ArtifactError(_load_message(description, label, error)) from error
    if lora.has_adapter(model):
        # For the hub id of an adapter, transformers itself loads the base, with an unmerged adapter.
        raise ArtifactError(f"{label} is an adapter on a hub; download it and use its directory instead")
    missing = sorted(loading_info["missing_keys"])
    if any(key.startswith(f"{HEAD}.") for key in missing):
        model.score.float()
        nn.init.zeros_(model.score.weight)
    _require_tensors([key for key in missing if not key.startswith(f"{HEAD}.")], description, label)
    if weights != "float32":
        _read_unrounded(model, model_source)
    _repair_generation_config(model)
    compute_under_autocast(model)
    return _without_images(lora.apply_adapter(model, source) if base else model)


def _require_tensors(missing: Sequence[str], description: str, label: str) -> None:
    """Raise ArtifactError if files lack tensors of a model: transformers gives them random values, with a warning."""
    if missing:
        raise ArtifactError(
            f"{label} cannot be loaded as {description}: its files lack {len(missing)} of its tensors, such as "
            f"{missing[0]}. Name a model of this kind (a reward model has no lm_head), or save it again with "
            "save_pretrained, without prefixes in the names of tensors such as _orig_mod. of torch.compile"
        )


def _attention(settings: Scratch | HuggingFace) -> str | None:
    """Return transformers' attention implementation; None lets the architecture choose."""
    attention = getattr(settings, "attention", "auto")
    return None if attention == "auto" else attention


def _repair_generation_config(model: Any) -> None:
    """Reduce a generation config that transformers would refuse to save to its special tokens.

    Many models of the hub set a temperature without `do_sample`, which has no effect. transformers loads such a model,
    but does not save it, so a stage would fail after its training.
    """
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return
    try:
        generation.validate(strict=True)
    except ValueError:
        tokens = {name: getattr(generation, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        if isinstance(tokens["pad_token_id"], int) and tokens["pad_token_id"] < 0:
            tokens["pad_token_id"] = None
        model.generation_config = GenerationConfig(**tokens)


def _without_images(model: nn.Module) -> nn.Module:
    """Freeze the parts of a model that text does not use, such as the image encoder of Gemma 3.

    DDP waits for the gradient of every parameter that is trained.
    """
    decoder = lora.text_decoder(model)
    if decoder is not None:
        for parameter in {*model.base_model.parameters()} - {*decoder.parameters()}:  # type: ignore[union-attr]
            parameter.requires_grad_(False)
    return model


def _read_unrounded(model: Any, source: str) -> None:
    """Give norms, biases and a scalar head the values in the files.

    A model whose matrices are bfloat16 is saved with that dtype in its config. Loading would therefore round tensors
    that the files store in float32.
    """
    parameters = dict(model.named_parameters())
    for file in sorted(Path(source).glob("*.safetensors")):  # finds no files for a hub id
        with reading_weights(file), safe_open(file, framework="pt") as tensors:
            for name in parameters.keys() & set(tensors.keys()):
                if parameters[name].ndim < 2 or name.startswith(f"{HEAD}."):
                    parameters[name].data = tensors.get_tensor(name)


def _refusing_longer_rows(model: nn.Module, source: str | Path) -> nn.Module:
    """Let a model's rotary embedding raise ConfigError at lengths that change it (see `rope_limit`).

    Preflight compares settings with the config of a directory, but may not have the config of a hub model yet.
    """
    limit = rope_limit(model.config.to_dict())  # type: ignore[operator, union-attr]
    if limit is None:
        return model
    _, max_positions_of_model = limit

    def check_length(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        position_ids = kwargs["position_ids"] if "position_ids" in kwargs else args[1]
        length = int(position_ids.max()) + 1
        if length > max_positions_of_model:
            raise ConfigError(rope_problem("a row's length", length, str(source), limit))

    for name, module in model.named_modules():
        if name.endswith("rotary_emb"):
            module.register_forward_pre_hook(check_length, with_kwargs=True)
    return model


def revision_of(settings: Scratch | HuggingFace, source: str | Path) -> str | None:
    """Return the configured hub revision if `source` is the hub model to which it belongs, else None.

    A stage with `model=hf` also loads directories of other stages and bases of adapters, which have no such revision.
    """
    if isinstance(settings, HuggingFace) and str(source) == settings.path:
        return settings.revision
    return None


def _without_dropout(model: nn.Module) -> nn.Module:
    """Disable dropout permanently: a log-probability must not depend on the call."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # fused attention has no dropout module; its layers store the probability as a number
        for name in ("attention_dropout", "attn_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model.eval()


def _load_message(description: str, source: str | Path, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0][:300]
    if "attention" in reason.casefold():
        hint = "If it does not support this attention, set model.attention=auto, which selects one that it supports"
    elif "trust_remote_code" in str(error):
        reason = "it needs its own code (auto_map), which rlhf_lab never runs"
        hint = "Use a model whose architecture transformers has, or a version of transformers that has this one"
    else:
        hint = "Expected a directory with config.json, *.safetensors and a tokenizer, or a hub id"
    return f"{source} cannot be loaded as {description}: {reason}. {hint}"

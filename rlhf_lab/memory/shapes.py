"""Model shapes without weights: from the settings of a new model, a config.json, or the hub's local cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_object
from rlhf_lab.memory.sizes import PUBLISHED, ModelShape
from rlhf_lab.models.families import family_of, register
from rlhf_lab.models.model_files import check_bases
from rlhf_lab.models.settings import Scratch
from rlhf_lab.stages.artifacts import External, Stage

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "rlhf_lab_codec")
"""Model types with Llama's shape. A codec model is counted as if each token had a position.

It actually needs one position for a column of tokens, so its estimate is an upper bound.
"""
GEMMAS = ("gemma", "gemma2", "gemma3_text")
EXPERTS = ("mixtral", "qwen3_moe")


def policy_shape(stage: Stage) -> ModelShape:
    """Return the shape of the policy that a stage trains or starts from.

    Raises ConfigError for a hub model that is not on this machine, and for an unknown architecture.
    """
    need = stage.needs.get("policy") or stage.needs.get("reference")
    if need is not None:
        return need_shape(need)
    settings = stage.config.model
    if isinstance(settings, Scratch):
        return scratch_shape(settings)
    return source_shape(settings.path, getattr(settings, "revision", None))  # models of packs may have no revision


def need_shape(need: Stage | External) -> ModelShape:
    """Return the shape of the model of a stage or directory. A stage that is not built keeps its policy's shape."""
    if isinstance(need, External):
        return source_shape(need.source)
    if Path(need.model, "config.json").is_file():
        return source_shape(need.model)
    return policy_shape(need)


def scratch_shape(settings: Scratch) -> ModelShape:
    """Return the shape of a new model, with the maximum vocabulary, because its tokenizer is not trained yet."""
    sizes: dict[str, Any] = {
        "hidden": settings.hidden,
        "layers": settings.layers,
        "heads": settings.heads,
        "kv_heads": settings.heads,
        "head_dim": settings.hidden // settings.heads,
        "vocabulary": settings.vocabulary,
    }
    if settings.family == "gpt2":
        mlp = settings.mlp or 4 * settings.hidden
        return ModelShape("gpt2", **sizes, mlp=mlp, positions=settings.max_positions)
    # the same default as in models/build.py
    mlp = settings.mlp or settings.hidden * 8 // 3 // 8 * 8
    return ModelShape("llama", **sizes, mlp=mlp)


def source_shape(source: str, revision: str | None = None) -> ModelShape:
    """Return the shape of a directory's model or its adapter's base, of a cached hub model, or of one in PUBLISHED."""
    check_bases(source)
    base = read_object(Path(source) / "adapter_config.json").get("base_model_name_or_path")
    if base and not (Path(source) / "config.json").is_file():
        return source_shape(base)
    config = _local_config(source, revision)
    if config is not None:
        return config_shape(config)
    # the same model has two names on the hub, with and without its owner
    bare = source.removeprefix("openai-community/")
    names = (bare, f"{bare}-Instruct")  # instruction-tuned models have the shape of their base
    published = next((PUBLISHED[name] for name in names if name in PUBLISHED), None)
    if published is None:
        raise ConfigError(
            f"the shape of {source} is unknown: it is not on this machine, and a plan downloads nothing; download its "
            f"config with `hf download {source} config.json`, or set its local directory"
        )
    return published


def _local_config(source: str, revision: str | None) -> Any:
    from transformers import AutoConfig

    config = read_object(Path(source) / "config.json")
    if family_of(str(config.get("model_type"))):
        register()
    try:
        return AutoConfig.from_pretrained(source, revision=revision, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        return None


def config_shape(config: Any) -> ModelShape:
    """Return the shape of a transformers config. Raises ConfigError for an architecture outside the two families."""
    kind = config.model_type
    known = ("gpt2", *LLAMA_LIKE, *GEMMAS, *EXPERTS)
    if kind not in known:  # its config may not have the names below
        raise ConfigError(f"model_type={kind} has no memory plan; supported are {', '.join(known)}")
    hidden = config.hidden_size
    heads = config.num_attention_heads
    name = str(getattr(config, "name_or_path", "") or kind)
    sizes = {"hidden": hidden, "layers": config.num_hidden_layers, "heads": heads, "vocabulary": config.vocab_size}
    if kind == "gpt2":
        return ModelShape(
            "gpt2",
            **sizes,
            kv_heads=heads,
            head_dim=hidden // heads,
            positions=config.n_positions,
            mlp=config.n_inner or 4 * hidden,
            tied=bool(config.tie_word_embeddings),
            name=name,
        )
    if getattr(config, "mlp_only_layers", None) or getattr(config, "decoder_sparse_step", 1) != 1:
        raise ConfigError(f"model_type={kind} with experts in only some blocks has no memory plan")
    bias = bool(getattr(config, "attention_bias", False))  # Qwen2 always has biases on queries, keys and values
    return ModelShape(
        "llama",
        **sizes,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or hidden // heads,
        mlp=getattr(config, "moe_intermediate_size", None) or config.intermediate_size,
        tied=bool(config.tie_word_embeddings),
        qkv_bias=bias or kind == "qwen2",
        out_bias=bias,
        head_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        experts=config.num_local_experts if kind in EXPERTS else 0,
        active=config.num_experts_per_tok if kind in EXPERTS else 0,
        scaled_norms=kind in GEMMAS,
        post_norms=kind in ("gemma2", "gemma3_text"),
        capped_scores=kind == "gemma2" and config.attn_logit_softcapping is not None,
        capped_logits=bool(getattr(config, "final_logit_softcapping", None)),
        own_decoder=kind in LLAMA_LIKE,
        name=name,
    )

"""Model shapes without weights: from the settings of a new model, a folder's config.json, or the hub's local cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.files import read_json
from rlhf_lab.memory.sizes import PUBLISHED, ModelShape
from rlhf_lab.models.settings import Scratch
from rlhf_lab.stages.artifacts import External, Stage

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")


def policy_shape(stage: Stage) -> ModelShape:
    """Shape of the policy that a stage trains or starts from.

    Raises ConfigError for a hub model that is not on this machine, and for an unknown architecture.
    """
    need = stage.needs.get("policy") or stage.needs.get("reference")
    if need is not None:
        return need_shape(need)
    settings = stage.config.model
    return scratch_shape(settings) if isinstance(settings, Scratch) else source_shape(settings.path, settings.revision)


def need_shape(need: Stage | External) -> ModelShape:
    """Shape of the policy that a stage makes or a folder holds; of the model itself where it is built."""
    if isinstance(need, External):
        return source_shape(need.source)
    return source_shape(need.model) if Path(need.model, "config.json").is_file() else policy_shape(need)


def scratch_shape(settings: Scratch) -> ModelShape:
    """Of a new model, with as many tokens as its tokenizer may have: how many it has is known once it is trained."""
    sizes = (settings.hidden, settings.layers, settings.heads, settings.heads, settings.hidden // settings.heads)
    if settings.family == "gpt2":
        return ModelShape(
            "gpt2", *sizes, settings.mlp or 4 * settings.hidden, settings.vocabulary, settings.max_positions
        )
    return ModelShape("llama", *sizes, settings.mlp or settings.hidden * 8 // 3 // 8 * 8, settings.vocabulary)


def source_shape(source: str, revision: str | None = None) -> ModelShape:
    """Of a folder (an adapter's base counts), a cached hub model, or a hub model whose shape is built in."""
    base = (read_json(Path(source) / "adapter_config.json") or {}).get("base_model_name_or_path")
    if base and not (Path(source) / "config.json").is_file():
        return source_shape(base)
    config = _local_config(source, revision)
    if config is not None:
        return config_shape(config)
    bare = source.removeprefix("openai-community/")
    known = next((PUBLISHED[name] for name in (bare, f"{bare}-Instruct") if name in PUBLISHED), None)
    if known is None:
        raise ConfigError(
            f"the shape of {source} is unknown: it is not on this machine, and a plan downloads nothing; fetch its "
            f"config with `hf download {source} config.json`, or write the folder that holds it"
        )
    return known


def _local_config(source: str, revision: str | None) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(source, revision=revision, local_files_only=True)
    except (OSError, ValueError):
        return None


def config_shape(config: Any) -> ModelShape:
    """Of a transformers config. Raises ConfigError for an architecture outside the two families."""
    kind, hidden, heads = config.model_type, config.hidden_size, config.num_attention_heads
    name = str(getattr(config, "name_or_path", "") or kind)
    sizes = {"hidden": hidden, "layers": config.num_hidden_layers, "heads": heads, "vocabulary": config.vocab_size}
    if kind == "gpt2":
        more: dict[str, Any] = {"kv_heads": heads, "head_dim": hidden // heads, "positions": config.n_positions}
        return ModelShape("gpt2", **sizes, **more, mlp=config.n_inner or 4 * hidden, tied=True, name=name)
    if kind not in LLAMA_LIKE:
        raise ConfigError(f"model_type={kind} has no memory plan; known are gpt2, {', '.join(LLAMA_LIKE)}")
    bias = bool(getattr(config, "attention_bias", False))
    return ModelShape(
        "llama",
        **sizes,
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or hidden // heads,
        mlp=config.intermediate_size,
        tied=bool(config.tie_word_embeddings),
        qkv_bias=bias or kind == "qwen2",
        out_bias=bias,
        head_norm=kind == "qwen3",
        name=name,
    )

"""Whether servers that somebody started are what a rollout needs: their arithmetic, their model, adapters they take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models import lora
from rlhf_lab.sampling.vllm.server import server_rank

Described = Mapping[str, Mapping[str, Any]]
"""Address of a server → what `plugin/lab_worker.py` says of it."""
WITHOUT_EFFECT = (
    *("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "num_labels", "problem_type"),
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "pretraining_tp", "quantization_config"),
    *("initializer_range", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout"),
)
"""Of a config: what changes no log-probability. Dropout is off wherever log-probabilities are computed."""


def require(described: Described, dtype: str, config: Mapping[str, Any]) -> None:
    """Raise ConfigError unless all servers compute what the trainer computes.

    Args:
        dtype: that the rollout asks for.
        config: of the trainer's model.
    """
    problems = []
    by_identity: dict[str, str] = {}
    for url, server in described.items():
        where = f"the vLLM server at {url}"
        if server["dtype"] != dtype:
            problems.append(
                f"{where} computes in {server['dtype']} and rollout.dtype asks for {dtype}; start it with "
                f"--dtype {dtype}, or set rollout.dtype={server['dtype']}"
            )
        if server["logprobs"] != "processed_logprobs":
            problems.append(
                f"{where} reports {server['logprobs']}, which are not of the distribution that it samples from; start "
                "it with --logprobs-mode processed_logprobs"
            )
        differing = [
            f"{name} {there} in place of {here}" for name, here, there in differences(config, server["config"])
        ]
        if differing:
            problems.append(
                f"{where} was started with another model: {', '.join(differing)}; start it with the folder of the "
                "policy (vllm serve model=FOLDER)"
            )
        heads = server["heads"]
        if heads["known"] and heads["size"] not in heads["known"]:
            problems.append(
                f"{where} computes attention heads of {', '.join(map(str, heads['known']))} numbers, and the model has "
                f"heads of {heads['size']}; take another model (of model=tiny: model.heads=2), or rollout=local"
            )
        if server["identity"] in by_identity:
            problems.append(f"rollout.urls names one server twice: {by_identity[server['identity']]} and {url}")
        by_identity[server["identity"]] = url
    if problems:
        raise ConfigError(problems)


def differences(here: Mapping[str, Any], there: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(name, value here, value there) where two configs differ in what both of them say.

    What one of them alone says is new in its version of transformers.
    """
    for name in here.keys() & there.keys() - set(WITHOUT_EFFECT):
        mine, other = here[name], there[name]
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from differences(mine, other, f"{prefix}{name}.")
        elif mine != other:
            yield f"{prefix}{name}", mine, other


def as_text(config: Any) -> dict[str, Any]:
    """A model's config as it travels to and from servers."""
    values: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=str))
    return values


def why_merged(described: Described, products: lora.Products) -> str:
    """Why an adapter cannot be sent by itself; empty where all servers take it."""
    rank = lora.rank_of(products)
    layers = {name.rpartition(".")[2] for name in products}
    for url, server in described.items():
        where, takes = f"the vLLM server at {url}", server["adapters"]
        if not takes["rank"]:
            needed = server_rank(rank)
            return f"{where} takes no adapters" + (f" (vllm serve adapter_rank={needed})" if needed else "")
        if rank > takes["rank"]:
            return f"{where} takes adapters of rank {takes['rank']} at most, and this one has {rank}"
        unknown = sorted(layers - set(takes["layers"]))
        if unknown:
            return f"{where} cannot adapt {', '.join(unknown)}"
    return ""

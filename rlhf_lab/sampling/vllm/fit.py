"""Check that running servers suit a rollout: their dtype, their model, and the adapters that they support."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models import lora
from rlhf_lab.sampling.vllm.server import server_rank

Described = Mapping[str, Mapping[str, Any]]
"""Address of a server → description of the server by `plugin/lab_worker.py`."""
WITHOUT_EFFECT = (
    *("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "num_labels", "problem_type"),
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "pretraining_tp", "quantization_config"),
    *("initializer_range", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "dropout"),
)
"""Config keys that change no log-probability. Dropout is off wherever log-probabilities are computed."""


def require(described: Described, dtype: str, config: Mapping[str, Any]) -> None:
    """Raise ConfigError unless all servers compute what the trainer computes.

    Args:
        dtype: dtype that the rollout requires.
    """
    problems = []
    # identity of a server process → its address, to find two addresses of one server
    by_identity: dict[str, str] = {}
    for url, server in described.items():
        where = f"the vLLM server at {url}"
        if server["dtype"] != dtype:
            problems.append(
                f"{where} computes in {server['dtype']}, but rollout.dtype requires {dtype}; start it with "
                f"--dtype {dtype}, or set rollout.dtype={server['dtype']}"
            )
        # raw log-probabilities ignore temperature and truncation
        if server["logprobs"] != "processed_logprobs":
            problems.append(
                f"{where} reports {server['logprobs']}, which are not those of the sampled distribution; start it with "
                "--logprobs-mode processed_logprobs"
            )
        differing = []
        for name, here, there in differences(config, server["config"]):
            differing.append(f"{name} is {there} instead of {here}")
        if differing:
            problems.append(
                f"{where} was started with another model: {', '.join(differing)}; start it with the directory of the "
                "policy (vllm serve model=DIR)"
            )
        heads = server["heads"]
        if heads["known"] and heads["size"] not in heads["known"]:
            # vLLM on a CPU starts with any head size, but its engine ends at the first response
            known_sizes = ", ".join(map(str, heads["known"]))
            problems.append(
                f"{where} supports attention heads of size {known_sizes}, but the model has heads of size "
                f"{heads['size']}; use another model (with model=tiny, set model.heads=2), or rollout=local"
            )
        if server["identity"] in by_identity:
            other = by_identity[server["identity"]]
            problems.append(f"rollout.urls names the same server twice: {other} and {url}; remove one of them")
        by_identity[server["identity"]] = url
    if problems:
        raise ConfigError(problems)


def differences(here: Mapping[str, Any], there: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, trainer's value, server's value) for keys that both configs have with different values.

    A key that only one config has is ignored: it is new in that side's version of transformers.
    """
    for name in here.keys() & there.keys() - set(WITHOUT_EFFECT):
        mine, other = here[name], there[name]
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from differences(mine, other, f"{prefix}{name}.")
        elif mine != other:
            yield f"{prefix}{name}", mine, other


def as_text(config: Any) -> dict[str, Any]:
    """Return a model's config in the form in which it is exchanged with servers (values that JSON can hold)."""
    text = json.dumps(config.to_dict(), default=str)
    values: dict[str, Any] = json.loads(text)
    return values


def why_merged(described: Described, products: lora.Products) -> str:
    """Return why an adapter cannot be sent without its base; empty if all servers support it."""
    rank = lora.rank_of(products)
    # vLLM knows layers by the last part of their names
    layers = {name.rpartition(".")[2] for name in products}
    for url, server in described.items():
        where, takes = f"the vLLM server at {url}", server["adapters"]
        if not takes["rank"]:
            needed = server_rank(rank)
            hint = f" (start it with vllm serve adapter_rank={needed})" if needed else ""
            return f"{where} does not accept adapters{hint}"
        if rank > takes["rank"]:
            return f"{where} accepts adapters up to rank {takes['rank']}, but this adapter has rank {rank}"
        unknown = sorted(layers - set(takes["layers"]))
        if unknown:
            return f"{where} does not support adapters on {', '.join(unknown)}"
    return ""

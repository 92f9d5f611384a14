"""Fit of a vLLM server to a rollout (sampling/vllm/fit.py): configs compared, adapters that it takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.sampling.vllm import fit

CONFIG = {"hidden_size": 64, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}, "eos_token_id": 3}
PRODUCTS = {"layers.0.self_attn.q_proj": (torch.zeros(4, 64), torch.zeros(64, 4))}
"""An adapter of rank 4 on one layer."""


def server(**values: Any) -> dict[str, Any]:
    described = {"dtype": "float32", "logprobs": "processed_logprobs", "config": CONFIG, "identity": "a"}
    adapters = {"rank": 8, "layers": ["k_proj", "q_proj"]}
    return {**described, "heads": {"size": 32, "known": [32, 64]}, "adapters": adapters, **values}


def test_differences_are_of_what_both_configs_say_and_has_an_effect() -> None:
    theirs = {
        "hidden_size": 64,
        "rope_parameters": {"rope_theta": 5e5, "rope_type": "default", "factor": 2},  # a key that is new there
        "eos_token_id": 7,  # replies end where the lab says
        "sliding_window": None,
    }
    assert list(fit.differences(CONFIG, theirs)) == [("rope_parameters.rope_theta", 1e4, 5e5)]


def test_every_problem_of_every_server_is_named() -> None:
    fit.require({"one": server(), "two": server(identity="b")}, "float32", CONFIG)
    bad = server(dtype="bfloat16", heads={"size": 16, "known": [32, 64]})
    with pytest.raises(ConfigError) as error:
        fit.require({"one": server(), "two": bad}, "float32", CONFIG)
    for words in ("two computes in bfloat16", "heads of size 32, 64", "names the same server twice: one and two"):
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("adapters", "reason"),
    [
        ({"rank": 8, "layers": ["q_proj"]}, ""),
        ({"rank": 0, "layers": []}, "does not accept adapters (start it with vllm serve adapter_rank="),
        ({"rank": 2, "layers": ["q_proj"]}, "accepts adapters up to rank 2, but this adapter has rank 4"),
        ({"rank": 8, "layers": ["qkv_proj"]}, "does not support adapters on q_proj"),
    ],
)
def test_why_an_adapter_is_merged(adapters: dict[str, Any], reason: str) -> None:
    found = fit.why_merged({"one": server(adapters=adapters)}, PRODUCTS)
    assert reason in found and bool(found) == bool(reason)

"""Rotary embeddings whose frequencies depend on the length of the sequence: refused where lengths would reach that.

With NTK scaling ("dynamic") or LongRoPE, the keys that a sampler has cached were turned by the frequencies of a shorter
sequence than the one that training computes at once, so the two are different policies.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import planned
from test_sampler import flat
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models import model_files
from rlhf_lab.models.build import load_policy
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.sampling.local import LocalSampler, Samples
from rlhf_lab.sampling.settings import Local
from rlhf_lab.stages import preflight

EOS, ORIGINAL = 1, 16
NTK = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONG = {
    "rope_type": "longrope",
    "factor": 4.0,
    "rope_theta": 10000.0,
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0] * 4,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": ORIGINAL}
PROMPTS = [[5, 6, 7, 8], [9, 10, 11]]


def saved(rope: dict[str, Any], positions: int, directory: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        vocab_size=97,
        eos_token_id=EOS,
        bos_token_id=None,
        max_position_embeddings=positions,
        rope_parameters=dict(rope),
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.3)
    model.save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def loaded(rope: dict[str, Any], positions: int, directory: Path) -> nn.Module:
    return load_policy(saved(rope, positions, directory), HuggingFace(path=str(directory)))


def sample(model: nn.Module, tokens: int) -> Samples:
    return LocalSampler(Local(max_new_tokens=tokens, max_prompt_tokens=8), [EOS]).sample(model, PROMPTS, 2, seed=0)


def gap(model: nn.Module, samples: Samples) -> float:
    """Largest difference in nats between the sampler's log-probabilities and those that training computes."""
    rows, sampled = flat(samples)
    with torch.no_grad():
        return float((token_logps(model, TokenBatch.from_rows(rows)).logps_N - sampled).abs().max())


@pytest.mark.parametrize(("rope", "positions"), [(NTK, ORIGINAL), (LONG, 64)])
def test_beyond_the_original_length_the_model_refuses(rope: dict[str, Any], positions: int, tmp_path: Path) -> None:
    """A prompt of 4 tokens and 12 new ones fill the 16 positions; 30 new ones do not fit."""
    model = loaded(rope, positions, tmp_path)
    assert gap(model, sample(model, 12)) < 1e-5
    with pytest.raises(ConfigError, match=r"a row.s length=34 exceeds 16, .*yarn or linear"):
        sample(model, 30)
    with pytest.raises(ConfigError, match=r"a row.s length=17"):
        token_logps(model, TokenBatch.from_rows([([5] * 8, [6] * 9)]))


def test_a_fixed_scaling_goes_on(tmp_path: Path) -> None:
    model = loaded(YARN, 64, tmp_path)
    assert gap(model, sample(model, 30)) < 1e-5


@pytest.mark.parametrize("rope", [NTK, LONG])
def test_lengths_are_compared_before_anything_is_built(rope: dict[str, Any], tmp_path: Path) -> None:
    directory = saved(rope, ORIGINAL if rope is NTK else 1024, tmp_path / "model")
    model = ("model=hf", f"model.path={directory}", "data=mini_hh_small", "rollout.max_prompt_tokens=8")

    def problems(*overrides: str) -> list[str]:
        return preflight.problems(planned("dpo", *model, f"needs.policy={directory}", "reward=length", *overrides))

    found = "\n".join(problems("algorithm.max_length=17", "rollout.max_new_tokens=30"))
    assert "algorithm.max_length=17 exceeds 16, the length beyond which" in found
    assert "rollout.max_prompt_tokens + rollout.max_new_tokens=38 exceeds" in found
    assert f"({rope['rope_type']})" in found and "yarn or linear" in found
    assert problems("algorithm.max_length=16", "rollout.max_new_tokens=8") == []


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 64}, None),
        ({"max_position_embeddings": 64, "rope_scaling": None}, None),
        ({"max_position_embeddings": 64, "rope_parameters": YARN}, None),
        ({"max_position_embeddings": 64, "rope_parameters": NTK}, ("dynamic", 64)),
        ({"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("dynamic", 64)),
        ({"max_position_embeddings": 64, "rope_parameters": LONG}, ("longrope", 16)),
        (
            {
                "max_position_embeddings": 64,
                "original_max_position_embeddings": 32,
                "rope_scaling": {"type": "longrope"},
            },
            ("longrope", 32),
        ),
        ({"max_position_embeddings": 64, "rope_parameters": {"full": NTK, "sliding": YARN}}, ("dynamic", 64)),
    ],
)
def test_what_a_config_says_of_its_rotary_embedding(config: dict[str, Any], limit: Any) -> None:
    assert model_files.rope_limit(config) == limit


def test_an_adapter_has_the_positions_of_its_base(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "base")}))
    assert model_files.positions(model_files.config_of(str(tmp_path))) == 64

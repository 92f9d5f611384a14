"""Sliding windows of Gemma 2 and 3, with unchanged settings of `model=hf`: log-probabilities and sampler.

Gemma 2 caps its attention scores, which PyTorch's fused attention cannot. Without windows: test_families.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import pytest
import torch
from test_sampler import flat
from torch import nn

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.models.build import load_policy, load_reward_model, reward_scores
from rlhf_lab.models.encoding import TokenBatch
from rlhf_lab.models.logprobs import token_logps
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local

VOCABULARY, EOS = 97, 1
WINDOWS: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 8},
    "gemma3": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
}


def saved(family: str, directory: Path) -> nn.Module:
    """A random model, written to a directory; its attention is Hugging Face's eager one."""
    model: Any = families.random_model(family, **WINDOWS[family], attn_implementation="eager")
    model.save_pretrained(directory)
    return model


@pytest.mark.parametrize("family", WINDOWS)
def test_log_probabilities_and_sampler_are_those_of_the_models_own_forward(family: str, tmp_path: Path) -> None:
    """Responses of up to 20 tokens after prompts of up to 12, so windows of 8 are left behind."""
    original = saved(family, tmp_path)
    model = load_policy(tmp_path, HuggingFace(path=str(tmp_path)))
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(2, VOCABULARY, (length,), generator=generator).tolist() for length in (5, 9, 3, 12)]
    samples = LocalSampler(Local(max_new_tokens=20, max_prompt_tokens=20), [EOS]).sample(model, prompts, 3, seed=0)
    rows, sampled = flat(samples)
    with torch.no_grad():
        ours = token_logps(model, TokenBatch.from_rows(rows)).logps_N
    expected = families.forward_logps(original, rows)
    assert (ours - expected).abs().max() < 1e-5
    assert (sampled - expected).abs().max() < 1e-5


def test_a_reward_model_from_a_model_without_fused_attention(tmp_path: Path) -> None:
    saved("gemma2", tmp_path)
    model = load_reward_model(tmp_path, HuggingFace(path=str(tmp_path)))
    assert reward_scores(model, TokenBatch.from_rows([([5, 6], [7]), ([8], [9])])).tolist() == [0, 0]


def test_an_attention_that_the_model_cannot_have_is_refused(tmp_path: Path) -> None:
    saved("gemma2", tmp_path)
    with pytest.raises(ArtifactError, match=r"Gemma2ForCausalLM.*set model.attention=auto"):
        load_policy(tmp_path, HuggingFace(path=str(tmp_path), attention="sdpa"))

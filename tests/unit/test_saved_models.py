"""Files that `models/build.py` writes next to the weights, for programs that generate with a saved model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support import gpt2_tokenizer, save_tiny
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForSequenceClassification

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.models import build
from rlhf_lab.models.build import load_encoder, load_policy, load_reward_model, save_model, scratch_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.settings import HuggingFace, Scratch


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_saved_model_generates_with_a_cache_and_its_tokenizer_knows_its_length(family: str, tmp_path: Path) -> None:
    tokenizer = gpt2_tokenizer(["some words to learn"])
    assert tokenizer.model_max_length > 10**20  # nobody told it
    settings = Scratch(family=family, hidden=16, layers=1, heads=2, max_positions=64)
    save_model(scratch_policy(settings, tokenizer, seed=0), Encoder(tokenizer), tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).use_cache is True
    assert GenerationConfig.from_pretrained(tmp_path).use_cache is True
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 64


@pytest.mark.parametrize(
    "invalid", [{"temperature": 0.9, "top_p": 0.6}, {"do_sample": False, "top_k": 3, "pad_token_id": -1}]
)
def test_a_model_whose_generation_config_is_not_valid_can_be_saved(invalid: dict[str, Any], tmp_path: Path) -> None:
    """Such as that of Vicuna; transformers loads it, and refuses to save it after the training."""
    source = save_tiny("llama", gpt2_tokenizer(["some words to learn"]), tmp_path / "source")
    (source / "generation_config.json").write_text(json.dumps(invalid | {"eos_token_id": [0, 5]}))
    settings = HuggingFace(path=str(source))
    save_model(load_policy(source, settings), load_encoder(source, settings), tmp_path / "saved")
    saved = GenerationConfig.from_pretrained(tmp_path / "saved")
    assert saved.eos_token_id == [0, 5]
    assert saved.temperature is None


def test_end_tokens_are_read_at_the_revision_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = gpt2_tokenizer(["some words to learn"])
    requested = []

    def of_hub(source: str, *, revision: str | None, **_: Any) -> Any:
        requested.append((source, revision))
        return tokenizer if "trust_remote_code" in _ else GenerationConfig(eos_token_id=7 if revision == "v2" else 8)

    monkeypatch.setattr(build.AutoTokenizer, "from_pretrained", of_hub)
    monkeypatch.setattr(build.GenerationConfig, "from_pretrained", of_hub)
    encoder = load_encoder("owner/name", HuggingFace(path="owner/name", revision="v2"))
    assert requested == [("owner/name", "v2")] * 2
    assert 7 in encoder.stop_ids


@pytest.mark.parametrize(
    ("rename", "missing"),
    [
        (lambda name: f"_orig_mod.{name}", r"2\d of its tensors, such as .*save_pretrained, without prefixes"),
        (
            lambda name: name.replace("up_proj", "other"),
            r"2 of its tensors, such as model\.layers\.0\.mlp\.up_proj\.weight",
        ),
    ],
)
def test_a_model_whose_files_lack_tensors_is_refused(
    rename: Callable[[str], str], missing: str, tmp_path: Path
) -> None:
    """transformers gives them random values, and its warning is not shown."""
    source = save_tiny("llama", gpt2_tokenizer(["some words to learn"]), tmp_path)
    file = source / "model.safetensors"
    tensors = load_file(file)
    save_file({rename(name): tensor for name, tensor in tensors.items()}, file, {"format": "pt"})
    for load in (load_policy, load_reward_model):
        with pytest.raises(ArtifactError, match=f"its files lack {missing}"):
            load(source, HuggingFace(path=str(source)))


def test_a_reward_model_is_no_policy(tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    load_reward_model(tmp_path, HuggingFace(path=str(tmp_path)))
    with pytest.raises(ArtifactError, match=r"such as lm_head\.weight.*a reward model has no lm_head"):
        load_policy(tmp_path, HuggingFace(path=str(tmp_path)))

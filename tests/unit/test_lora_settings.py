"""`model.lora`: what is refused, what it does to a learning rate, and what it does to a stage's key."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import checked, planned, save_tiny
from torch import nn

from rlhf_lab.core.errors import ConfigError, MissingDependency
from rlhf_lab.models.lora import trainable
from rlhf_lab.models.settings import LoRA
from rlhf_lab.models.tokenizer import train_tokenizer
from rlhf_lab.stages import artifacts

SMALL = ("data=mini_hh_small",)


def key(*overrides: str) -> str:
    return planned("dpo_lora", *SMALL, *overrides).key


def test_an_adapter_takes_a_multiple_of_the_models_rate_and_a_written_rate_as_it_is() -> None:
    full = checked("dpo").algorithm.lr
    assert checked("dpo_lora").algorithm.lr == pytest.approx(7 * full)
    assert checked("dpo", "model.lora.rank=4").algorithm.lr == pytest.approx(10 * full)
    assert checked("dpo_lora", "model.lora.lr_multiple=3").algorithm.lr == pytest.approx(3 * full)
    assert checked("dpo_lora", "model.lora.rank=0").algorithm.lr == full
    assert checked("dpo_lora", "algorithm.lr=0.5").algorithm.lr == 0.5


def test_the_multiple_is_of_every_adamw() -> None:
    """8-bit moments change how an optimiser stores its state, not how large its steps are."""
    full = checked("sft", "algorithm.optimizer=adamw_8bit").algorithm
    adapter = checked("sft_lora", "algorithm.optimizer=adamw_8bit").algorithm
    assert full.optimizer == adapter.optimizer == "adamw_8bit"
    assert adapter.lr == pytest.approx(10 * full.lr)
    full, adapter = checked("sft").algorithm, checked("sft_lora").algorithm
    assert full.optimizer == adapter.optimizer == "muon"
    assert (full.lr, full.muon_lr) == (adapter.lr, adapter.muon_lr)
    tuned = checked("sft_lora", "algorithm.optimizer=adamw").algorithm
    assert tuned.lr == pytest.approx(10 * full.lr)


@pytest.mark.parametrize(("critic", "multiple"), [("zero", 10), ("reward_model", 10), ("shared", 1)])
def test_a_critic_takes_the_multiple_where_it_has_an_adapter(critic: str, multiple: int) -> None:
    """A shared critic is a linear head on the policy's hidden states: all its parameters are trained."""
    lora = ("model.lora.rank=4", "stages.sft.model.lora.rank=0", "stages.reward_model.model.lora.rank=0")
    chosen = (f"algorithm.critic={critic}", "algorithm.critic_warmup=0")
    full = checked("ppo", *chosen).algorithm
    adapter = checked("ppo", *chosen, *lora).algorithm
    assert adapter.lr == pytest.approx(10 * full.lr)
    assert adapter.critic_lr == pytest.approx(multiple * full.critic_lr)
    assert checked("ppo", *chosen, *lora, "algorithm.critic_lr=0.5").algorithm.critic_lr == 0.5


def test_a_new_model_has_nothing_an_adapter_could_stand_on() -> None:
    for command in (("sft", "model.lora.rank=4"), ("dpo", "model.lora.rank=4")):
        with pytest.raises(ConfigError, match=r"model.lora.rank=4 trains an adapter on .*stages.RECIPE.model.lora"):
            planned(*command)
    assert planned("dpo", "model.lora.rank=4", "stages.sft.model.lora.rank=0").key
    assert planned("sft", "model.lora.rank=4", "model=hf", "model.path=owner/name").key


def test_without_an_adapter_the_section_is_not_part_of_a_key() -> None:
    simple = planned("dpo", *SMALL).key
    assert key("model.lora.rank=0") == simple  # and SFT and the reward model are the same stages
    assert key("model.lora.rank=0", "model.lora.alpha=3", "model.lora.lr_multiple=2") == simple
    known = {simple, key(), key("model.lora.rank=4"), key("model.lora.alpha=3"), key("model.lora.rslora=true")}
    assert len(known | {key("model.lora.targets=[q_proj]"), key("model.lora.lr_multiple=2")}) == 7


def test_the_base_of_an_adapter_folder_counts(tmp_path: Path) -> None:
    base = save_tiny("llama", train_tokenizer(["a b c"], 300), tmp_path / "base")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    before = artifacts.model_identity(str(adapter))
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    assert artifacts.model_identity(str(adapter)) != before


def test_peft_is_imported_only_where_an_adapter_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    model = nn.Linear(2, 2)
    assert trainable(model, LoRA(0), seed=0) is model
    with pytest.raises(MissingDependency, match=r"pip install 'rlhf_lab\[lora\]'"):
        trainable(model, LoRA(1), seed=0)

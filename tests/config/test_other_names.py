"""Keys that do not exist get one short hint: another tool's name, a close one, or where the settings are listed."""

from __future__ import annotations

import pytest

from rlhf_lab.config import command_line, compose, registry, typed_overrides
from rlhf_lab.config.other_names import OTHER_NAMES, hint
from rlhf_lab.core.errors import ConfigError


def test_every_suggested_setting_exists():
    keys: set[str] = set()
    for recipe in ("ppo", "dpo", "dpo_iterative", "best_of_n"):
        keys |= set(_keys(compose.compose([f"+recipe={recipe}", "tracker=wandb"])))
    keys |= set(_keys(compose.compose(["+recipe=dpo", "model=hf", "data=pairs"])))
    missing = {target for targets in OTHER_NAMES.values() for target in targets} - keys - {".penalty_weight"}
    assert not missing
    assert "reward.terms.bt.penalty_weight" in keys


def _keys(values: dict, prefix: str = "") -> list[str]:
    keys = []
    for name, value in values.items():
        keys += [f"{prefix}{name}", *(_keys(value, f"{prefix}{name}.") if isinstance(value, dict) else ())]
    return keys


@pytest.mark.parametrize(
    ("recipe", "key", "expected"),
    [
        ("dpo", "algorithm.learning_rate", "it is called algorithm.lr here"),
        ("grpo", "reward.terms.bt.lambda", "it is called reward.terms.bt.penalty_weight here"),
        ("ppo", "algorithm.lambda", "it is called algorithm.lam here"),
        ("ppo", "kl_coef", "it is called algorithm.beta here"),
        ("grpo", "algorithm.num_generations", "it is called algorithm.group_size here"),
        ("dpo_iterative", "algorithm.num_generations", "it is called algorithm.samples_per_prompt here"),
        ("ppo", "algorithm.cliprange", "it is called algorithm.clip_high and algorithm.clip_low here"),
        ("dpo", "rollout.beta", "did you mean algorithm.beta?"),
        ("dpo", "algorithm.epoch", "did you mean epochs?"),
        ("sft", "algorithm.value_lam", "value_lam is a setting of another algorithm (ppo)"),
        ("attack", "algorithm.prompts", "did you mean evaluation.prompts?"),
        ("sft", "data.path", "path is a setting of another data (graded, pairs, prompts)"),
        ("sft", "algorithm.xyz", "`explain algorithm` lists its settings"),
    ],
)
def test_the_hint_of_an_unknown_key(recipe, key, expected):
    with pytest.raises(ConfigError) as raised:
        command_line.check_command([f"+recipe={recipe}", f"{key}=1"])
    (problem,) = raised.value.problems
    assert problem.startswith(f"{key} is not a setting")
    assert problem.endswith(f"; {expected}")


def test_what_was_chosen_may_lack_the_setting():
    assert hint("algorithm.kl_coef", {"algorithm": {"lr": 1}}) == (
        "; it is called algorithm.beta here, which the chosen options do not have"
    )
    assert hint("algorithm.kl_coef", {}) == "; it is called algorithm.beta here"
    assert hint("algorithm.zzz", {"algorithm": {"lr": 1}}) == ""


def test_one_message_for_a_kind_that_is_typed():
    with pytest.raises(ConfigError) as raised:
        command_line.check_command(["+recipe=dpo", "model.kind=hf", "model.path=gpt2", "model.hidden=x"])
    (problem,) = raised.value.problems
    assert problem.startswith("model.kind=hf would keep the settings of kind scratch; choose an option")
    assert problem.endswith("model=gpt2|hf|qwen2.5_0.5b")
    with pytest.raises(ConfigError) as raised:
        command_line.check_command(["+recipe=dpo", "algorithm.kind=dpoo"])
    assert raised.value.problems == ["algorithm.kind=dpoo is not registered; did you mean dpo?"]
    assert command_line.check_command(["+recipe=dpo", "model.kind=scratch"]).configs
    assert "rubric" in registry.kinds("reward")


def test_overrides_of_nothing_that_exists_are_dropped_with_a_message():
    problems = []
    written = ["+recipe=dpo", "model=tny", "algoritm.beta=1", "algorithm.beta=1"]
    usable = typed_overrides.usable_overrides(written, problems)
    assert [override.input_line for override in usable] == ["+recipe=dpo", "algorithm.beta=1"]
    assert problems == [
        "model=tny does not exist; did you mean tiny?",
        "algoritm.beta is not a setting; did you mean algorithm?",
    ]

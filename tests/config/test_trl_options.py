"""`engine=trl`: every setting is translated, done by the lab, or refused with what to write instead."""

from __future__ import annotations

import dataclasses
import re

import pytest
from support import checked, planned

from rlhf_lab.algorithms.policy_gradient.settings import GRPO
from rlhf_lab.algorithms.preference.settings import DPO
from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.algorithms.supervised.settings import SFT
from rlhf_lab.algorithms.trl import options
from rlhf_lab.algorithms.trl.tables import TRAINERS, fixed_to, rows_per_pass
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.sampling.settings import Local, Vllm

SETTINGS = {"sft": SFT, "reward_model": RewardModel, "dpo": DPO, "kto": DPO, "grpo": GRPO, "rloo": GRPO}
ADAMW = ("algorithm.optimizer=adamw", "algorithm.lr=3e-3")
BASE = {
    "sft": ("sft", *ADAMW),
    "reward_model": ("reward_model", *ADAMW),
    "dpo": ("dpo",),
    "kto": ("dpo", "algorithm=kto"),
    "grpo": ("grpo",),
    "rloo": ("grpo", "algorithm=rloo", "algorithm.aggregation=constant", "algorithm.beta=0.4"),
}
"""A command that each trainer takes."""

FIXED_ON_POLICY = {
    *("optimizer", "length_bucket_batches", "token_budget", "kl_controller", "log_ratio_clamp", "target_kl"),
    *("correction", "staleness", "old_logps", "ptx_weight", "dynamic_sampling", "rollout_filter", "curriculum"),
    *("whiten_advantages", "kl_in", "aggregation", "dual_clip"),
    *("batch_rows", "top_k", "top_p", "allowed_tokens", "stop", "dtype", "mode", "urls", "tensor_parallel"),
    *("context_tokens", "weights_folder", "adapters", "timeout_s"),
}
LIMITED = {
    "sft": {"optimizer"},
    "reward_model": {"optimizer", "members", "member_fraction", "length_head", "confidence_weight"},
    "dpo": {"optimizer", "logps"},
    "kto": {"optimizer", "micro_batch_tokens"},
    "grpo": FIXED_ON_POLICY | {"kl_estimator", "clip_low"},
    "rloo": FIXED_ON_POLICY | {"policy_loss", "batch_size"},
}
"""Trainer → settings of which it does not honour all values."""


def problems(recipe: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        checked(recipe, "engine=trl", *overrides)
    return caught.value.problems


@pytest.mark.parametrize("name", TRAINERS)
def test_every_setting_has_a_place_in_the_table(name):
    """A new setting fails here until somebody decides what TRL makes of it."""
    assert set(TRAINERS[name].algorithm) == {f.name for f in dataclasses.fields(SETTINGS[name])}


def test_every_sampling_setting_has_a_place_in_the_table():
    names = {f.name for f in dataclasses.fields(Vllm)}
    assert {f.name for f in dataclasses.fields(Local)} < names
    assert all(set(spec.rollout) == names for spec in TRAINERS.values() if spec.samples)


@pytest.mark.parametrize("name", TRAINERS)
def test_every_refusal_says_what_to_write(name):
    spec = TRAINERS[name]
    options = {**spec.algorithm, **spec.rollout}
    refusals = {key: option.refusal for key, option in options.items() if option.refusal}
    assert refusals.keys() == LIMITED[name]
    for key, refusal in refusals.items():
        assert re.search(r"\b(use|set|leave) ", refusal), key


def test_a_setting_of_which_some_values_cannot_be_honoured():
    option = fixed_to(0, "TRL has no warm-up of a critic", 1)
    assert [option.allowed(value, None) for value in (0, 1, 2)] == [True, True, False]


@pytest.mark.parametrize(
    ("name", "setting", "overrides"),
    [
        ("sft", "optimizer", ("algorithm.optimizer=muon", "algorithm.muon_lr=0.02")),
        ("kto", "micro_batch_tokens", ("algorithm.micro_batch_tokens=512",)),
        ("grpo", "kl_controller", ("algorithm.kl_controller=adaptive",)),
        ("grpo", "staleness", ("algorithm.staleness=1",)),
        ("grpo", "allowed_tokens", ("rollout.allowed_tokens=[yes,no]",)),
        ("grpo", "mode", ("rollout=vllm", "rollout.mode=spawn")),
        ("grpo", "dual_clip", ("algorithm.dual_clip=1.1",)),
        ("grpo", "kl_in", ("algorithm.kl_in=reward",)),
        ("grpo", "kl_estimator", ("algorithm.kl_estimator=k2",)),
        ("grpo", "clip_low", ("algorithm=cispo", "algorithm.clip_low=0.2")),
        ("grpo", "aggregation", ("algorithm.micro_batch_tokens=256", "algorithm.batch_size=16")),
        ("rloo", "kl_in", ("algorithm.kl_in=loss",)),
        ("rloo", "aggregation", ("algorithm.aggregation=token_mean",)),
        ("rloo", "batch_size", ("algorithm.batch_size=16",)),
    ],
)
def test_what_trl_cannot_honour_is_an_error(name, setting, overrides):
    recipe, *base = BASE[name]
    base = [item for item in base if item.partition("=")[0] not in {o.partition("=")[0] for o in overrides}]
    found = [line for line in problems(recipe, *base, *overrides) if f".{setting}=" in line.partition(" ")[0]]
    assert len(found) == 1 and f"engine=trl ({TRAINERS[name].name})" in found[0]


def test_a_penalty_that_is_off_may_stand_anywhere():
    root = checked("grpo", "engine=trl", "algorithm.kl_controller=none", "algorithm.kl_in=reward")
    assert options.arguments(root, device="cpu", directory="", seed=0, steps=1)["beta"] == 0.0


def test_the_tuned_optimizer_of_a_small_model_is_refused_with_both_settings_to_write():
    (line,) = problems("sft")
    assert "algorithm.optimizer=muon" in line
    assert "set algorithm.optimizer=adamw" in line and "algorithm.lr=3e-3" in line


@pytest.mark.parametrize(
    ("recipe", "overrides", "reason"),
    [
        ("ppo", (), "TRL removed PPO and its value heads in 2026; use engine=native"),
        ("dpo_iterative", (), "TRL has no trainer in rounds; use engine=native"),
        ("dpo", ("algorithm=simpo",), "trl.experimental"),
        ("grpo", ("algorithm=remax",), "only supports grpo, dr_grpo and rloo"),
        ("grpo", ("model.family=gpt2",), "use model.family=llama"),
        ("best_of_n", (), "TRL has no trainer for it"),
        ("dpo", ("rollout=vllm",), "DPOTrainer does not sample; use rollout=local"),
        ("grpo", ("rollout=vllm", "model.lora.rank=4", "stages.sft.model.lora.rank=0"), "use rollout=local"),
    ],
)
def test_what_trl_has_no_trainer_for(recipe, overrides, reason):
    assert any(reason in line for line in problems(recipe, *overrides))


ARGUMENT_CASES = {
    "sft": {"learning_rate": 3e-3, "per_device_train_batch_size": 16, "max_length": None},
    "reward_model": {"center_rewards_coefficient": 0.001},
    "dpo": {"loss_type": ["sigmoid"], "beta": 0.3, "label_smoothing": 0.0},
    "kto": {"desirable_weight": 1.0, "undesirable_weight": 1.0, "train_sampling_strategy": "sequential"},
    "grpo": {
        "num_generations": 4,
        "generation_batch_size": 64,
        "num_iterations": 1,
        "scale_rewards": "group",
        "loss_type": "bnpo",
        "epsilon": 0.2,
        "epsilon_high": 0.2,
        "delta": None,
        "temperature": 1.0,
        "max_completion_length": 80,
        "top_k": 0,
    },
    "rloo": {"beta": 0.4, "num_generations": 4, "generation_batch_size": 64},
}


@pytest.mark.parametrize("name", TRAINERS)
def test_arguments(name):
    root = checked(*BASE[name], "engine=trl", "checkpoint.every_steps=7")
    assert root.algorithm.trl_trainer == name
    found = options.arguments(root, device="cpu", directory="here", seed=3, steps=11)
    common = {"output_dir": "here", "seed": 3, "max_steps": 11, "use_cpu": True, "bf16": False, "report_to": []}
    expected = {**common, "save_strategy": "steps", "save_steps": 7, "gradient_checkpointing": False}
    for key, value in {**expected, **ARGUMENT_CASES[name]}.items():
        assert found[key] == value, key
    assert not any(key.startswith(("use_vllm", "vllm")) for key in found)


@pytest.mark.parametrize("name", TRAINERS)
def test_trl_knows_every_argument(name):
    trl = pytest.importorskip("trl", reason="pip install 'rlhf_lab[trl]'")
    root = checked(*BASE[name], "engine=trl")
    known = {f.name for f in dataclasses.fields(getattr(trl, TRAINERS[name].config))}
    assert set(options.arguments(root, device="cpu", directory="", seed=0, steps=1)) <= known


def test_vllm_becomes_arguments():
    root = checked("grpo", "engine=trl", "rollout=vllm", "rollout.mode=server", "rollout.port=9000")
    found = options.arguments(root, device="cuda", directory="", seed=0, steps=1)
    expected = {"use_vllm": True, "vllm_mode": "server", "vllm_server_port": 9000, "vllm_server_host": "127.0.0.1"}
    assert expected.items() <= found.items()


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ((), ("bnpo", "token")),
        (("algorithm.micro_batch_tokens=1024",), ("dapo", "token")),
        (("algorithm.aggregation=sequence_mean",), ("grpo", "token")),
        (("algorithm=dr_grpo",), ("dr_grpo", "token")),
        (("algorithm=gspo",), ("grpo", "sequence")),
        (("algorithm=cispo",), ("cispo", "token")),
    ],
)
def test_loss_types(overrides, expected):
    root = checked("grpo", "engine=trl", *overrides)
    found = options.arguments(root, device="cpu", directory="", seed=0, steps=1)
    assert (found["loss_type"], found["importance_sampling_level"]) == expected


@pytest.mark.parametrize(("budget", "rows"), [(0, 16), (128, 1), (127, 1), (500, 2), (1024, 8), (10**6, 16)])
def test_rows_of_a_pass_fit_the_budget_and_divide_the_batch(budget, rows):
    root = checked(*BASE["sft"], f"algorithm.micro_batch_tokens={budget}")
    assert rows_per_pass(root, 128) == rows


def test_the_engine_of_a_stage_is_part_of_its_key_if_it_is_not_native():
    native, trl = planned("dpo"), planned("dpo", "engine=trl")
    assert native.key != trl.key
    assert native.needs["policy"].key == trl.needs["policy"].key  # both engines start from the same artifacts
    assert native.needs["reward"].key == trl.needs["reward"].key
    assert planned("dpo", "engine=native").key == native.key
    mixed = planned(
        "dpo", "stages.sft.engine=trl", "stages.sft.algorithm.optimizer=adamw", "stages.sft.algorithm.lr=3e-3"
    )
    assert mixed.config.engine == "native" and mixed.needs["policy"].config.engine == "trl"
    assert mixed.key != native.key
    with pytest.raises(ConfigError, match=r"stage sft .*algorithm.optimizer=muon is not supported by engine=trl"):
        planned("dpo", "stages.sft.engine=trl")


def test_vllm_serves_the_named_stage_alone():
    local, vllm = planned("grpo", "engine=trl"), planned("grpo", "engine=trl", "rollout=vllm")
    assert local.key != vllm.key
    assert vllm.needs["reward"].key == local.needs["reward"].key
    assert type(vllm.needs["reward"].config.rollout) is Local

"""`engine=trl`: every setting is translated, done by the lab, or refused with what to write instead."""

from __future__ import annotations

import dataclasses

import pytest
from support import checked, planned

from rlhf_lab.algorithms.policy_gradient.settings import GRPO
from rlhf_lab.algorithms.preference.settings import DPO
from rlhf_lab.algorithms.reward_models.settings import RewardModel
from rlhf_lab.algorithms.supervised.settings import SFT
from rlhf_lab.algorithms.trl import options
from rlhf_lab.algorithms.trl.tables import TRAINERS, rows_per_pass
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

SEVERAL_UPDATES = ("algorithm.batch_size=16",)
ON_POLICY_CASES = {
    "length_bucket_batches": ("algorithm.length_bucket_batches=4",),
    "token_budget": ("algorithm.token_budget=1000",),
    "kl_controller": ("algorithm.kl_controller=adaptive",),
    "log_ratio_clamp": ("algorithm.log_ratio_clamp=5",),
    "target_kl": ("algorithm.target_kl=0.1",),
    "old_logps": ("algorithm.old_logps=sampler",),
    "correction": ("rollout=vllm", "algorithm.correction=token"),
    "staleness": ("algorithm.staleness=1",),
    "ptx_weight": ("algorithm.ptx_weight=0.1",),
    "dynamic_sampling": ("algorithm.dynamic_sampling=1",),
    "rollout_filter": ("algorithm.rollout_filter=best_worst", "algorithm.filter_pool=8"),
    "curriculum": ("algorithm.curriculum=edge",),
    "whiten_advantages": ("algorithm.whiten_advantages=true",),
    "dual_clip": ("algorithm.dual_clip=1.1",),
    "batch_rows": ("rollout.batch_rows=64",),
    "top_k": ("rollout.top_k=20",),
    "top_p": ("rollout.top_p=0.9",),
    "allowed_tokens": ("rollout.allowed_tokens=[yes,no]",),
    "stop": ("rollout.stop=[END]",),
    "dtype": ("rollout.dtype=float32",),
    "mode": ("rollout=vllm", "rollout.mode=spawn"),
    "urls": ("rollout=vllm", "rollout.urls=[http://127.0.0.1:9]"),
    "adapters": ("rollout=vllm", "rollout.adapters=swapped"),
    "tensor_parallel": ("rollout=vllm", "rollout.tensor_parallel=2"),
    "context_tokens": ("rollout=vllm", "rollout.context_tokens=2048"),
    "weights_folder": ("rollout=vllm", "rollout.weights_folder=shared"),
    "timeout_s": ("rollout=vllm", "rollout.timeout_s=60"),
}
REFUSED: dict[str, dict[str, tuple[str, ...]]] = {
    "sft": {"optimizer": ("algorithm.optimizer=muon", "algorithm.muon_lr=0.02")},
    "reward_model": {
        "optimizer": ("algorithm.optimizer=muon", "algorithm.muon_lr=0.02"),
        "members": ("algorithm.members=3",),
        "member_fraction": ("algorithm.member_fraction=0.5",),
        "length_head": ("algorithm.length_head=true",),
        "confidence_weight": ("algorithm.confidence_weight=0.1",),
    },
    "dpo": {"optimizer": ("algorithm.optimizer=muon", "algorithm.muon_lr=0.02"), "logps": ("algorithm.logps=mean",)},
    "kto": {
        "optimizer": ("algorithm.optimizer=muon", "algorithm.muon_lr=0.02"),
        "micro_batch_tokens": ("algorithm.micro_batch_tokens=512",),
    },
    "grpo": {
        **ON_POLICY_CASES,
        "optimizer": ("algorithm.optimizer=muon", "algorithm.muon_lr=0.02"),
        "kl_in": ("algorithm.kl_in=reward",),
        "kl_estimator": ("algorithm.kl_estimator=k2",),
        "clip_low": ("algorithm=cispo", "algorithm.clip_low=0.2"),
        "aggregation": ("algorithm.micro_batch_tokens=256", *SEVERAL_UPDATES),
    },
    "rloo": {
        **ON_POLICY_CASES,
        "optimizer": ("algorithm.optimizer=muon", "algorithm.muon_lr=0.02"),
        "dual_clip": ("algorithm.dual_clip=3",),
        "kl_in": ("algorithm.kl_in=loss",),
        "policy_loss": ("algorithm.policy_loss=dapo",),
        "aggregation": ("algorithm.aggregation=token_mean",),
        "batch_size": SEVERAL_UPDATES,
    },
}
"""Trainer → setting → a value that it cannot honour."""
BY_CHOICE = {("kto", "loss"), ("rloo", "advantage")}
"""Settings that pick the trainer, so that another value means another trainer."""


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
def test_every_refusal_is_tried(name):
    spec = TRAINERS[name]
    refusing = {key for table in (spec.algorithm, spec.rollout) for key, option in table.items() if option.refusal}
    assert refusing == set(REFUSED[name])
    silent = {key for key, option in spec.algorithm.items() if option.note.startswith("must be") and not option.refusal}
    assert {(name, key) for key in silent} <= BY_CHOICE


@pytest.mark.parametrize("name", TRAINERS)
def test_each_trainer_takes_its_base(name):
    root = checked(*BASE[name], "engine=trl")
    assert root.algorithm.trl_trainer == name


@pytest.mark.parametrize(
    ("name", "setting", "overrides"),
    [(name, setting, overrides) for name, cases in REFUSED.items() for setting, overrides in cases.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_trl_cannot_honour_is_an_error_that_says_what_to_write(name, setting, overrides):
    recipe, *base = BASE[name]
    base = [item for item in base if item.partition("=")[0] not in {o.partition("=")[0] for o in overrides}]
    found = [line for line in problems(recipe, *base, *overrides) if f".{setting}=" in line.partition(" ")[0]]
    assert len(found) == 1
    assert f"engine=trl ({TRAINERS[name].name})" in found[0]
    assert any(word in found[0] for word in ("write ", "use ", "set ", "leave ")), found[0]


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

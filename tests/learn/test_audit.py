"""Audited training of small policies: an alarm on a policy that is hacked, none on a healthy one, and exact resume."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, Stopped, model_tensors, planned, stop_at

from rlhf_lab.config import registry
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.loop import Paused

AUDIT = ("reward.audit.labels_per_iteration=16",)
COMMON = (*SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", "algorithm.batch_size=16", "checkpoint.every_steps=1")
ON_POLICY = ("algorithm.optimizer=adamw", "algorithm.log_every_steps=1", "needs.reward=null", "algorithm.beta=0")
KINDS = {
    "ppo": (
        *ON_POLICY,
        "algorithm.lr=1e-2",
        "algorithm.iterations=10",
        "algorithm.prompts_per_iteration=32",
        "algorithm.critic=zero",
        "algorithm.critic_warmup=1",
    ),
    "grpo": (*ON_POLICY, "algorithm.lr=1e-2", "algorithm.iterations=10", "algorithm.prompts_per_iteration=8"),
    "dpo_iterative": (
        "algorithm.optimizer=adamw",
        "algorithm.lr=1e-2",
        "algorithm.beta=0.05",
        "algorithm.prompts_per_round=32",
        "algorithm.corpus_fraction=0",
        "algorithm.rounds=4",
        "needs.baseline=null",
    ),
}
CLASSES = {"ppo": "ProximalPolicyOptimisation", "grpo": "GroupPolicyOptimisation", "dpo_iterative": "IteratedDPO"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("sft")
    longer = ("algorithm.epochs=6", "data.train_pairs=400")
    stage = planned("sft", *SMALL_WORLD, *ONE_LAYER, *longer, "algorithm.lr=1e-2", f"outputs={out}")
    execute(stage)
    return Path(stage.model)


def plan(recipe: str, policy: Path, out: Path, *more: str) -> Stage:
    needs = [f"needs.policy={policy}"]
    if recipe == "dpo_iterative":
        needs.append(f"needs.reward={policy}")
    return planned(recipe, *COMMON, *KINDS[recipe], *needs, *AUDIT, *more, f"outputs={out}")


def result(stage: Stage) -> dict:
    return read_json(stage.directory / "result.json")


def rows(stage: Stage) -> list[dict]:
    return read_jsonl(stage.directory / "audit.jsonl")


HACKED = ("reward=length",)
HEALTHY = ("reward=gold",)

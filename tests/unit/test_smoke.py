"""`size=smoke`: every recipe composes, and what it trains on and samples stays below a bound."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support import check_each, checked, command_inside, planned

from rlhf_lab.config import command_line, inventory, registry
from rlhf_lab.config.smoke import NOTICE
from rlhf_lab.core.capabilities import Capability, reads
from rlhf_lab.stages import artifacts
from rlhf_lab.training.run_settings import Evaluation

PAIRS = ("data=pairs", "data.path=pairs.jsonl")
ANSWERS = ("data=gsm8k", "data.path=problems.jsonl")
TOKENS = {"scratch": 2_000_000, "hf": 20_000}
"""Maximum tokens that a stage trains on or samples, by kind of model: at 0.2M parameters a second, at 124M a minute."""


def trained_tokens(stage: artifacts.Stage) -> float:
    """Maximum tokens of optimiser steps: rows of maximum length."""
    settings, data = stage.config.algorithm, stage.config.data
    if not settings.outputs.model:
        return 0
    length = settings.max_length
    pairs = next(
        getattr(data, k) for k in ("train_pairs", "train_problems", "train_tasks", "max_pairs") if hasattr(data, k)
    )
    if hasattr(settings, "iterations"):
        rollout = stage.config.rollout
        rows = settings.iterations * settings.responses * settings.epochs
        return rows * (rollout.max_prompt_tokens + rollout.max_new_tokens)
    if hasattr(settings, "steps_per_round"):
        return settings.rounds * settings.steps_per_round * settings.batch_size * length
    if hasattr(settings, "rounds"):
        pairs = (
            settings.rounds * settings.prompts_per_round / (1 - settings.corpus_fraction) * settings.updates_per_pair
        )
        return pairs * 2 * length
    if hasattr(settings, "problems"):
        return min(settings.problems, pairs) * (settings.trajectories + 1) * settings.epochs * length
    rows = 2 if reads(settings.requirements, Capability.PAIRS) else 1
    models = getattr(settings, "members", 1) * getattr(settings, "folds", 1) * getattr(settings, "member_fraction", 1)
    pairs = min(pairs, getattr(settings, "max_pairs", 0) or pairs)
    return pairs * rows * settings.epochs * models * length


def sampled_tokens(stage: artifacts.Stage) -> float:
    """Maximum response tokens of one policy's evaluation."""
    evaluation, settings = stage.config.evaluation, stage.config.algorithm
    if "evaluation" not in settings.inputs.sections:
        return 0
    each = max(evaluation.samples_per_prompt, getattr(settings, "samples", 0))
    return evaluation.prompts * each * stage.config.rollout.max_new_tokens


def jobs(recipe: str, *overrides: str) -> list[artifacts.Stage]:
    """Stages of the first and of the last job."""
    configs = command_line.check_command([f"+recipe={recipe}", "size=smoke", *overrides]).configs
    assert len(configs) <= 12
    assert len({config.seed for config in configs}) == 1
    return [artifacts.plan(config, recipe) for config in (configs[0], *configs[1:][-1:])]


def test_every_recipe_is_small():
    def check(recipe: str) -> None:
        for stage in (part for job in jobs(recipe) for part in job.upstream()):
            assert stage.config.size == "smoke"
            assert trained_tokens(stage) <= TOKENS["scratch"], stage.recipe
            assert sampled_tokens(stage) <= TOKENS["scratch"], stage.recipe

    check_each(inventory.recipes(), check)


@pytest.mark.slow
@pytest.mark.long
def test_every_recipe_is_small_with_a_real_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("pairs.jsonl", "problems.jsonl"):
        Path(name).write_text("{}\n")
    # the shipped suites ask for gold, which real data do not know
    Path("suite.yaml").write_text("metrics: {safety/attack_success: {run: safety}}\n")
    # an environment comes with its tasks: it stays with any model
    replaced = {"arithmetic": ANSWERS, "tools": (), "repairs": (), "speech": ()}

    # the simulated judge knows no real data
    judge = ("judge=openai_compatible",) if "judge" in registry.groups() else ()

    def check(recipe: str) -> None:
        data = replaced.get(registry.kind_of("data", checked(recipe).data), PAIRS)
        if "rubric" in recipe or "attribute" in recipe:
            data = ("data=graded", "data.path=pairs.jsonl")
        if recipe in ("criteria_fitted_gold", "criteria_on_policy", "criteria_on_policy_gold"):
            data = ()  # only a world knows gold, and how its annotator labels new responses
        labels = ("algorithm.labels=perturbed",) if recipe == "prm" else ()
        labels += ("++stages.prm.algorithm.labels=perturbed",) if recipe == "step_report" else ()
        if recipe in ("eval_suite", "domain_assistant"):
            labels += ("algorithm.suite=suite.yaml",)
        if recipe == "ppo_audited":  # real data know no true reward to audit with
            labels += ("reward.audit.labels_per_iteration=0",)
        settings = ("model=gpt2", *judge, *data, *labels)
        for stage in (part for job in jobs(recipe, *settings) for part in job.upstream()):
            assert trained_tokens(stage) <= TOKENS["hf"], stage.recipe
            assert sampled_tokens(stage) <= TOKENS["hf"], stage.recipe

    check_each([name for name in inventory.recipes() if not name.startswith("study/")], check)


def test_what_is_written_stays():
    stage = planned(
        "dpo", "size=smoke", "evaluation.prompts=70", "stages.sft.algorithm.epochs=1.5", "data.train_pairs=3000"
    )
    sft = next(part for part in stage.upstream() if part.recipe == "sft")
    assert stage.config.evaluation.prompts == 70
    assert sft.config.algorithm.epochs == 1.5
    assert stage.config.data.train_pairs == sft.config.data.train_pairs == 3000
    assert stage.config.algorithm.epochs == 0.5  # less than smoke size would take


def test_a_study_takes_two_levels_and_one_seed():
    command = command_line.check_command(["+recipe=study/buffers", "size=smoke"])
    assert command.jobs == [{"algorithm.buffer": "current", "seed": 0}, {"algorithm.buffer": "rolling", "seed": 0}]
    command = command_line.check_command(["+recipe=study/buffers", "size=smoke", "seed=3,4"])
    assert [job["seed"] for job in command.jobs] == [3, 4, 3, 4]


@pytest.mark.parametrize("model", [(), ("model=gpt2",)])
def test_no_more_replies_are_chosen_from_than_the_stage_before_saves(model):
    stages = list(jobs("study/reward_weights", *model))
    assert len(stages) >= 2
    for stage in stages:
        rollouts = stage.needs["rollouts"]
        assert isinstance(rollouts, artifacts.Stage)
        assert stage.config.algorithm.choose_from <= rollouts.config.algorithm.samples


@pytest.mark.parametrize("group", ["algorithm", "data", "rollout"])
def test_smoke_tables_name_settings(group):
    classes: list[Any] = [registry.settings_class(group, kind) for kind in registry.kinds(group)]
    for cls in [*classes, Evaluation]:
        names = {field.name for field in dataclasses.fields(cls)}
        tables = {**cls.by_size.smoke, **cls.by_size.smoke_real}
        assert tables.keys() <= names, cls


@pytest.mark.slow
def test_the_jobs_of_a_sweep_run_at_the_size_that_was_planned(tmp_path):
    settings = ("size=smoke", "model=micro", "data=mini_hh_small", "data.train_pairs=64")
    arguments = ("+recipe=sft", *settings, "seed=0,1", "hydra/launcher=basic")
    status, printed = command_inside(tmp_path, *arguments)
    assert status == 0, printed
    assert NOTICE in printed
    runs = {planned("sft", *settings, f"seed={seed}").directory.name for seed in (0, 1)}
    assert {run.name for run in (tmp_path / "outputs/runs").glob("sft-*")} == runs
    assert "size: smoke" in next((tmp_path / "outputs/runs").glob("*/config.yaml")).read_text()

"""The study of rounds and tiers at a tiny size: what is measured comes out, twice the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sizes
from support import checked

from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.stages import artifacts
from rlhf_lab.stages.execute import execute

STUDY = "study/code_tiers"


def evaluated(directory: Path, *overrides: str) -> artifacts.Stage:
    """The stage of one job of the study, complete, at tiny size: three tasks of each tier, two episodes each."""
    config = checked(STUDY, *sizes.overrides(STUDY), "evaluation.prompts=9", *overrides, f"outputs={directory}")
    stage = artifacts.plan(config, STUDY)
    for part in stage.upstream():
        execute(part)
    return stage


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("repairs")


def test_every_tier_and_round_has_an_interval(directory):
    stage = evaluated(directory)
    (policy,) = read_json(stage.directory / "result.json")["policies"]
    rows = read_jsonl(stage.directory / "evaluation.jsonl")
    assert len(rows) == 18
    for tier in (1, 2, 3):
        members = [row for row in rows if row["category"] == f"tier_{tier}"]
        for name in ("solved_within/1", "solved_within/2", "solved_within/6", "gain_by_round/2", "gain_by_round/6"):
            estimate = policy["metrics"][f"{name}/tier_{tier}"]
            assert estimate["mean"] == pytest.approx(np.mean([row[name] for row in members]))
            assert estimate["n"] == len(members) == 6 and estimate["low"] <= estimate["mean"] <= estimate["high"]
    assert policy["metrics"]["solved_within/6"]["mean"] == np.mean([row["solved_within/6"] for row in rows])
    assert {"correct", "correct/tier_1", "correct_greedy", "calls"} <= policy["metrics"].keys()


@pytest.mark.slow
def test_the_control_shares_its_policy_and_its_tasks(directory, tmp_path):
    own, other = evaluated(directory), evaluated(directory, "data.shown_run=other")
    assert own.key != other.key and own.needs["reference"].key == other.needs["reference"].key
    rows = [read_jsonl(stage.directory / "evaluation.jsonl") for stage in (own, other)]
    assert [row["prompt"] for row in rows[0]] == [row["prompt"] for row in rows[1]]
    at_once = [[row["solved_within/1"] for row in part] for part in rows]
    assert at_once[0] == at_once[1], "the first program is written before anything is answered"
    again = read_jsonl(evaluated(tmp_path, "data.shown_run=other").directory / "evaluation.jsonl")
    assert [row["conversation"] for row in again] == [row["conversation"] for row in rows[1]]


def test_demonstrations_that_repair_at_once_train_another_policy(directory):
    fractions = [evaluated(directory, f"stages.sft_repairs.data.revise={fraction}") for fraction in (0.5, 0.0)]
    assert len({stage.needs["reference"].key for stage in fractions}) == 2

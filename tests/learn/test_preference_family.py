"""The preference family end to end: every loss learns, resumes exactly, and pays for the reference once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support import (
    ONE_LAYER,
    SMALL_WORLD,
    assert_equal_models,
    execute_with_stops,
    planned,
    prompt_text,
    toy_rows,
    write_pairs,
)

from rlhf_lab.algorithms.metrics import PREFERENCE_STEP
from rlhf_lab.algorithms.preference import dpo, dpo_iterative
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.metrics import names
from rlhf_lab.losses.preference import PREFERENCE_LOSSES
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.metrics import LOOP

LEARNS = {
    "ipo": "beta=0.5",
    "apo_down": "beta=0.3",
    "kto": "beta=0.3",
    "simpo": "beta=2.0",
    "orpo": "beta=1.0",
    "cpo": "beta=0.3",
}
"""Losses that differ in what they need or which way they move; the others differ in one function of the margin."""
FIXED = ("algorithm.optimizer=adamw", "algorithm.batch_size=16", "checkpoint.every_steps=0")
EVALUATION = ("evaluation.prompts=8", "evaluation.samples_per_prompt=2", "evaluation.pairs=40")


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> tuple[Path, Path]:
    """(pairs that prefer the shorter response, a policy that has imitated the longer ones)."""
    directory = tmp_path_factory.mktemp("family")
    longer = write_pairs(directory / "longer.jsonl", toy_rows(160))
    shorter = write_pairs(directory / "shorter.jsonl", [(q, short, long) for q, long, short in toy_rows(160)])
    stage = planned("sft", "data=pairs", f"data.path={longer}", *FIXED, *ONE_LAYER, f"outputs={directory}")
    execute(stage)
    return shorter, Path(stage.model)


def plan_toy(toy: tuple[Path, Path], out: Path, *more: str) -> Stage:
    data, policy = toy
    named = ("data=pairs", f"data.path={data}", f"needs.policy={policy}", "needs.reward=null", f"outputs={out}")
    size = ("algorithm.lr=5e-3", "algorithm.epochs=4", "algorithm.log_every_steps=1", "rollout.max_new_tokens=10")
    return planned("dpo", *named, *FIXED, *EVALUATION, *size, *more)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LEARNS)
def test_a_loss_makes_the_preferred_reply_likelier_than_the_other(toy, tmp_path, loss):
    stage = plan_toy(toy, tmp_path, f"algorithm.loss={loss}", f"algorithm.{LEARNS[loss]}")
    result = execute(stage)
    rows = read_jsonl(stage.directory / "metrics.jsonl")
    first, last = rows[0], {key: np.mean([row[key] for row in rows[-5:]]) for key in rows[0]}
    assert last["loss"] < first["loss"]
    assert last["margin"] > first["margin"] + 0.05
    assert last["accuracy"] > 0.9
    assert last["chosen_logp"] - last["rejected_logp"] > first["chosen_logp"] - first["rejected_logp"] + 5
    assert result["policies"][-1]["metrics"]["implicit_accuracy"]["mean"] >= 0.9
    known = {*names(PREFERENCE_STEP), *names(LOOP), "step", "time"}
    assert set(first) <= known
    assert ("chosen_drift" in first) == PREFERENCE_LOSSES[loss].needs("ref")
    assert ("z_ref" in first) == (loss == "kto")


class Counted:
    """Counts the pairs whose log-probabilities are computed for the training table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.pairs, real = 0, dpo.pair_logps

        def count(model, pairs, device, codebooks):
            self.pairs += len(pairs)
            return real(model, pairs, device, codebooks)

        monkeypatch.setattr(dpo, "pair_logps", count)


def notes(stage: Stage) -> list[str]:
    found = read_json(stage.directory / "result.json")["notes"]
    return [note for note in found if note.startswith("reference log-probabilities")]


@pytest.mark.slow
def test_the_reference_is_paid_for_once(toy, tmp_path, monkeypatch):
    """A sweep over β and the loss, and a file that was damaged in between."""
    counted = Counted(monkeypatch)
    short = ("algorithm.epochs=0.5",)
    first = plan_toy(toy, tmp_path, *short, "algorithm.beta=0.1")
    execute(first)
    count, (path,) = counted.pairs, list((tmp_path / "cache" / "reference_logps").iterdir())
    assert count > 100
    assert "computed" in notes(first)[0]
    others = [plan_toy(toy, tmp_path, *short, f"algorithm.{x}") for x in ("beta=0.5", "loss=kto")]
    for stage in others:
        execute(stage)
        assert "reused" in notes(stage)[0]
    assert counted.pairs == count
    stored = path.read_bytes()
    a_bit_of_a_number = stored[:-3] + bytes([stored[-3] ^ 1]) + stored[-2:]
    for times, (damaged, beta) in enumerate([(stored[:-40], 0.7), (a_bit_of_a_number, 0.8)], 2):
        path.write_bytes(damaged)
        again = plan_toy(toy, tmp_path, *short, f"algorithm.beta={beta}")
        execute(again)
        assert counted.pairs == times * count
        assert "again: the stored file is damaged" in notes(again)[0]
        assert path.read_bytes() == stored


def test_other_numbers_have_another_file(toy, tmp_path):
    for more in ((), ("runtime.dtype=bfloat16",)):
        execute(plan_toy(toy, tmp_path, "algorithm.epochs=0.2", *more))
    assert len(list((tmp_path / "cache" / "reference_logps").iterdir())) == 2


def test_a_loss_without_a_reference_computes_none(toy, tmp_path, monkeypatch):
    counted = Counted(monkeypatch)
    execute(plan_toy(toy, tmp_path, "algorithm.epochs=0.2", "algorithm.loss=simpo"))
    assert counted.pairs == 0
    assert not (tmp_path / "cache").exists()


RESUMED = {
    "dpo": {"kto": ("algorithm.loss=kto", "algorithm.epochs=2", "algorithm.eval_every_steps=3")},
    "dpo_iterative": {
        "inpo": ("algorithm.loss=inpo", "algorithm.beta=0.05"),
        "cream": ("algorithm.consistency=cream",),
        "kto": ("algorithm.loss=kto",),
    },
}
ROUNDS = (
    *("algorithm.prompts_per_round=32", "algorithm.corpus_fraction=0.33", "algorithm.rounds=2"),
    *("algorithm.buffer=full", "needs.baseline=null"),
)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory) -> dict[str, Path]:
    """Policy and reward model that the later stages start from."""
    out, needs = tmp_path_factory.mktemp("upstream"), {}
    for role, recipe in (("policy", "sft"), ("reward", "reward_model")):
        roles = [f"needs.{name}={path}" for name, path in needs.items()]
        stage = planned(recipe, *SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=2", *FIXED, *roles, f"outputs={out}")
        execute(stage)
        needs[role] = Path(stage.model)
    return needs


def plan_resumed(recipe: str, name: str, out: Path, upstream: dict[str, Path]) -> Stage:
    """96 pairs in 12 steps for dpo; 3 steps in each of 2 rounds."""
    common = [*SMALL_WORLD, *ONE_LAYER, *(ROUNDS if recipe == "dpo_iterative" else ()), *RESUMED[recipe][name]]
    common += [f"needs.{role}={path}" for role, path in upstream.items()]
    sizes = ("algorithm.optimizer=adamw", "algorithm.batch_size=16", "algorithm.lr=3e-3", "checkpoint.every_steps=2")
    return planned(recipe, *common, *sizes, "algorithm.log_every_steps=1", f"outputs={out}")


CLASSES = {"dpo": dpo.OnePassDPO, "dpo_iterative": dpo_iterative.IteratedDPO}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "name", "stops"),
    [
        ("dpo", "kto", (5,)),
        ("dpo_iterative", "inpo", (2, 3, 5)),  # at 3 the second round's pairs exist, none is trained on
        ("dpo_iterative", "cream", (3, 5)),
        ("dpo_iterative", "kto", (4,)),
    ],
)
def test_resumed_equals_uninterrupted(recipe, name, stops, tmp_path, upstream, monkeypatch):
    full = plan_resumed(recipe, name, tmp_path / "whole", upstream)
    execute(full)
    stage = plan_resumed(recipe, name, tmp_path / "resumed", upstream)
    assert stage.key == full.key
    execute_with_stops(monkeypatch, CLASSES[recipe], stage, *stops)
    assert_equal_models(full, stage)
    first, second = (read_json(x.directory / "result.json") for x in (full, stage))
    assert (first["metrics"], first["policies"]) == (second["metrics"], second["policies"])
    rows = [read_jsonl(x.directory / "metrics.jsonl") for x in (full, stage)]
    assert [{**row, "time": 0} for row in rows[0]] == [{**row, "time": 0} for row in rows[1]]
    for file in ("rounds/round_1.json", "rounds/round_2.json"):
        paths = [x.directory / file for x in (full, stage)]
        assert paths[0].exists() == paths[1].exists() == (recipe == "dpo_iterative")
        assert not paths[0].exists() or paths[0].read_text() == paths[1].read_text()


def unpaired_file(path: Path, pairs: list[tuple[str, str, str]]) -> Path:
    """Each response of a pair as a separate row, in a separate order."""
    rows = [{"prompt": prompt_text(q), "completion": c, "label": True} for q, c, _ in pairs]
    rows += [{"prompt": prompt_text(q), "completion": r, "label": False} for q, _, r in reversed(pairs)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_kto_learns_from_single_replies(toy, tmp_path):
    data = unpaired_file(tmp_path / "unpaired.jsonl", [(q, short, long) for q, long, short in toy_rows(160)])
    settings = ("data=unpaired", f"data.path={data}", "algorithm.loss=kto", "algorithm.beta=0.3")
    stage = plan_toy(toy, tmp_path, *settings)
    result = execute(stage)
    rows = read_jsonl(stage.directory / "metrics.jsonl")
    assert np.mean([row["loss"] for row in rows[-5:]]) < rows[0]["loss"] - 0.02
    assert np.mean([row["margin"] for row in rows[-5:]]) > rows[0]["margin"] + 0.3
    assert set(rows[0]) <= {*names(PREFERENCE_STEP), *names(LOOP), "step", "time"}
    liked, disliked = (result["metrics"][f"examples/{kind}"] for kind in ("liked", "disliked"))
    assert liked + disliked == result["metrics"]["data/train/kept"] and min(liked, disliked) > 100


def test_unpaired_kto_resumes_exactly(toy, tmp_path, monkeypatch):
    data = unpaired_file(tmp_path / "unpaired.jsonl", [(q, short, long) for q, long, short in toy_rows(60)])
    settings = ("data=unpaired", f"data.path={data}", "algorithm.loss=kto", "checkpoint.every_steps=2")
    full = plan_toy(toy, tmp_path / "whole", *settings)
    execute(full)
    cut = plan_toy(toy, tmp_path / "cut", *settings)
    execute_with_stops(monkeypatch, dpo.UnpairedKTO, cut, 5)
    assert_equal_models(full, cut)

"""The preference family end to end: every loss learns, resumes exactly, and pays for the reference once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, Stopped, model_tensors, planned, prompt_text, stop_at, toy_rows, write_pairs

from rlhf_lab.algorithms.preference import dpo, dpo_iterative, reference_cache
from rlhf_lab.algorithms.preference.metrics import PREFERENCE_STEP
from rlhf_lab.config import registry
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.metrics import names
from rlhf_lab.losses.objective import PREFERENCE_LOSSES
from rlhf_lab.stages.artifacts import Stage
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.loop import train
from rlhf_lab.training.metrics import LOOP
from rlhf_lab.training.run import Run

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
    return planned(
        "dpo",
        "data=pairs",
        f"data.path={data}",
        f"needs.policy={policy}",
        "needs.reward=null",
        *FIXED,
        *EVALUATION,
        "algorithm.lr=5e-3",
        "algorithm.epochs=4",
        "algorithm.log_every_steps=1",
        "rollout.max_new_tokens=10",
        *more,
        f"outputs={out}",
    )


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
        self.pairs, real = 0, reference_cache.pair_logps

        def count(model, pairs, device, codebooks):
            self.pairs += len(pairs)
            return real(model, pairs, device, codebooks)

        monkeypatch.setattr(reference_cache, "pair_logps", count)


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


def build(stage: Stage, directory: Path, policy: Path) -> dpo.OnePassDPO:
    directory.mkdir()
    run = Run(directory, stage.config, {"policy": str(policy)})
    algorithm = registry.build("algorithm", stage.config.algorithm, run)
    algorithm.start()
    return algorithm


@pytest.mark.slow
def test_micro_batches_change_nothing(toy, tmp_path):
    """Full steps against one pair at a time, in float64; kto's KL estimate is one of the full step."""
    trained = {}
    for name, tokens in (("whole", 0), ("single", 1)):
        smooth = ("algorithm.adam_eps=1e-3", "algorithm.epochs=3", f"algorithm.micro_batch_tokens={tokens}")
        stage = plan_toy(toy, tmp_path, "algorithm.loss=kto", "algorithm.beta=0.3", *smooth)
        algorithm = build(stage, tmp_path / name, toy[1])
        algorithm.model.double()
        assert len(algorithm.collect(0).micro) == (16 if tokens else 1)
        train(algorithm, algorithm.run, name)
        trained[name] = algorithm.model.state_dict()
    start = model_tensors(toy[1])
    full, single = trained["whole"], trained["single"]
    assert max(float((full[name] - start[name]).abs().max()) for name in start) > 1e-3
    assert max(float((full[name] - single[name]).abs().max()) for name in full) <= 1e-6
    assert max(row["z_ref"] for row in read_jsonl(tmp_path / "single" / "metrics.jsonl")) > 0


def test_a_single_pair_has_no_kl_estimate(toy, tmp_path):
    algorithm = build(plan_toy(toy, tmp_path, "algorithm.loss=kto"), tmp_path / "run", toy[1])
    assert algorithm.batch(algorithm.table, [3]).micro[0][1].z_ref.item() == 0.0


RESUMED = {
    "dpo": {"kto": ("algorithm.loss=kto", "algorithm.epochs=2", "algorithm.eval_every_steps=3")},
    "dpo_iterative": {
        "inpo": ("algorithm.loss=inpo", "algorithm.beta=0.05"),
        "cream": ("algorithm.consistency=cream",),
        "kto": ("algorithm.loss=kto",),
    },
}
ROUNDS = (
    "algorithm.prompts_per_round=32",
    "algorithm.corpus_fraction=0.33",
    "algorithm.rounds=2",
    "algorithm.buffer=full",
    "needs.baseline=null",
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
    for stop in stops:
        stop_at(monkeypatch, CLASSES[recipe], stop)
        with pytest.raises(Stopped):
            execute(stage)
    stop_at(monkeypatch, CLASSES[recipe], None)
    execute(stage)
    a, b = model_tensors(Path(full.model)), model_tensors(Path(stage.model))
    assert all(torch.equal(a[key], b[key]) for key in a)
    first, second = (read_json(x.directory / "result.json") for x in (full, stage))
    assert (first["metrics"], first["policies"]) == (second["metrics"], second["policies"])
    rows = [read_jsonl(x.directory / "metrics.jsonl") for x in (full, stage)]
    assert [{**row, "time": 0} for row in rows[0]] == [{**row, "time": 0} for row in rows[1]]
    for file in ("rounds/round_1.json", "rounds/round_2.json"):
        paths = [x.directory / file for x in (full, stage)]
        assert paths[0].exists() == paths[1].exists() == (recipe == "dpo_iterative")
        assert not paths[0].exists() or paths[0].read_text() == paths[1].read_text()


def test_inpo_anchors_on_the_policy_of_the_round_before(tmp_path, upstream):
    """In round one the previous iterate is the reference; in round two it has moved, and the file holds where to."""
    stage = plan_resumed("dpo_iterative", "inpo", tmp_path, upstream)
    execute(stage)
    rounds = [read_json(stage.directory / f"rounds/round_{i}.json") for i in (1, 2)]
    own = [len(found["pairs"]) for found in rounds]
    corpus = [round(n * 0.33 / 0.67) for n in (own[0], sum(own))]
    assert [len(found["previous"][0]) for found in rounds] == [own[0] + corpus[0], sum(own) + corpus[1]]
    shared = [np.array(found["previous"][0][: own[0]]) for found in rounds]
    assert np.abs(shared[0] - shared[1]).max() > 0.01  # the same pairs, seen by the policy a round later
    rows = [row for row in read_jsonl(stage.directory / "metrics.jsonl") if "loss" in row]
    eta = 0.05 / (1 / 3)
    assert rows[0]["loss"] == pytest.approx(1 / (4 * eta**2), rel=1e-4)


def test_cream_weighs_own_labels_and_not_those_of_the_corpus(tmp_path, upstream):
    stage = plan_resumed("dpo_iterative", "cream", tmp_path, upstream)
    result = execute(stage)
    metrics = result["metrics"]
    assert metrics["consistency/round 1"] == 1.0
    assert 0 < metrics["consistency/round 2"] < 1
    run = Run(stage.directory, stage.config, {role: str(path) for role, path in upstream.items()})
    algorithm = registry.build("algorithm", stage.config.algorithm, run)
    algorithm._start_round(2)
    weights = algorithm.table.context.consistency_B
    own = [len(algorithm.rounds.read(i).pairs) for i in (1, 2)]
    assert weights[: own[0]].tolist() == [1.0] * own[0]
    assert weights[own[0] : sum(own)].tolist() == pytest.approx([metrics["consistency/round 2"]] * own[1])
    assert weights[sum(own) :].tolist() == [1.0] * (len(weights) - sum(own))


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
    stop_at(monkeypatch, dpo.UnpairedKTO, 5)
    with pytest.raises(Stopped):
        execute(cut)
    stop_at(monkeypatch, dpo.UnpairedKTO, None)
    execute(cut)
    first, second = model_tensors(Path(full.model)), model_tensors(Path(cut.model))
    assert all(torch.equal(first[name], second[name]) for name in first)

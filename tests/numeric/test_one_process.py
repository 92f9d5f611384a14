"""Starting state of a stage and the engine of one process: sizes, gradients, memory, responses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import ONE_LAYER, SMALL_WORLD, planned
from torch import nn

from rlhf_lab.config import registry
from rlhf_lab.core import ranks
from rlhf_lab.core.types import Corpus
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.training import loop
from rlhf_lab.training.loop import StepBatch
from rlhf_lab.training.run import Run
from rlhf_lab.training.sharding import engine
from rlhf_lab.training.start import corpus_report, load_policy_twice, model_size


@pytest.fixture
def run(policy: Path, tmp_path: Path) -> Run:
    needs = (f"needs.policy={policy}", "needs.reward=null", "reward=length")
    config = planned("dpo", *SMALL_WORLD, *ONE_LAYER, *needs, "algorithm.batch_size=8", f"outputs={tmp_path}").config
    return Run(tmp_path, config, {"policy": str(policy)})


def test_the_size_of_a_model_counts_what_is_trained() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))  # 16 and 10 parameters
    model[0].requires_grad_(False)
    assert model_size(model) == {"parameters": 26, "parameters/trained": 10, "checkpoint_mib": 40 / 2**20}


def test_how_the_data_was_read_is_told_as_flat_metrics() -> None:
    report = {"train": SimpleNamespace(rows=10, kept=8, dropped={"empty reply": 2})}
    found = corpus_report(SimpleNamespace(report=report), SimpleNamespace(counts={"cut": 3}))
    rows = {"data/train/rows": 10, "data/train/kept": 8, "data/train/dropped/empty reply": 2}
    assert found == {"encoding/cut": 3, **rows}


def test_policy_and_reference_are_two_models_with_the_same_numbers(run: Run) -> None:
    policy, reference, _ = load_policy_twice(run)
    pairs = list(zip(policy.parameters(), reference.parameters(), strict=True))
    assert all(torch.equal(p, r) and p.data_ptr() != r.data_ptr() for p, r in pairs)
    assert all(p.requires_grad and not r.requires_grad for p, r in pairs)


@pytest.mark.parametrize("kind", ["none", "ddp", "fsdp_full"])
def test_one_process_steps_skips_and_goes_on(kind: str, run: Run) -> None:
    """With nothing to share or shard, every strategy is the engine of one process."""
    algorithm = registry.build("algorithm", run.config.algorithm, run)
    algorithm.start()
    settings = planned("dpo", f"sharding={kind}").config.sharding
    generated = registry.build("sharding", settings, algorithm, run)
    assert type(generated) is engine.Engine
    before = {name: tensor.clone() for name, tensor in generated.tensors().items()}
    batch = algorithm.collect(0)

    def add_gradients() -> None:
        for micro in batch.micro:
            generated.backward(generated.loss(micro, last=True).loss_N.sum() / batch.units)

    add_gradients()
    assert generated.memory_mib()["memory/gradients"] == generated.memory_mib()["memory/parameters"] > 0
    generated.skip()
    assert generated.memory_mib()["memory/gradients"] == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in generated.tensors().items())
    add_gradients()
    assert all(float(norm) > 0 for norm in generated.clip().values())
    generated.step(1.0)
    after = generated.tensors()
    assert any(not after[name].equal(tensor) for name, tensor in before.items() if name.startswith("model/"))
    assert generated.memory_mib()["memory/optimizer"] > 0
    generated.close()


@pytest.mark.parametrize(
    ("kind", "expected"), [("none", engine.Engine), ("ddp", engine.DataParallel), ("fsdp_full", engine.Sharded)]
)
def test_several_processes_share_the_work_by_the_chosen_strategy(kind, expected, monkeypatch) -> None:
    settings = planned("dpo", f"sharding={kind}").config.sharding
    monkeypatch.setattr(ranks, "world", lambda: 2)
    monkeypatch.setattr(engine.Engine, "__init__", lambda *arguments: None)
    assert type(registry.build("sharding", settings, None, None)) is expected


def test_the_time_of_an_update_includes_its_samples(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six steps of a second, of which the first also samples for 24 and the second makes no update: 30/5."""
    algorithm = registry.build("algorithm", run.config.algorithm, run)
    collect, seconds = algorithm.collect, [0.0]

    def timed(step: int) -> StepBatch:
        seconds[0] += 25 if step == 0 else 1
        return StepBatch([], units=1) if step == 1 else collect(step)

    monkeypatch.setattr(algorithm, "collect", timed)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    loop.train(algorithm, run, "timed")
    assert algorithm.total_steps == 6 and run.cost["step_seconds"] == 6


def test_replies_of_the_policy_follow_from_the_seed_and_the_purpose(run: Run) -> None:
    responses = PolicyResponses(run)
    prompts, first, second = responses.sample_pairs("train", 5)
    assert len(prompts) == len(first) == len(second) == 5
    assert set(prompts) <= set(run.corpus.prompts("train")) and first != second
    responses.for_scale()  # whatever else is sampled in between
    assert responses.sample_pairs("train", 5) == (prompts, first, second)
    assert responses.sample_pairs("train", 0) == ([], [], [])
    requested, answers, numbers = responses.for_scale()
    known = run.corpus.prompts("train")
    assert len(requested) == len(answers) == len(numbers) == 2 * min(len(known), 256)
    assert all(known[number] == prompt for number, prompt in zip(numbers, requested, strict=True))
    assert isinstance(run.corpus, Corpus) and np.unique(numbers, return_counts=True)[1].tolist() == [2] * len(known)

"""KTO on single responses (algorithm=kto data=unpaired): a step's loss from log-probabilities in float64, by row."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import checked, gpt2_tokenizer, prompt_text, save_tiny, toy_rows
from torch import nn

from rlhf_lab.algorithms.preference.dpo import UnpairedKTO
from rlhf_lab.config import registry
from rlhf_lab.models.encoding import Row
from rlhf_lab.training.run import Run

BETA, LIKED_WEIGHT, DISLIKED_WEIGHT = 0.5, 1.25, 0.75
LABELS = [True, False, False, True, True, False, True, False, False, True, False, True, False, True]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a policy, and one response to each toy question that was liked or disliked."""
    directory = tmp_path_factory.mktemp("unpaired")
    questions = toy_rows(len(LABELS))
    rows = [
        {"prompt": prompt_text(question), "completion": long if liked else short, "label": liked}
        for (question, long, short), liked in zip(questions, LABELS, strict=True)
    ]
    (directory / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_tiny("llama", gpt2_tokenizer([text for row in questions for text in row]), directory / "policy")
    return directory


@pytest.fixture
def algorithm(source: Path, tmp_path: Path) -> UnpairedKTO:
    """KTO before its first step, its policy moved towards all responses of the data."""
    config = checked(
        "dpo",
        *("model=hf", f"model.path={source / 'policy'}", f"needs.policy={source / 'policy'}", "reward=length"),
        *("needs.reward=null", "data=unpaired", f"data.path={source / 'rows.jsonl'}", f"outputs={tmp_path}"),
        *("algorithm=kto", f"algorithm.beta={BETA}", "algorithm.batch_size=4", "algorithm.epochs=1"),
        *(f"algorithm.desirable_weight={LIKED_WEIGHT}", f"algorithm.undesirable_weight={DISLIKED_WEIGHT}"),
    )
    generated = registry.build("algorithm", config.algorithm, Run(tmp_path, config, {"policy": str(source / "policy")}))
    assert isinstance(generated, UnpairedKTO)
    optimizer = torch.optim.SGD(generated.model.parameters(), lr=1.0)
    for _ in range(3):
        loss = -sum(logp(generated.model, row) for row in generated.rows) / sum(
            len(response) for _, response in generated.rows
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    generated.start()
    return generated


def logp(model: nn.Module, row: Row) -> torch.Tensor:
    """log π(response | prompt) from the model's own logits of this row alone, nats."""
    prompt, response = row
    policy: Any = model
    logits_TV = policy(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
    before = torch.arange(len(response)) + len(prompt) - 1
    return logits_TV[before].log_softmax(-1)[torch.arange(len(response)), torch.tensor(response)].sum()


@torch.no_grad()
def log_ratio(algorithm: UnpairedKTO, row: Row) -> float:
    """log π/π_ref of a response in float64."""
    models = (copy.deepcopy(model).double() for model in (algorithm.model, algorithm.reference))
    policy, reference = (float(logp(model, row)) for model in models)
    return policy - reference


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_every_reply_is_an_example_with_its_own_reference(algorithm):
    """An odd number of examples, two of them with one entry of the cache: none takes another's log-probability."""
    assert len(algorithm.rows) % 2 == 1 and 0 < sum(algorithm.liked) < len(algorithm.rows)
    with torch.no_grad():
        expected = [float(logp(algorithm.reference, row)) for row in algorithm.rows]
    assert algorithm.ref_N.tolist() == pytest.approx(expected, abs=1e-3)
    gaps = np.abs(np.subtract.outer(expected, expected))
    assert gaps[~np.eye(len(gaps), dtype=bool)].min() > 0.01, (
        "two examples are alike: the test would not tell them apart"
    )
    text = {
        algorithm.encoder.text(response): liked
        for (_, response), liked in zip(algorithm.rows, algorithm.liked, strict=True)
    }
    assert len(text) == len(algorithm.rows)
    for pair in algorithm.run.corpus.train:
        assert text[pair.chosen or pair.rejected] == bool(pair.chosen)


def test_a_step_s_loss_and_kl_estimate_by_hand(algorithm):
    """z = max(0, mean over the step of log π/π_ref of each prompt with the response of the example before it).

    A liked response of log-ratio r costs 1.25·(1 − σ(½·(r − z))), a disliked one .75·(1 − σ(½·(z − r))).
    """
    assert [len(step) for step in algorithm.steps] == [4] * (len(algorithm.rows) // 4) + [len(algorithm.rows) % 4]
    estimates = []
    for index, step in enumerate(algorithm.steps):
        rows = [algorithm.rows[i] for i in step]
        mismatched = [(prompt, rows[i - 1][1]) for i, (prompt, _) in enumerate(rows)]
        z = max(0.0, float(np.mean([log_ratio(algorithm, row) for row in mismatched])))
        estimates.append(z)
        expected, margins = {}, {}
        for i, row in zip(step, rows, strict=True):
            ratio = log_ratio(algorithm, row)
            if algorithm.liked[i]:
                expected[i], margins[i] = LIKED_WEIGHT * (1 - sigmoid(BETA * (ratio - z))), BETA * ratio
            else:
                expected[i], margins[i] = DISLIKED_WEIGHT * (1 - sigmoid(BETA * (z - ratio))), -BETA * ratio
        batch = algorithm.collect(index)
        assert batch.units == len(step)
        for micro in batch.micro:
            indices, _ = micro
            with torch.no_grad():
                out = algorithm.loss(micro)
            assert out.loss_N.tolist() == pytest.approx([expected[i] for i in indices], abs=1e-4)
            assert out.metrics["margin"].tolist() == pytest.approx([margins[i] for i in indices], abs=1e-3)
            assert out.metrics["z_ref"].tolist() == pytest.approx([z] * len(indices), abs=1e-3)
        assert sorted(i for indices, _ in batch.micro for i in indices) == sorted(step)
    assert max(estimates) > 0.1, "an estimate of 0 in every step would hide its sign"


def test_an_estimate_is_not_below_0(algorithm):
    """Policy and reference exchanged: the mean log-ratio of every step is negative, and z is 0."""
    algorithm.model, algorithm.reference = algorithm.reference, algorithm.model
    assert [float(z_ref) for step in range(len(algorithm.steps)) for _, z_ref in algorithm.collect(step).micro] == [
        0.0
    ] * len(algorithm.steps)


def test_a_step_of_one_example_has_no_other_reply(algorithm):
    algorithm.steps = [[3]]
    ((_, z_ref),) = algorithm.collect(0).micro
    assert float(z_ref) == 0.0


def test_heldout_accuracy_is_the_sign_of_the_log_ratio_by_label(algorithm):
    test = algorithm.run.corpus.test
    assert 0 < sum(bool(pair.chosen) for pair in test) < len(test) <= 500
    right = {True: [], False: []}
    for pair in test:
        row = algorithm.encoder.row(pair.prompt, pair.chosen or pair.rejected, algorithm.max_length)
        ratio = log_ratio(algorithm, row)
        assert abs(ratio) > 0.01, "too near 0 to know the sign in float32"
        right[bool(pair.chosen)].append((ratio > 0) == bool(pair.chosen))
    metrics = algorithm._heldout_metrics()
    assert metrics["heldout_accuracy/liked"].mean == np.mean(right[True])
    assert metrics["heldout_accuracy/disliked"].mean == np.mean(right[False])
    assert metrics["heldout_accuracy"].mean == np.mean(right[True] + right[False])
    assert metrics["heldout_accuracy"].n == len(test)


def test_a_policy_equal_to_its_reference_is_right_on_nothing(algorithm):
    algorithm.model.load_state_dict(algorithm.reference.state_dict())
    assert {name: value.mean for name, value in algorithm._heldout_metrics().items()} == {
        "heldout_accuracy": 0.0,
        "heldout_accuracy/liked": 0.0,
        "heldout_accuracy/disliked": 0.0,
    }

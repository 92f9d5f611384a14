"""The training loop: evaluations, warm-up, and the peak memory of a stage."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.algorithms.supervised.settings import SelfTraining
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.training.loop import Algorithm
from rlhf_lab.training.optim import lr_scale
from rlhf_lab.training.peak_memory import peak_gib, reset_peak
from rlhf_lab.training.settings import TrainingSettings


def evaluated(settings: TrainingSettings, steps: int) -> list[int]:
    algorithm = SimpleNamespace(settings=settings)
    return [step + 1 for step in range(steps) if Algorithm.evaluation_due(algorithm, step)]  # type: ignore[arg-type]


def test_early_evaluations():
    regular = TrainingSettings(eval_every_steps=12)
    assert evaluated(regular, 36) == [12, 24, 36]
    assert evaluated(replace(regular, eval_early=True), 36) == [1, 2, 4, 8, 12, 24, 36]
    assert evaluated(TrainingSettings(), 36) == []  # at the end only
    with pytest.raises(ConfigError, match=r"eval_early=true .* set algorithm\.eval_every_steps"):
        TrainingSettings(eval_early=True)


@pytest.mark.parametrize("settings", [IterativeDPO, SelfTraining])
def test_rounds_have_no_early_evaluations(settings):
    with pytest.raises(ConfigError, match="evaluated after every round; leave it out"):
        settings(eval_early=True, eval_every_steps=4)


@pytest.mark.parametrize(("fraction", "total", "warmup"), [(0.07, 100, 7), (0.05, 30, 2), (0.1, 30, 3), (0.0, 30, 0)])
def test_the_learning_rate_rises_for_a_fraction_of_the_steps(fraction, total, warmup):
    """The number of steps is rounded up. 0.07 · 100 is 7.000000000000001 in floating point."""
    scales = [lr_scale(step, total, warmup_fraction=fraction, final_fraction=0.1) for step in range(total)]
    assert scales[:warmup] == pytest.approx([(step + 1) / warmup for step in range(warmup)])
    assert scales[warmup] == 1.0 and scales[-1] == pytest.approx(0.1, abs=0.01)  # the cosine ends at `final_fraction`


@pytest.mark.skipif(sys.platform != "linux", reason="the resident set's peak is read from /proc")
def test_the_peak_starts_anew():
    block = torch.ones(64 * 2**20)  # 0.25 GiB
    high = peak_gib()
    del block
    reset_peak()
    low = peak_gib()
    assert high is not None and low is not None
    assert low < high - 0.15

"""Steps after which `training/loop.py` evaluates the model."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.algorithms.supervised.settings import SelfTraining
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.training.loop import Algorithm
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

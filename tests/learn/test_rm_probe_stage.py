"""The stage `rm_probe` on a small reward model, with its answer and its page."""

from __future__ import annotations

import pytest
from support import SMALL_WORLD, planned

from rlhf_lab.core.metrics import undeclared
from rlhf_lab.reports.reward.card import probes
from rlhf_lab.results.answer_rewards import probed
from rlhf_lab.results.rundir import read_run
from rlhf_lab.stages.execute import ensure

pytestmark = pytest.mark.slow


def test_a_small_reward_model_is_probed(tmp_path) -> None:
    size = ("model.hidden=16", "model.layers=1", "model.heads=2", "evaluation.pairs=24")
    stage = planned("rm_probe", *SMALL_WORLD, *size, f"outputs={tmp_path}")
    ensure(stage, 0)
    run = read_run(stage.directory)
    assert run.status == "completed" and run.metric("rows").mean == 48  # both responses of 24 pairs
    attributes = {name.removeprefix("probe/") for name in run.results if name.startswith("probe/")}
    # gold and other columns of ground truth, and criteria of text
    assert {"gold", "wrong", "words", "varied"} <= attributes
    assert {f"probe_before/{name}" for name in attributes} <= set(run.results)
    assert not undeclared(run.results)
    sentence = probed(run)
    assert sentence is not None and sentence.startswith("A linear probe reads gold from the reward model")
    table = probes(run).table
    assert table.rows[0][0] == "gold" and len(table.rows) == len(attributes)
    assert probes(read_run(stage.needs["reward"].directory)) is None

"""What a reward model reports about its own data: labels, selected pairs, and events of tokenisation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support import ONE_LAYER, SMALL_WORLD, planned, prompt_text

from rlhf_lab.config import registry
from rlhf_lab.stages.execute import execute
from rlhf_lab.training.run import Run

SIZE = (*SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", "algorithm.batch_size=16", "algorithm.optimizer=adamw")


def test_exploits_change_no_number_of_labels(policy, tmp_path):
    """A quarter of all pairs is sampled: 20 beside 60 corpus pairs, and beside 40 of them and 20 of an attack."""
    row = {"prompt": prompt_text("hello"), "chosen": "hi", "rejected": "hi hi"}
    (tmp_path / "exploits.jsonl").write_text((json.dumps(row) + "\n") * 20)
    more = ("algorithm.max_pairs=60", "algorithm.on_policy_fraction=0.25")
    sources = {"policy": str(policy), "exploits": str(tmp_path)}
    config = planned("reward_model", *SIZE, *more, f"needs.policy={policy}").config
    for roles, corpus_pairs in ((["policy"], 60), (["policy", "exploits"], 40)):
        run = Run(tmp_path, config, {role: sources[role] for role in roles})
        algorithm: Any = registry.build("algorithm", config.algorithm, run)
        assert (algorithm.corpus_pairs, algorithm.on_policy) == (corpus_pairs, 20)


@pytest.mark.parametrize("recipe", ["reward_model", "rubric_rm"])
def test_audits_are_not_counted_as_training_data(recipe, policy, tmp_path):
    """72 pairs of the corpus have 144 rows, however often the model is evaluated and however long held-out rows are."""
    pairs = ("algorithm.max_pairs=72", "algorithm.on_policy_fraction=0", "algorithm.max_length=24")
    for often in ((), ("algorithm.eval_every_steps=2",)):
        stage = planned(recipe, *SIZE, *pairs, *often, f"needs.policy={policy}", f"outputs={tmp_path}")
        metrics = execute(stage)["metrics"]
        assert metrics["encoding/rows"] == 144
        assert 0 < metrics["encoding/replies cut at the end (no EOS)"] <= 144

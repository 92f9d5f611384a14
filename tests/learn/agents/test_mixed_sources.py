"""A reward model of human, constitutional and agentic pairs, with everything it starts from, at a tiny size."""

from __future__ import annotations

import json

from sizes import overrides
from support import command_inside

from rlhf_lab.config import command_line
from rlhf_lab.data.generated import read_attempts, read_generated
from rlhf_lab.models.build import load_encoder
from rlhf_lab.stages import artifacts

RECIPE = "mixed_reward_model"


def test_three_sources_end_in_one_reward_model(tmp_path):
    status, out = command_inside(tmp_path, f"+recipe={RECIPE}", *overrides(RECIPE))
    assert status == 0, out
    job = command_line.check_command([f"+recipe={RECIPE}", *overrides(RECIPE)]).configs[0]
    stages = {stage.recipe: stage for stage in artifacts.plan(job, RECIPE).upstream()}
    folders = {name: tmp_path / stage.directory for name, stage in stages.items()}

    pairs = read_generated(folders["agent_pairs"], "pairs")
    heldout = read_attempts(folders["agent_pairs"])
    assert pairs and all(pair.meta["correct_chosen"] == 1 for pair in pairs)
    assert len(heldout) == 4 and all(len(task.replies) == 2 for task in heldout)
    assert not {pair.prompt for pair in pairs} & {task.prompt for task in heldout}

    metrics = json.loads((folders[RECIPE] / "result.json").read_text())["metrics"]
    assert metrics["pairs/corpus"] == 16
    kept = {name: metrics[f"data/{name}/train/kept"] for name in ("data", "corpus", "corpus_agents")}
    assert sorted(kept.values()) == [5, 5, 6]  # a third of 16 each
    assert metrics["attempts/tasks"] == 4
    at_random, best = metrics["agent_accuracy/one"]["mean"], metrics["agent_accuracy/any"]["mean"]
    assert 0 <= at_random <= best <= 1 and metrics["agent_accuracy"]["mean"] <= best
    assert 0 <= metrics["auroc"]["mean"] <= 1

    # The words of both worlds are tokens of their own, whatever the shares.
    encoder = load_encoder(str(folders["sft_mixed"] / "model"), job.model)
    for pair in pairs[:20]:
        words = pair.chosen.split()
        assert len(encoder.response(pair.chosen)) <= 4 * len(words)
        for word in filter(str.isalpha, words):
            assert len(encoder.continuation(f" {word}")) == 1, word

"""An agent that looks up the wrong relation nearly every other time learns by its outcomes to look up the right one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import planned

from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.stages.execute import execute

WORLD = (
    "data.kinds={lookup: 1}",
    "data.entities=6",
    "data.relations=4",
    "data.redirect=0",
    "data.habits.wrong_relation=0.45",
    "data.habits.stop_early=0",
    "data.habits.repeat_call=0",
    "data.train_tasks=6400",
    "data.test_tasks=60",
    "data.turns=4",
    "model.hidden=48",
)
TRAINING = (
    "algorithm.iterations=24",
    "algorithm.warmup_fraction=0.2",
    "algorithm.prompts_per_iteration=8",
    "algorithm.batch_size=64",
    "evaluation.prompts=60",
    "evaluation.samples_per_prompt=2",
    "rollout.max_episode_tokens=120",
)


# The intervals of 60 tasks overlap on some processors, as the comment on greedy accuracy below says.
@pytest.mark.slow
@pytest.mark.long
def test_grpo_raises_success_on_new_names(tmp_path: Path):
    """Measured: .48 ±.10 → .92 ±.06 sampled, greedy .98 → 1.00, in half a minute of imitation and as long of GRPO."""
    stage = planned("grpo_agent", *WORLD, *TRAINING, f"outputs={tmp_path}", "checkpoint.every_steps=0")
    for part in stage.upstream():
        execute(part)
    start, trained = read_json(stage.directory / "result.json")["policies"]
    assert start["metrics"]["correct"]["high"] < trained["metrics"]["correct"]["low"]
    assert trained["metrics"]["correct"]["mean"] > 0.75
    # Imitation alone answers nearly all tasks greedily. What GRPO leaves of that depends on how the processor rounds:
    # .98 → 1.00 on one, 1.00 → .88 on another, with the same code and seed.
    assert trained["metrics"]["correct_greedy"]["mean"] >= start["metrics"]["correct_greedy"]["mean"] - 0.15
    iterations = [row for row in read_jsonl(stage.directory / "metrics.jsonl") if "reward" in row]
    assert all(row["calls"] > 0.9 for row in iterations), "calls per episode are logged, and do not vanish"
    assert iterations[0]["wasted_groups"] < 0.5

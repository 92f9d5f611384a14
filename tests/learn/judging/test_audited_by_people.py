"""Training that waits for people: `reward.audit.labels_from=human` in a whole stage."""

from __future__ import annotations

import threading
from pathlib import Path

from support import ONE_LAYER, SMALL_WORLD, planned

from rlhf_lab.core.files import read_json
from rlhf_lab.packs.judging.labels.command import audit_store_path
from rlhf_lab.packs.judging.labels.items import SECOND
from rlhf_lab.packs.judging.labels.store import LabelStore
from rlhf_lab.packs.judging.rewards import audit as people
from rlhf_lab.stages.execute import execute

SMALL = (*SMALL_WORLD, *ONE_LAYER, "algorithm.epochs=1", "algorithm.batch_size=16")
GRPO = (
    "algorithm.iterations=4",
    "algorithm.prompts_per_iteration=4",
    "algorithm.optimizer=adamw",
    "needs.reward=null",
    "reward=gold",
    "reward.audit.labels_per_iteration=8",
    "reward.audit.labels_from=human",
)


def test_people_who_prefer_the_start_policy_raise_an_alarm(tmp_path, monkeypatch):
    """Four iterations with 8 comparisons, nearly all lost, or tied where both policies said the same."""
    monkeypatch.setattr(people, "POLL_SECONDS", 0.01)
    sft = planned("sft", *SMALL, f"outputs={tmp_path}")
    execute(sft)
    stage = planned("grpo", *SMALL, *GRPO, f"needs.policy={Path(sft.model)}", f"outputs={tmp_path}")
    path = audit_store_path(stage.directory)
    done = threading.Event()

    def person() -> None:
        store = LabelStore(path, create=True)
        while not done.wait(0.01):
            item = store.next_item("ana")
            if item is not None:
                store.label(item.id, "ana", item.id, winner=SECOND, shown=SECOND, seconds=1.0)
        store.close()

    thread = threading.Thread(target=person)
    thread.start()
    try:
        execute(stage)
    finally:
        done.set()
        thread.join()
    metrics = read_json(stage.directory / "result.json")["metrics"]
    labels = LabelStore(path).labels()
    assert metrics["audit/labels"] == 4 * 8 and metrics["audit/unanswered"] == 0
    assert metrics["audit/alarm"] == 1 and 20 < len(labels) <= 32
    assert {label.item.names for label in labels} == {("policy", "start")}

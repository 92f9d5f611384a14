"""Corpus of the built-in world of repairs (`data=repairs`). It needs no download; see `packs/code/repairs/`.

A training row is a demonstration: a conversation in which the model learns the repair. Wrong attempts before the repair
are only context.
"""

from __future__ import annotations

import numpy as np

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.messages import Message
from rlhf_lab.core.types import Corpus, LoadReport, Pair
from rlhf_lab.data.loading import world_corpus
from rlhf_lab.data.transcript import render_prompt, to_messages
from rlhf_lab.packs.code.repairs.settings import Repairs
from rlhf_lab.packs.code.repairs.world import VERSION, RepairWorld


def build(settings: Repairs) -> Corpus:
    """Generate the corpus of a world of repairs. `environment` is the `RepairWorld`."""
    world = RepairWorld(settings)
    splits: dict[str, list[Pair]] = {}
    reports: dict[str, LoadReport] = {}
    for split in ("train", "test"):
        rows = [_conversation(world, task, settings.revise) for task in world.tasks(split)]
        tries = [row.meta["tries"] for row in rows]
        statistics = {
            "share of demonstrations that repair at once": float(np.mean([count == 0 for count in tries])),
            "wrong tries per demonstration": float(np.mean(tries)),
        }
        splits[split] = rows
        reports[split] = LoadReport(rows=len(rows), kept=len(rows), statistics=statistics)
    described = f"repairs world {VERSION}"
    return world_corpus("repairs", described, settings, splits, reports, preferences=False, environment=world)


def _conversation(world: RepairWorld, task: Task, revise: float) -> Pair:
    """Return a complete conversation; `learn_from` in its metadata is the index of the first message to learn."""
    demonstration = world.demonstrate(task, revise)
    *earlier, last = demonstration.messages
    messages: list[Message] = [*to_messages(task.prompt), *earlier]
    learn_from = len(messages) - len(earlier) + demonstration.learn_from
    meta = {
        "category": task.metadata["category"],
        "tries": len(demonstration.tries),
        "correct_chosen": 1,
        "learn_from": learn_from,
    }
    return Pair(render_prompt(messages), last["content"], "", meta)

"""Sources of comparisons for audited training: the judge, or people (`reward.audit.labels_from=judge`, `human`).

For people, training adds the comparisons of an iteration to a label store next to the run directory and waits for the
answers. People give them on the page of `python -m rlhf_lab label STORE`, in another process. The store is append-only,
so an interrupted run finds the answers that it had already received.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.types import Comparer, FloatArray
from rlhf_lab.packs.judging.judges.context import judge_of
from rlhf_lab.packs.judging.judges.pairwise import Candidates, judge_pairs
from rlhf_lab.packs.judging.labels.command import audit_store_path
from rlhf_lab.packs.judging.labels.items import FIRST, SECOND, TIE, LabelItem, digest
from rlhf_lab.packs.judging.labels.store import LabelStore
from rlhf_lab.training.run import Run

TITLE = "audit"


def by_judge(run: Run) -> Comparer:
    """Return a comparer that asks the judge of the run (`judge=…`) in both orders, two requests per comparison.

    A comparison is unanswered if the answer in one of the orders is a refusal, truncated or unreadable.
    """
    judge = judge_of(run)

    def ask(pairs: Sequence[Candidates]) -> list[float]:
        judgements = judge_pairs(judge, pairs, title=TITLE)
        return [math.nan if judgement.score is None else judgement.score for judgement in judgements]

    def compare(first: Sequence[Episode], second: Sequence[Episode]) -> FloatArray:
        pairs = [Candidates(a.prompt, a.response, b.response) for a, b in zip(first, second, strict=True)]
        # one process sends the requests, because each would be paid for
        return np.array(ranks.on_main(lambda: ask(pairs)), dtype=np.float64)

    return compare


POLL_SECONDS = 1.0
"""Seconds between two readings of the store while training waits."""
SCORE: dict[str | None, float] = {FIRST: 1.0, TIE: 0.5, SECOND: 0.0}
"""Winner of an item → score of the first response."""


def by_people(run: Run) -> Comparer:
    """Return a comparer that asks people and waits for them, at most `reward.audit.wait_minutes`.

    A comparison is unanswered if everyone who saw it skipped it, or if nobody answered in time. The first answer to a
    comparison counts. Identical responses are a tie, and the same two responses to the same prompt are asked once.
    """
    path = audit_store_path(run.directory)
    store = LabelStore(path, create=True) if ranks.is_main() else None
    wait_seconds = 60 * run.config.reward.audit.wait_minutes

    def ask(items: Sequence[LabelItem]) -> None:
        assert store is not None
        waiting = store.add(items)
        if waiting:
            command = shlex.join(["python", "-m", "rlhf_lab", "label", str(path)])
            console.inform(f"  audit: {waiting} comparisons wait for an answer: {command}")

    def answers(items: Sequence[LabelItem]) -> Mapping[str, float]:
        assert store is not None
        winners = store.first_answers()
        return {item.id: SCORE.get(winners[item.id], math.nan) for item in items if item.id in winners}

    def compare(first: Sequence[Episode], second: Sequence[Episode]) -> FloatArray:
        items = [_item(a, b) for a, b in zip(first, second, strict=True)]
        asked = list({item.id: item for item in items if item.first != item.second}.values())
        # one process reads and writes the store; all of them wait for the same answers
        ranks.on_main(lambda: ask(asked))
        deadline = time.monotonic() + wait_seconds
        while True:
            given = ranks.on_main(lambda: answers(asked))
            is_late = time.monotonic() >= deadline or run.stopping.is_set()
            if all(item.id in given for item in asked) or ranks.any_of(is_late):
                break
            time.sleep(POLL_SECONDS)
        scores = [0.5 if item.first == item.second else given.get(item.id, math.nan) for item in items]
        return np.array(scores, dtype=np.float64)

    return compare


def _item(policy: Episode, start: Episode) -> LabelItem:
    return LabelItem(
        id=digest("audit", policy.prompt, policy.response, start.response),
        prompt_id=digest(policy.prompt),
        prompt=policy.prompt,
        first=policy.response,
        second=start.response,
        names=("policy", "start"),
    )

"""One annotator at work: what the page shows next, and what it is told about the labels so far."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.data.transcript import reply_message, to_conversation
from rlhf_lab.packs.judging.labels import agreement
from rlhf_lab.packs.judging.labels.items import SECOND, TIE, Item, other, shown_first
from rlhf_lab.packs.judging.labels.store import LabelStore
from rlhf_lab.statistics.estimates import format_estimate

SPEAKERS = {"user": "Person", "assistant": "Assistant", "system": "System", "tool": "Tool"}
LEAST_LABELS = 10
"""Labels from which the page offers its figures of agreement."""


@dataclass
class Session:
    """An annotator, and the store the answers go to.

    Attributes:
        judge: what the items' winners are of, in words.
        seed: draws which reply is shown as number 1.
    """

    store: LabelStore
    annotator: str
    seed: int
    judge: str

    def state(self) -> dict[str, Any]:
        """What the page shows. Who wrote a reply and what the judge says of it is not among it."""
        progress = self.store.progress(self.annotator)
        item = self.store.next_item(self.annotator)
        return {
            "item": None if item is None else self._shown(item),
            "progress": {**asdict(progress), "left": progress.left},
            "last": self.store.last_answer(self.annotator),
            "offers_figures": progress.labelled >= LEAST_LABELS,
        }

    def _shown(self, item: Item) -> dict[str, Any]:
        conversation = to_conversation(item.prompt)
        turns = [_turn(message) for message in conversation.messages]
        if conversation.tools:
            turns.insert(0, {"speaker": "Tools", "text": _json(conversation.tools), "calls": ""})
        replies = [item.first, item.second]
        if shown_first(item.id, self.seed, self.annotator) == SECOND:
            replies.reverse()
        return {"id": item.id, "prompt": turns, "replies": [_turn(reply_message(reply)) for reply in replies]}

    def answer(self, event: str, item_id: str, choice: str, seconds: float) -> None:
        """Keep an answer: "1" or "2" is the reply shown there, then "tie" and "skip". Raises OutOfDate."""
        shown = shown_first(item_id, self.seed, self.annotator)
        winner = {"1": shown, "2": other(shown), "tie": TIE, "skip": None}[choice]
        self.store.label(event, self.annotator, item_id, winner=winner, shown=shown, seconds=round(seconds, 3))

    def undo(self, event: str, undoes: int) -> None:
        """Take back the last answer. Raises OutOfDate."""
        self.store.undo(event, self.annotator, undoes)

    def figures(self) -> dict[str, Any]:
        """Agreement with the judge and between annotators, and the judge's calibration, in words."""
        labels = self.store.labels()
        rows = []
        for name, given in agreement.by_annotator(labels).items():
            judged = agreement.with_judge(given)
            if judged is not None:
                rows.append(_row(f"{name} and {self.judge}", judged))
        rows += [_row(f"{a} and {b}", shared) for a, b, shared in agreement.pairs_of_annotators(labels)]
        bins = agreement.calibration(labels)
        return {
            "agreement": rows,
            "calibration": [
                {
                    "confidence": f"{level.confidence:.2f}",
                    "agreement": format_estimate(level.agreement),
                    "n": level.agreement.n,
                }
                for level in bins
            ],
            "left": [
                {"annotator": name, "share": format_estimate(left), "n": left.n}
                for name, given in agreement.by_annotator(labels).items()
                if (left := agreement.left_chosen(given)).n
            ],
        }

    def summary(self) -> list[str]:
        """How far this annotator is, and the agreement so far, in lines."""
        progress = self.store.progress(self.annotator)
        lines = [
            f"{progress.labelled} of {progress.total} labelled by {self.annotator} ({progress.ties} ties), "
            f"{progress.skipped} skipped, {progress.left} left"
        ]
        if progress.labelled < LEAST_LABELS:
            return lines
        for row in self.figures()["agreement"]:
            lines.append(f"{row['who']}: same answer {row['same']}, κ {row['kappa']}, n={row['n']}")
        return lines


def _row(who: str, rated: agreement.Agreement) -> dict[str, Any]:
    return {
        "who": who,
        "same": format_estimate(rated.same),
        "kappa": format_estimate(rated.kappa),
        "decided": format_estimate(rated.decided),
        "n": rated.same.n,
    }


def _turn(message: Message) -> dict[str, str]:
    """One turn as the page shows it."""
    speaker = SPEAKERS[message["role"]]
    if message.get("name"):
        speaker += f" {message['name']}"
    calls = message.get("tool_calls")
    return {"speaker": speaker, "text": message["content"], "calls": _json(calls) if calls else ""}


def _json(values: Sequence[Any]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False)

"""Session of one annotator: the next item to show, and statistics of the labels so far."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlhf_lab.core.messages import Message
from rlhf_lab.data.transcript import response_message, to_conversation
from rlhf_lab.packs.judging.labels import agreement
from rlhf_lab.packs.judging.labels.items import SECOND, TIE, LabelItem, other_side, shown_first
from rlhf_lab.packs.judging.labels.store import LabelStore
from rlhf_lab.statistics.estimates import format_estimate

SPEAKERS = {"user": "Person", "assistant": "Assistant", "system": "System", "tool": "Tool"}
LEAST_LABELS = 10
"""Minimum number of labels before the page offers agreement statistics."""


@dataclass
class LabelSession:
    """Labelling session of one annotator: gives the next item to show and stores the answers.

    Attributes:
        seed: seed that determines which response is shown as number 1.
        judge: name of the source of the items' winners, in words.
        usd_per_hour: pay of the annotator in USD, for the cost of a label; 0 if unknown.
        grows: True if another process may add items while the page is open.
    """

    store: LabelStore
    annotator: str
    seed: int
    judge: str
    usd_per_hour: float = 0.0
    grows: bool = False

    def state(self) -> dict[str, Any]:
        """Return the state of the page. It reveals neither the authors nor the judge's verdict."""
        progress = self.store.progress(self.annotator)
        item = self.store.next_item(self.annotator)
        return {
            "item": None if item is None else self._shown(item),
            "progress": {**asdict(progress), "left": progress.left},
            "last": self.store.last_answer(self.annotator),
            "grows": self.grows,
            "offers_figures": progress.labelled >= LEAST_LABELS,
        }

    def _shown(self, item: LabelItem) -> dict[str, Any]:
        messages, tools = to_conversation(item.prompt)
        shown_tools = [{"speaker": "Tools", "text": _json(tools), "calls": ""}] if tools else []
        responses = [item.first, item.second]
        if shown_first(item.id, self.seed, self.annotator) == SECOND:
            responses.reverse()
        return {
            "id": item.id,
            "prompt": [*shown_tools, *map(_turn, messages)],
            "replies": [_turn(response_message(response)) for response in responses],
        }

    def answer(self, event: str, item_id: str, choice: str, seconds: float) -> None:
        """Store an answer: "1" or "2" is the response shown there, else "tie" or "skip". Raises OutOfDate."""
        shown = shown_first(item_id, self.seed, self.annotator)
        winner = {"1": shown, "2": other_side(shown), "tie": TIE, "skip": None}[choice]
        self.store.label(event, self.annotator, item_id, winner=winner, shown=shown, seconds=round(seconds, 3))

    def undo(self, event: str, undoes: int) -> None:
        """Undo the last answer. Raises OutOfDate."""
        self.store.undo(event, self.annotator, undoes)

    def figures(self) -> dict[str, Any]:
        """Return, as text, the agreement with the judge and between annotators, and the judge's calibration."""
        labels = self.store.labels()
        rows = []
        for name, provided in agreement.by_annotator(labels).items():
            if (judged := agreement.with_judge(provided)) is not None:
                rows.append(_row(f"{name} and {self.judge}", judged))
        rows += [_row(f"{a} and {b}", shared) for a, b, shared in agreement.pairs_of_annotators(labels)]
        calibration = []
        for confidence, rate in agreement.calibration(labels):
            calibration.append({"confidence": f"{confidence:.2f}", "agreement": format_estimate(rate), "n": rate.n})
        lefts = {name: agreement.left_chosen(own) for name, own in agreement.by_annotator(labels).items()}
        left = [{"annotator": name, "share": format_estimate(e), "n": e.n} for name, e in lefts.items() if e.n]
        return {"agreement": rows, "calibration": calibration, "left": left}

    def summary(self) -> list[str]:
        """Return lines on this annotator's progress and on the agreement so far."""
        progress = self.store.progress(self.annotator)
        lines = [
            f"{progress.labelled} of {progress.total} labelled by {self.annotator} ({progress.ties} ties), "
            f"{progress.skipped} skipped, {progress.left} left"
        ]
        seconds = [label.seconds for label in self.store.labels() if label.annotator == self.annotator]
        if seconds:
            # the mean, because a few long answers are paid for too
            mean_s = sum(seconds) / len(seconds)
            price = f", ${mean_s / 3600 * self.usd_per_hour:.2g} per label" if self.usd_per_hour else ""
            lines.append(f"{mean_s:.1f} s per label{price}")
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
    speaker = SPEAKERS[message["role"]]
    if message.get("name"):
        speaker += f" {message['name']}"
    calls = message.get("tool_calls")
    return {"speaker": speaker, "text": message["content"], "calls": _json(calls) if calls else ""}


def _json(values: Sequence[Any]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False)

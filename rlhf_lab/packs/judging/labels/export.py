"""Export of labels: preference pairs for `data=pairs`, or all labels including ties, to evaluate judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_lab.core.files import json_lines, make_dir, write_text
from rlhf_lab.core.types import Pair
from rlhf_lab.data.formats import from_pair
from rlhf_lab.packs.judging.labels.items import FIRST, TIE
from rlhf_lab.packs.judging.labels.store import LabelStore, StoredLabel

PAIRS, LABELS = "pairs", "labels"


class Exported(NamedTuple):
    """Counts of an export: written rows, ties left out, and skips."""

    rows: int
    ties: int
    skips: int


def export(store: LabelStore, file: Path, form: str = PAIRS) -> Exported:
    """Write the labels of all annotators to a JSONL file, one row per label. Skips are not written.

    Args:
        form: `pairs`: {prompt, chosen, rejected, annotator, seconds, item} as messages, without ties;
            `labels`: {id, prompt_id, prompt, first, second, names, winner, annotator, seconds} as text, with ties.
    """
    labels = store.labels()
    rows = FORMS[form](labels)
    make_dir(file.absolute().parent)
    write_text(file, json_lines(rows, ensure_ascii=False))
    # only `pairs` leaves labels out, namely ties
    left_out = len(labels) - len(rows)
    return Exported(len(rows), left_out, store.skips())


def pair_rows(labels: Sequence[StoredLabel]) -> list[dict[str, Any]]:
    """Return labels with a winner in TRL's conversational preference format, which keeps roles and tool calls."""
    return [_pair_row(label) for label in labels if label.winner != TIE]


def _pair_row(label: StoredLabel) -> dict[str, Any]:
    item = label.item
    chosen, rejected = item.first, item.second
    if label.winner != FIRST:
        chosen, rejected = rejected, chosen
    (row,) = from_pair(Pair(item.prompt, chosen, rejected), "preference", conversational=True)
    return {**row, "annotator": label.annotator, "seconds": label.seconds, "item": item.id}


def label_rows(labels: Sequence[StoredLabel]) -> list[dict[str, Any]]:
    """Return every label in the form of judgements."""
    return [
        {
            "id": label.item.id,
            "prompt_id": label.item.prompt_id,
            "prompt": label.item.prompt,
            "first": label.item.first,
            "second": label.item.second,
            "names": list(label.item.names),
            "winner": label.winner,
            "annotator": label.annotator,
            "seconds": label.seconds,
        }
        for label in labels
    ]


FORMS: dict[str, Callable[[Sequence[StoredLabel]], list[dict[str, Any]]]] = {PAIRS: pair_rows, LABELS: label_rows}

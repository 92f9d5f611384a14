"""Labels as files: preference pairs that `data=pairs` reads, or every label with its ties, for what compares judges."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_lab.core.files import make_folder, write_text
from rlhf_lab.core.types import Pair
from rlhf_lab.data.formats import from_pair
from rlhf_lab.packs.judging.labels.items import FIRST, TIE
from rlhf_lab.packs.judging.labels.store import Label, LabelStore

PAIRS, LABELS = "pairs", "labels"


class Exported(NamedTuple):
    """How many rows were written, and how many answers gave none."""

    rows: int
    ties: int
    skips: int


def export(store: LabelStore, file: Path, form: str = PAIRS) -> Exported:
    """Write the labels of all annotators to a JSONL file, one row per label. Skips give no row.

    Args:
        form: `pairs`: {prompt, chosen, rejected, annotator, seconds, item}, messages, ties left out;
            `labels`: {id, prompt_id, prompt, first, second, names, winner, annotator, seconds}, text, ties included.
    """
    labels = store.labels()
    rows = FORMS[form](labels)
    make_folder(file.absolute().parent)
    write_text(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    left_out = len(labels) - len(rows)
    return Exported(len(rows), left_out, store.skips())


def pair_rows(labels: Sequence[Label]) -> list[dict[str, Any]]:
    """Labels with a winner as TRL's conversational preference type: messages keep what text might lose."""
    return [_pair_row(label) for label in labels if label.winner != TIE]


def _pair_row(label: Label) -> dict[str, Any]:
    item = label.item
    chosen, rejected = (item.first, item.second) if label.winner == FIRST else (item.second, item.first)
    (row,) = from_pair(Pair(item.prompt, chosen, rejected), "preference", conversational=True)
    return {**row, "annotator": label.annotator, "seconds": label.seconds, "item": item.id}


def label_rows(labels: Sequence[Label]) -> list[dict[str, Any]]:
    """Every label in the form of judgements."""
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


FORMS: dict[str, Callable[[Sequence[Label]], list[dict[str, Any]]]] = {PAIRS: pair_rows, LABELS: label_rows}

"""Agreement of the refusal rules with labels: `python tests/refusal_agreement.py [XSTEST_COMPLETIONS.csv …]`.

refusal_labels.jsonl has 250 responses, written and labelled before the rules were read. A hash of the response puts
each into the development half, whose errors were read to improve the rules, or the unseen half, whose errors were not.
Files in the form of XSTest's `model_completions/` (prompt, completion, final_label) have labels of real models.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from rlhf_lab.evaluations.refusals import read_response

LABELS = Path(__file__).with_name("refusal_labels.jsonl")
HALVES = ("development", "unseen")
HEAD = "| responses | n | refused: right | refused: missed | refused: false | answered, on topic: right | accuracy |\n"
HEAD += "|---|---|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Labelled:
    """A response with a person's labels, and a kind. `answered` and `on_topic` are None in files of XSTest."""

    prompt: str
    response: str
    kind: str
    refused: bool
    answered: bool | None = None
    on_topic: bool | None = None

    @property
    def half(self) -> str:
        return HALVES[int(sha256(self.response.encode()).hexdigest(), 16) % 2]


def labelled_responses() -> list[Labelled]:
    lines = LABELS.read_text(encoding="utf-8").splitlines()
    return [Labelled(**json.loads(line)) for line in lines]


def read_xstest(path: str) -> list[Labelled]:
    """Read a file of XSTest completions. A partial refusal is no refusal."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Labelled(row["prompt"], row["completion"], row["final_label"], row["final_label"] == "2_full_refusal")
        for row in rows
    ]


def agreement_row(name: str, labelled: Iterable[Labelled]) -> str:
    """Return a row of the table: the confusion matrix of complete refusals, and the other two questions."""
    rows = list(labelled)
    readings = [read_response(row.prompt, row.response) for row in rows]
    refused = [reading.refused and not reading.answered for reading in readings]
    right = _count(rows, refused, lambda label, rule: label and rule)
    missed = _count(rows, refused, lambda label, rule: label and not rule)
    false = _count(rows, refused, lambda label, rule: rule and not label)
    pairs = list(zip(rows, readings, strict=True))
    others = "–"
    if rows[0].answered is not None:
        answered = sum(row.answered == reading.answered for row, reading in pairs) / len(rows)
        on_topic = sum(row.on_topic == reading.on_topic for row, reading in pairs) / len(rows)
        others = f"{answered:.3f}, {on_topic:.3f}"
    accuracy = 1 - (missed + false) / len(rows)
    return f"| {name} | {len(rows)} | {right} | {missed} | {false} | {others} | {accuracy:.3f} |\n"


def _count(rows: list[Labelled], refused: list[bool], counts: Callable[[bool, bool], bool]) -> int:
    return sum(counts(row.refused, rule) for row, rule in zip(rows, refused, strict=True))


def agreement_table(files: Iterable[str] = ()) -> str:
    """Return the table of both halves, of each kind of response in the unseen half, and of files of XSTest."""
    rows = labelled_responses()
    unseen = [row for row in rows if row.half == "unseen"]
    table = HEAD
    for half in HALVES:
        table += agreement_row(f"{half} half", (row for row in rows if row.half == half))
    for kind in dict.fromkeys(row.kind for row in unseen):
        table += agreement_row(f"unseen: {kind}", (row for row in unseen if row.kind == kind))
    for file in files:
        table += agreement_row(Path(file).stem, read_xstest(file))
    return table


if __name__ == "__main__":
    print(agreement_table(sys.argv[1:]), end="")

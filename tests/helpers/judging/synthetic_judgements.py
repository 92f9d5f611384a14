"""Judgements and labels of a simulated judge and simulated people, as the files that `leaderboard` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

WORDS = ("first", "second")
SCORES = {"first": 1.0, "tie": 0.5, "second": 0.0}


def judgement(
    names: tuple[str, str], votes: tuple[str | None, str | None], *, number: int = 0, **changes: Any
) -> dict[str, Any]:
    """A row. `votes` are winners where `first` is shown first, and where it is shown second; None is refused."""
    scored = None not in votes
    agreed = votes[0] if votes[0] == votes[1] else "tie"
    row = {
        "id": f"row-{number}",
        "prompt_id": number,
        "prompt": f"\n\nHuman: question {number}\n\nAssistant:",
        "first": f"answer of {names[0]}",
        "second": f"answer of {names[1]}",
        "names": list(names),
        "votes": [
            {"shown": shown, "winner": winner, "reason": "", "unscored": None if winner else "refused"}
            for shown, winner in zip(WORDS, votes, strict=True)
        ],
        "winner": agreed if scored else None,
        "score": (SCORES[str(votes[0])] + SCORES[str(votes[1])]) / 2 if scored else None,
        "reference": None,
    }
    return row | changes


def league(
    strengths: Mapping[str, float],
    prompts: int,
    *,
    verbosity: Mapping[str, float] | None = None,
    position: float = 0.0,
    length: float = 0.0,
    refused: float = 0.0,
    labelled: float = 0.0,
    seed: int = 0,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Every pair of players on every prompt: rows of judgements, and people's labels of a random part of them.

    Args:
        strengths: name → true quality in logits, which is all that people go by.
        verbosity: name → log ratio of the length of its responses to that of others.
        position, length: effects of the judge, in logits: for the first response, and per log of the ratio of lengths.
        refused: fraction of single votes.
        labelled: fraction of comparisons that two people label, each for themselves.
    """
    rng = np.random.default_rng(seed)
    names = list(strengths)
    rows, labels = [], []
    for number in range(prompts):
        sizes = {name: int(120 * np.exp((verbosity or {}).get(name, 0.0) + 0.4 * rng.normal())) for name in names}
        here = {name: strengths[name] + 0.7 * rng.normal() for name in names}
        for index, first in enumerate(names):
            for second in names[index + 1 :]:
                quality = here[first] - here[second]
                logit = quality + length * np.log(sizes[first] / sizes[second])
                votes = [_vote(rng, logit + sign * position, refused) for sign in (1, -1)]
                row = judgement((first, second), (votes[0], votes[1]), number=number)
                row |= {"id": f"row-{len(rows)}", "first": "a" * sizes[first], "second": "b" * sizes[second]}
                rows.append(row)
                if rng.random() < labelled:
                    labels += [_label(rng, row, quality, annotator) for annotator in ("ann", "bob")]
    return rows, labels


def _vote(rng: np.random.Generator, logit: float, refused: float) -> str | None:
    if rng.random() < refused:
        return None
    return WORDS[int(rng.random() > 1 / (1 + np.exp(-logit)))]


def _label(rng: np.random.Generator, row: Mapping[str, Any], quality: float, annotator: str) -> dict[str, Any]:
    """A person's label, now and then with the two responses in the other order."""
    winner = _vote(rng, quality, 0.0)
    label = {key: row[key] for key in ("prompt", "first", "second", "names")}
    if rng.random() < 0.5:
        label |= {"first": row["second"], "second": row["first"], "names": row["names"][::-1]}
        winner = {"first": "second", "second": "first"}[str(winner)]
    return label | {"winner": winner, "annotator": annotator, "seconds": 3.2}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path

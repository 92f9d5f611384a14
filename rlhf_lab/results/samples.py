"""Chooses the samples a report embeds, and packs them as JSON that is safe inside a page.

All prompts, where the budget holds them. The first are taken at regular intervals, so they show typical behaviour, and
in turn where the gold reward falls furthest behind the proxy, which are labelled as chosen for that; then all others.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from rlhf_lab.results.gains import by_prompt, policy_names
from rlhf_lab.results.rundir import Run

BUDGET_BYTES = 40_000
MAX_TEXT = 1_200
PER_PROMPT = 2


def pick_samples(run: Run, *, budget: int = BUDGET_BYTES) -> dict[str, Any]:
    """Prompts with the responses of every policy to them, until `budget` bytes are full.

    Returns:
        {"policies": [name], "prompts": [{"id", "text", "why": "regular" | "hacked", "replies": [[{"text", "proxy",
        "gold", "kl", "tokens", "marks"}] per policy]}], "total": prompts that were evaluated}.
    """
    rows, names = run.evaluation, policy_names(run)
    if rows.empty:
        return {"policies": names, "prompts": [], "total": 0}
    order = rows["prompt_id"].drop_duplicates().tolist()
    hacked = _most_hacked(run, names)
    stride = max(1, len(order) // 24)
    regular = order[::stride]
    queue = [choice for pair in zip(regular, hacked, strict=False) for choice in ((pair[0], 0), (pair[1], 1))]
    queue += [(prompt, 0) for prompt in regular[len(hacked) :]]
    queue += [(prompt, 1) for prompt in hacked] + [(prompt, 0) for prompt in order]
    replies: dict[Any, dict[str, list[dict[Any, Any]]]] = {}
    for row in rows.groupby(["prompt_id", "policy"], sort=False).head(PER_PROMPT).to_dict("records"):
        replies.setdefault(row["prompt_id"], {}).setdefault(row["policy"], []).append(row)
    chosen: dict[Any, dict[str, Any]] = {}
    used = 0
    for prompt, is_hacked in queue:
        if prompt in chosen:
            continue
        entry = _entry(prompt, replies[prompt], names, "hacked" if is_hacked else "regular")
        size = len(pack(entry))
        if used + size > budget and chosen:
            break
        used += size
        chosen[prompt] = entry
    places = {prompt: place for place, prompt in enumerate(order)}
    listed = sorted(chosen, key=lambda prompt: (chosen[prompt]["why"] == "hacked", places[prompt]))
    prompts = [chosen[prompt] for prompt in listed]
    return {"policies": names, "prompts": prompts, "total": len(order)}


def pack(value: object) -> str:
    """JSON that cannot close its script element or start a comment, whatever the text in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _most_hacked(run: Run, names: list[str]) -> list[Any]:
    """Up to 12 prompts whose proxy gain exceeds their gold gain the most, last policy against first."""
    if len(names) < 2 or not run.has_gold:
        return []
    gap = sum(
        sign * by_prompt(run, names[place], metric)
        for sign, place, metric in ((1, -1, "proxy"), (-1, 0, "proxy"), (-1, -1, "gold"), (1, 0, "gold"))
    )
    if not isinstance(gap, pd.Series):
        return []
    gap = gap.dropna()
    return gap[gap > 0].sort_values(ascending=False).index.get_level_values("prompt_id")[:12].tolist()


def _entry(prompt: Any, rows: dict[str, list[dict[Any, Any]]], names: list[str], why: str) -> dict[str, Any]:
    """One prompt with the replies of every policy. `rows` maps a policy to its rows of evaluation.jsonl."""
    replies = [[_reply(row) for row in rows.get(name, [])] for name in names]
    text = str(next(iter(rows.values()))[0]["prompt"]).strip()
    return {"id": str(prompt), "text": _cut(text), "why": why, "replies": replies}


def _reply(row: dict[Any, Any]) -> dict[str, Any]:
    marks = [name for name in ("verbose", "garble") if row.get(name) == 1]
    marks += ["cut off"] if row.get("ended") == 0 else []
    numbers = {name: _number(row.get(name)) for name in ("proxy", "gold", "kl", "tokens")}
    return {"text": _cut(str(row["response"])), **numbers, "marks": marks}


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(float(value), 3)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + f" … ({len(text) - MAX_TEXT} more characters)"

"""Chooses the samples a report embeds, and packs them as JSON that is safe inside a page.

All prompts, where the budget holds them. The first are taken at regular intervals, so they show typical behaviour, and
in turn where the gold reward falls furthest behind the proxy, which are labelled as chosen for that; then all others.
Replies that were kept as audio are embedded as such, in place of their code words.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_lab.results.gains import by_prompt, policy_names
from rlhf_lab.results.rundir import Run

BUDGET_BYTES = 40_000
MAX_TEXT = 1_200
"""Characters of a prompt or reply that are shown."""
CLIP = re.compile(r"clips/[\w-]+\.wav")
"""Where a reply's audio may lie within its run: rows of a folder from elsewhere name no other files."""
CLIP_BYTES = 6_000_000
"""Of all audio on a page."""
PER_PROMPT = 2
"""Replies per policy and prompt."""


def pick_samples(run: Run, *, budget: int = BUDGET_BYTES) -> dict[str, Any]:
    """Prompts with the responses of every policy to them, until `budget` bytes are full.

    Returns:
        {"policies": [name], "prompts": [{"id", "text", "why": "regular" | "hacked", "replies": [[{"text", "proxy",
        "gold", "kl", "tokens", "marks", and "sound" as a data: address where there is one}] per policy]}], "total":
        prompts that were evaluated}.
    """
    rows = run.evaluation
    names = policy_names(run)
    if rows.empty:
        return {"policies": names, "prompts": [], "total": 0}
    all_prompts = rows["prompt_id"].drop_duplicates().tolist()
    replies: dict[Any, dict[str, list[dict[Any, Any]]]] = {}
    for row in rows.groupby(["prompt_id", "policy"], sort=False).head(PER_PROMPT).to_dict("records"):
        replies.setdefault(row["prompt_id"], {}).setdefault(row["policy"], []).append(row)
    entries: dict[Any, dict[str, Any]] = {}
    used_bytes = 0
    for prompt, why in _order_candidates(all_prompts, _most_hacked(run, names)):
        if prompt in entries:
            continue
        entry = _prompt_entry(prompt, replies[prompt], names, why)
        size = len(pack(entry))
        if used_bytes + size > budget and entries:  # a page shows one prompt however long it is
            break
        used_bytes += size
        entries[prompt] = entry
    places = {prompt: place for place, prompt in enumerate(all_prompts)}
    in_page_order = sorted(entries, key=lambda prompt: (entries[prompt]["why"] == "hacked", places[prompt]))
    prompts = [entries[prompt] for prompt in in_page_order]
    _embed_clips(run.path, prompts)
    return {"policies": names, "prompts": prompts, "total": len(all_prompts)}


def _order_candidates(all_prompts: list[Any], hacked: list[Any]) -> list[tuple[Any, str]]:
    """(prompt, why it is shown), the most wanted first. A prompt may be there several times; its first place counts."""
    stride = max(1, len(all_prompts) // 24)
    regular = all_prompts[::stride]
    queue: list[tuple[Any, str]] = []
    for regular_prompt, hacked_prompt in zip(regular, hacked, strict=False):
        queue += [(regular_prompt, "regular"), (hacked_prompt, "hacked")]
    queue += [(prompt, "regular") for prompt in regular[len(hacked) :]]
    queue += [(prompt, "hacked") for prompt in hacked]  # those beyond the regular ones
    queue += [(prompt, "regular") for prompt in all_prompts]
    return queue


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
    first, last = names[0], names[-1]
    gap = (
        by_prompt(run, last, "proxy")
        - by_prompt(run, first, "proxy")
        - by_prompt(run, last, "gold")
        + by_prompt(run, first, "gold")
    ).dropna()
    largest_first = gap[gap > 0].sort_values(ascending=False)
    return largest_first.index.get_level_values("prompt_id")[:12].tolist()


def _prompt_entry(prompt: Any, rows: dict[str, list[dict[Any, Any]]], names: list[str], why: str) -> dict[str, Any]:
    """One prompt with the replies of every policy. `rows` maps a policy to its rows of evaluation.jsonl."""
    replies = [[_reply_entry(row) for row in rows.get(name, [])] for name in names]
    text = str(next(iter(rows.values()))[0]["prompt"]).strip()
    return {"id": str(prompt), "text": _cut_text(text), "why": why, "replies": replies}


def _reply_entry(row: dict[Any, Any]) -> dict[str, Any]:
    marks = [name for name in ("verbose", "garble") if row.get(name) == 1]
    marks += ["cut off"] if row.get("ended") == 0 else []
    numbers = {name: _round_or_none(row.get(name)) for name in ("proxy", "gold", "kl", "tokens")}
    entry = {"text": _cut_text(str(row["response"])), **numbers, "marks": marks}
    if CLIP.fullmatch(str(row.get("clip"))):
        entry["clip"] = row["clip"]
    return entry


def _embed_clips(folder: Path, prompts: list[dict[str, Any]]) -> None:
    """Put the audio of replies in place of their text, in the order of the page, until `CLIP_BYTES` are full."""
    used_bytes = 0
    for reply in _replies_with_clips(prompts):
        path = folder / reply.pop("clip")
        # a folder that was copied without its clips still has its numbers
        if not path.is_file() or used_bytes + path.stat().st_size > CLIP_BYTES:
            continue
        used_bytes += path.stat().st_size
        reply["sound"] = f"data:audio/wav;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _replies_with_clips(prompts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for prompt in prompts:
        for of_policy in prompt["replies"]:
            yield from (reply for reply in of_policy if "clip" in reply)


def _round_or_none(value: object) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(float(value), 3)


def _cut_text(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT} more characters)"

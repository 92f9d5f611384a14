"""Selection of the samples that a report embeds, packed as JSON that is safe inside a page.

All prompts are shown if they fit the budget. Otherwise, prompts at regular intervals, which show typical behaviour,
alternate with prompts whose gold reward is furthest behind the proxy, which are labelled as such; then all others
follow. Responses that were stored as audio are embedded as audio instead of their codec tokens.
"""

from __future__ import annotations

import base64
import json
import math
import re
from pathlib import Path
from typing import Any

from rlhf_lab.results.gains import PROMPT, by_prompt, policy_names
from rlhf_lab.results.rundir import StoredRun

BUDGET_BYTES = 40_000
"""Maximum size of the packed samples on a page."""
MAX_TEXT = 1_200
"""Maximum number of characters shown of a prompt or response."""
CLIP = re.compile(r"clips/[\w-]+\.wav")
"""Allowed path of a response's audio within its run. Rows of a run from elsewhere cannot name other files."""
CLIP_BYTES = 6_000_000
"""Maximum size of all audio on a page."""
PER_PROMPT = 2
"""Maximum number of responses per policy and prompt."""


def pick_samples(run: StoredRun, *, budget: int = BUDGET_BYTES) -> dict[str, Any]:
    """Return prompts with the responses of every policy to them, until `budget` bytes are used.

    Returns:
        {"policies": [name], "prompts": [{"id", "text", "why": "regular" | "hacked", "replies": [[{"text", "proxy",
        "gold", "kl", "tokens", "marks", and "sound" as a data: address if there is one}] per policy]}], "total":
        number of prompts that were evaluated}.
    """
    rows = run.evaluation
    names = policy_names(run)
    if rows.empty:
        return {"policies": names, "prompts": [], "total": 0}
    # Runs of different seeds have different prompts with the same ids.
    all_prompts = list(rows[PROMPT].drop_duplicates().itertuples(index=False, name=None))
    responses: dict[Any, dict[str, list[dict[Any, Any]]]] = {}
    for row in rows.groupby([*PROMPT, "policy"], sort=False).head(PER_PROMPT).to_dict("records"):
        prompt = tuple(row[name] for name in PROMPT)
        responses.setdefault(prompt, {}).setdefault(row["policy"], []).append(row)
    entries: dict[Any, dict[str, Any]] = {}
    used_bytes = 0
    for prompt, why in _order_candidates(all_prompts, _most_hacked(run, names)):
        if prompt in entries:
            continue
        number, text = prompt
        replies = [[_response_entry(row) for row in responses[prompt].get(name, [])] for name in names]
        entry = {"id": str(number), "text": _cut_text(str(text).strip()), "why": why, "replies": replies}
        size = len(pack(entry))
        if used_bytes + size > budget and entries:  # the first prompt is shown however long it is
            break
        used_bytes += size
        entries[prompt] = entry
    positions = {prompt: position for position, prompt in enumerate(all_prompts)}
    in_page_order = sorted(entries, key=lambda prompt: (entries[prompt]["why"] == "hacked", positions[prompt]))
    prompts = [entries[prompt] for prompt in in_page_order]
    _embed_clips(run.path, prompts)
    return {"policies": names, "prompts": prompts, "total": len(all_prompts)}


def _order_candidates(all_prompts: list[Any], hacked: list[Any]) -> list[tuple[Any, str]]:
    """Return (prompt, reason to show it) in order of priority. Of repeated prompts only the first entry counts."""
    # About 24 regular prompts give an overview within the budget.
    stride = max(1, len(all_prompts) // 24)
    regular = all_prompts[::stride]
    queue: list[tuple[Any, str]] = []
    for regular_prompt, hacked_prompt in zip(regular, hacked, strict=False):
        queue += [(regular_prompt, "regular"), (hacked_prompt, "hacked")]
    queue += [(prompt, "regular") for prompt in regular[len(hacked) :]]
    queue += [(prompt, "hacked") for prompt in hacked]  # there may be more of them than regular ones
    queue += [(prompt, "regular") for prompt in all_prompts]
    return queue


def pack(value: object) -> str:
    """Return JSON that cannot close its script element or start a comment, whatever text it contains."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
    # JSON parsers read the escape \uXXXX as the same character.
    for character in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _most_hacked(run: StoredRun, names: list[str]) -> list[Any]:
    """Return up to 12 prompts with the largest excess of proxy gain over gold gain, last policy against first."""
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
    return largest_first.index[:12].tolist()


def _response_entry(row: dict[Any, Any]) -> dict[str, Any]:
    """Return the JSON of one response: text, numbers, marks and, if it has audio, the path of its clip."""
    marks = [name for name in ("verbose", "garble") if row.get(name) == 1]
    marks += ["cut off"] if row.get("ended") == 0 else []
    numbers = {name: _round_or_none(row.get(name)) for name in ("proxy", "gold", "kl", "tokens")}
    entry = {"text": _cut_text(str(row["response"])), **numbers, "marks": marks}
    if CLIP.fullmatch(str(row.get("clip"))):
        entry["clip"] = row["clip"]
    return entry


def _embed_clips(directory: Path, prompts: list[dict[str, Any]]) -> None:
    """Replace the text of responses by their audio, in the order of the page, until `CLIP_BYTES` are used."""
    used_bytes = 0
    shown = [response for prompt in prompts for of_policy in prompt["replies"] for response in of_policy]
    for response in shown:
        if "clip" not in response:
            continue
        path = directory / response.pop("clip")
        # A directory that was copied without its clips still has its numbers.
        if not path.is_file() or used_bytes + path.stat().st_size > CLIP_BYTES:
            continue
        used_bytes += path.stat().st_size
        response["sound"] = f"data:audio/wav;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _round_or_none(value: object) -> float | None:
    """Return a finite number with 3 decimals, or None for anything else."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(float(value), 3)


def _cut_text(text: str) -> str:
    """Cut text after `MAX_TEXT` characters, and state how many are missing."""
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT} more characters)"

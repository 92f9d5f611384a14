"""A corpus that a stage has made: its rows, what was rejected and why, and a header that is written last.

`corpus.jsonl` has a row per line: `prompt`; of demonstrations also `completion`; of pairs `chosen` and `rejected`;
beside them how the row came to be. `rejected.jsonl` has every item that became no row, with its `problem`.
`corpus.json` counts both and names the rows' fingerprint: a folder with it is complete.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import file_digest, read_json, read_jsonl, write_json, write_text
from rlhf_lab.core.types import Pair

HEADER, ROWS, REJECTED = "corpus.json", "corpus.jsonl", "rejected.jsonl"
KINDS = ("prompts", "demonstrations", "pairs")
"""What a row has; each kind has what those before it have, so it serves in their place."""
REPLIES = {"prompts": ("", ""), "demonstrations": ("completion", ""), "pairs": ("chosen", "rejected")}
"""Kind → the columns of the chosen and of the rejected reply."""
TRUTH = ("gold_chosen", "gold_rejected", "garble_chosen", "garble_rejected", "correct_chosen")
"""Columns that become `Pair.meta`: what the world knows of the replies. Metrics read it, and SFT leaves out garbled
replies (`algorithm.skip_garbled`), or wrong ones (`algorithm.only_correct`); no loss does."""
CONVERSATION = ("learn_from",)
"""Columns that become `Pair.meta`: from which message on the assistant's turns of a conversation are learned."""


def write_made(
    folder: Path,
    kind: str,
    rows: Sequence[Mapping[str, Any]],
    rejected: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
) -> None:
    """Write rows and rejected items, then the header.

    Args:
        about: what the header says besides: what the corpus was made from.
    """
    write_text(folder / REJECTED, _lines(rejected))
    write_text(folder / ROWS, _lines(rows))
    header = {
        "kind": kind,
        "rows": len(rows),
        "rejected": dict(Counter(item["problem"] for item in rejected)),
        "fingerprint": sha256(_lines(rows).encode()).hexdigest(),
        **about,
    }
    write_json(folder / HEADER, header)


def _lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def kind_problem(kind: str, wanted: str) -> str:
    """Why rows of a kind do not serve where another is wanted; "" where they do."""
    if kind not in KINDS:
        return f"it makes no corpus of {wanted}; name a recipe that does, such as cai_preferences, or its folder"
    if KINDS.index(kind) < KINDS.index(wanted):
        return f"its rows are {kind}, and {wanted} are needed"
    return ""


def made_problem(folder: Path, wanted: str) -> str:
    """Why a folder is no corpus of the wanted kind; "" where it is one."""
    header = read_json(folder / HEADER)
    if not isinstance(header, dict):
        return f"there is no {HEADER}; name the folder of a complete run of a recipe that makes data"
    return kind_problem(str(header.get("kind")), wanted)


def made_identity(folder: Path) -> str | None:
    """What identifies the rows of a made corpus; None for another folder."""
    header = read_json(folder / HEADER)
    return str(header["fingerprint"])[:16] if isinstance(header, dict) and "fingerprint" in header else None


def read_made(folder: Path, wanted: str) -> list[Pair]:
    """The rows of a made corpus as pairs; a prompt alone has two empty replies, a demonstration an empty rejected one.

    Raises ArtifactError when the folder has no corpus of the wanted kind, or when its rows are not those of its header.
    """
    if problem := made_problem(folder, wanted):
        raise ArtifactError(f"{folder}: {problem}")
    header = read_json(folder / HEADER)
    path = folder / ROWS
    if not path.is_file() or file_digest(path) != header["fingerprint"]:
        raise ArtifactError(f"{path} is not what {HEADER} describes; make the corpus again, artifacts.refresh=true")
    chosen, rejected = REPLIES[header["kind"]]
    pairs = []
    for number, row in enumerate(read_jsonl(path), 1):
        meta = {"source": f"{ROWS}:{number}", **{name: row[name] for name in (*TRUTH, *CONVERSATION) if name in row}}
        pairs.append(Pair(row["prompt"], row.get(chosen, ""), row.get(rejected, ""), meta))
    return pairs

"""Keeps some of the replies of an evaluation as audio, so that a report can play them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.core import ranks
from rlhf_lab.core.files import replacing
from rlhf_lab.core.media import Renderer

FOLDER = "clips"


def write_clips(rows: Sequence[dict[str, Any]], renderer: Renderer, folder: Path, *, prompts: int) -> None:
    """Write the first sample of the first prompts to `clips/`, and its place into the row's `clip`.

    A reply that is no audio, such as one that was cut before its first frame was whole, has none.
    """
    kept = [row for row in rows if row["prompt_id"] < prompts and row["sample_id"] == 0]
    for row, audio in zip(kept, renderer.render([row["response"] for row in kept]), strict=True):
        if not len(audio.samples_N):
            continue
        policy = re.sub(r"\W+", "_", row["policy"])
        row["clip"] = f"{FOLDER}/{policy}-{row['prompt_id']}.wav"
        if ranks.is_main():
            path = folder / row["clip"]
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as temporary:
                renderer.write(temporary, audio)

"""Saves some responses of an evaluation as audio, so that a report can play them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_lab.core import ranks
from rlhf_lab.core.files import replacing
from rlhf_lab.core.media import Renderer

FOLDER = "clips"


def write_clips(rows: Sequence[dict[str, Any]], renderer: Renderer, directory: Path, *, prompts: int) -> None:
    """Write the first sample of the first prompts to `clips/`, and set `clip` of their rows to the path.

    A response without audio gets no file, for example one that was cut off before its first complete frame.
    """
    first_samples = [row for row in rows if row["sample_id"] == 0]
    kept = [row for row in first_samples if row["prompt_id"] < prompts]
    clips = renderer.render([row["response"] for row in kept])
    for row, audio in zip(kept, clips, strict=True):
        if not len(audio.samples_N):
            continue
        # names of policies may have characters that are not allowed in file names
        policy = re.sub(r"\W+", "_", row["policy"])
        row["clip"] = f"{FOLDER}/{policy}-{row['prompt_id']}.wav"
        # every process sets `clip` of its copy of the rows, but only one writes the files
        if ranks.is_main():
            path = directory / row["clip"]
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as temporary:
                renderer.write(temporary, audio)

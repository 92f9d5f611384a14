"""Attempts at tasks, several at each, as text with what became of them: what a reward model is asked to choose among.

An attempt is everything that was said behind its task's prompt: turns of the policy, and what its tools answered. So
all attempts at a task are replies to one prompt, as `Pair` wants them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_jsonl, write_text
from rlhf_lab.data.transcript import CALLS, render_prompt, to_conversation

FILE = "attempts.jsonl"
"""In the directory of a stage that made attempts: a row per held-out task."""


@dataclass(frozen=True)
class Attempts:
    """All attempts at one task.

    Attributes:
        prompt: of the task.
        replies: the attempts.
        correct: of each, whether it reached the right answer, 0 or 1.
    """

    prompt: str
    replies: Sequence[str]
    correct: Sequence[int]


def attempt_text(episode: Episode) -> str:
    """An episode as one reply to its task's prompt, without the tools that the collector put before that."""
    prompt = episode.task.prompt
    if not episode.prompt.startswith(prompt):
        prompt = render_prompt(to_conversation(prompt).messages, to_conversation(episode.prompt).tools)
    said = f"{episode.prompt} {episode.response}".removeprefix(prompt).rstrip()
    # a first turn that is nothing but calls begins with their boundary
    return said.lstrip(" ") if said.lstrip(" ").startswith(CALLS) else said.lstrip()


def write_attempts(folder: Path, attempts: Sequence[Attempts]) -> None:
    lines = [json.dumps(asdict(of_task)) + "\n" for of_task in attempts]
    write_text(folder / FILE, "".join(lines))


def read_attempts(folder: Path) -> list[Attempts]:
    """What `write_attempts` wrote. Raises ArtifactError where there is none."""
    path = folder / FILE
    if not path.is_file():
        raise ArtifactError(
            f"needs.attempts={folder} has no {FILE}; name a recipe of algorithm=attempt_pairs, such as agent_pairs, or "
            "the folder of such a run"
        )
    attempts = [Attempts(row["prompt"], row["replies"], row["correct"]) for row in read_jsonl(path)]
    if not attempts:
        raise ArtifactError(f"needs.attempts={folder}: {FILE} is empty; make it with algorithm.heldout_tasks above 0")
    return attempts

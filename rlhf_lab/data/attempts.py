"""Attempts at tasks, several per task, as text with their outcome: the data that a reward model selects from.

An attempt is the entire text after the prompt of its task: turns of the policy, and results of its tools. All attempts
at a task are thus responses to one prompt, as `Pair` requires.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import json_lines, read_jsonl, write_text
from rlhf_lab.data.transcript import CALLS, render_prompt, to_conversation

FILE = "attempts.jsonl"
"""File in the directory of a stage that generated attempts, with one row per test task."""


@dataclass(frozen=True)
class Attempts:
    """All attempts at one task.

    Attributes:
        prompt: prompt of the task.
        replies: texts of the attempts.
        correct: 1 for each attempt that reached the correct answer, else 0.
    """

    prompt: str
    replies: Sequence[str]
    correct: Sequence[int]


def attempt_text(episode: Episode) -> str:
    """Return an episode as one response to the prompt of its task, without the tool definitions of the collector."""
    prompt = episode.task.prompt
    if not episode.prompt.startswith(prompt):
        # the collector added tool definitions to the prompt: render the task's prompt with the same ones
        tools = to_conversation(episode.prompt).tools
        prompt = render_prompt(to_conversation(prompt).messages, tools)
    text = f"{episode.prompt} {episode.response}".removeprefix(prompt).rstrip()
    # the boundary of tool calls starts with newlines, so a first turn with only calls must not lose them
    without_spaces = text.lstrip(" ")
    return without_spaces if without_spaces.startswith(CALLS) else text.lstrip()


def write_attempts(directory: Path, attempts: Sequence[Attempts]) -> None:
    write_text(directory / FILE, json_lines(map(asdict, attempts)))


def read_attempts(directory: Path) -> list[Attempts]:
    """Read the file that `write_attempts` wrote. Raise ArtifactError if it is missing or empty."""
    path = directory / FILE
    if not path.is_file():
        raise ArtifactError(
            f"needs.attempts={directory} has no {FILE}; name a recipe with algorithm=attempt_pairs, such as "
            "agent_pairs, or the directory of such a run"
        )
    attempts = []
    for row in read_jsonl(path):
        attempts.append(Attempts(row["prompt"], row["replies"], row["correct"]))
    if not attempts:
        raise ArtifactError(
            f"needs.attempts={directory}: {FILE} is empty; run that stage again with algorithm.heldout_tasks above 0"
        )
    return attempts

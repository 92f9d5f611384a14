"""GAIA independent of the agents: the selected tasks, the tools of each task, and the two scores of an answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.packs.agents.benchmarks.gaia_settings import GaiaChoices
from rlhf_lab.packs.agents.gaia.files import is_readable
from rlhf_lab.packs.agents.gaia.lenient import lenient_score
from rlhf_lab.packs.agents.gaia.mini import mini_file, mini_questions
from rlhf_lab.packs.agents.gaia.official import official_score
from rlhf_lab.packs.agents.gaia.questions import GaiaQuestion
from rlhf_lab.packs.agents.gaia.rows import gaia_attachment, read_gaia
from rlhf_lab.packs.agents.gaia.search import SearchProvider
from rlhf_lab.packs.agents.gaia.tools import question_tools

SCORES = {"official": official_score, "lenient": lenient_score}


def tasks(settings: GaiaChoices) -> list[Task]:
    """Return the selected questions in the order of their set.

    Attachments from the hub are downloaded here, so that a failure stops the run before anything is paid for. The
    metadata of a task are the fields of `GaiaQuestion`: id, question, level, answer (None if secret), files, steps,
    tools, notes. All are JSON values.
    """
    questions = mini_questions() if settings.source == "mini" else read_gaia(settings.path, settings.split)
    chosen = []
    taken: Counter[int] = Counter()
    for question in questions:
        is_expected = question.level in settings.levels
        # The limit applies to each level, so that a small limit still includes all levels.
        if is_expected and not (settings.limit and taken[question.level] >= settings.limit):
            taken[question.level] += 1
            chosen.append(_task(question))
    # The hub's client stores the files, so attempts read them without the network.
    if settings.source == "official":
        for task in chosen:
            for location in task.metadata["files"].values():
                gaia_attachment(settings.path, settings.split, location)
    return chosen


def _task(question: GaiaQuestion) -> Task:
    metadata = asdict(question)
    # JSON has no tuples.
    metadata["steps"] = list(question.steps)
    metadata["tools"] = list(question.tools)
    return Task(as_prompt(prompt_text(question)), metadata)


def prompt_text(question: GaiaQuestion) -> str:
    """Return the user message: the question, and the names of its files."""
    if not question.files:
        return question.question
    return f"{question.question}\n\nAttached: {', '.join(question.files)}"


def attachments(task: Task, settings: GaiaChoices) -> dict[str, bytes]:
    """Return the files of a task for a sandbox: name → content."""
    return {name: _read(settings, location) for name, location in task.metadata["files"].items()}


def _read(settings: GaiaChoices, location: str) -> bytes:
    if settings.source == "mini":
        return mini_file(location)
    return gaia_attachment(settings.path, settings.split, location).read_bytes()


def tools_for(
    task: Task, settings: GaiaChoices, *, provider: SearchProvider | None, run_code: Callable[[str], str] | None = None
) -> list[Tool]:
    """Return the tools of one task.

    Args:
        task: the task.
        settings: the selection that the task belongs to.
        provider: result of `web.search_provider`, created once per run.
        run_code: runs a Python program in a sandbox with the task's `attachments`, and returns its output.
    """
    files = task.metadata["files"]
    return question_tools(
        provider=provider, files=list(files), read=lambda name: _read(settings, files[name]), run_code=run_code
    )


def unreadable_files(chosen: Sequence[Task]) -> list[str]:
    """Return the attachments that no tool reads, such as images and sound. Their questions can only be guessed."""
    names = [name for task in chosen for name in task.metadata["files"]]
    return [name for name in names if not is_readable(name)]


def score(answer: str | None, task: Task) -> dict[str, float]:
    """Score an answer with the official and the lenient scorer: 1, 0, or NaN if the gold answer is secret."""
    gold = task.metadata["answer"]
    # NaN marks an unscored answer; 0 would count it as wrong.
    if gold is None:
        return dict.fromkeys(SCORES, math.nan)
    return {name: float(is_right(answer, gold)) for name, is_right in SCORES.items()}

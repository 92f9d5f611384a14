"""GAIA for a harness: the tasks that the settings choose, the tools of each, and the two scores of an answer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool
from rlhf_lab.data.transcript import as_prompt
from rlhf_lab.packs.agents.benchmarks.gaia_settings import GaiaChoices
from rlhf_lab.packs.agents.benchmarks.web_search import live_search
from rlhf_lab.packs.agents.gaia.files import is_readable
from rlhf_lab.packs.agents.gaia.lenient import lenient_score
from rlhf_lab.packs.agents.gaia.mini import mini_file, mini_index, mini_questions
from rlhf_lab.packs.agents.gaia.official import official_score
from rlhf_lab.packs.agents.gaia.questions import GaiaQuestion
from rlhf_lab.packs.agents.gaia.rows import gaia_attachment, read_gaia
from rlhf_lab.packs.agents.gaia.search import SearchProvider
from rlhf_lab.packs.agents.gaia.tools import question_tools

SCORES = {"official": official_score, "lenient": lenient_score}


def tasks(settings: GaiaChoices) -> list[Task]:
    """The questions that the settings choose, in the order of their set.

    Attachments of the hub are fetched here, so that a failure stops the run before anything is paid for.
    The facts of a task are the fields of `GaiaQuestion`: id, question, level, answer (None where kept back), files,
    steps, tools, notes. All are JSON.
    """
    questions = mini_questions() if settings.source == "mini" else read_gaia(settings.path, settings.split)
    chosen = []
    taken: Counter[int] = Counter()
    for question in questions:
        is_wanted = question.level in settings.levels
        if is_wanted and not (settings.limit and taken[question.level] >= settings.limit):
            taken[question.level] += 1
            chosen.append(_task(question))
    if settings.source == "official":
        for task in chosen:
            for location in task.facts["files"].values():
                gaia_attachment(settings.path, settings.split, location)
    return chosen


def _task(question: GaiaQuestion) -> Task:
    facts = asdict(question)
    facts["steps"], facts["tools"] = list(question.steps), list(question.tools)
    return Task(as_prompt(prompt_text(question)), facts)


def prompt_text(question: GaiaQuestion) -> str:
    """What the user says: the question, and which files come with it."""
    if not question.files:
        return question.question
    return f"{question.question}\n\nAttached: {', '.join(question.files)}"


def attachments(task: Task, settings: GaiaChoices) -> dict[str, bytes]:
    """The files of a task by name, for a sandbox to hold them."""
    return {name: _read(settings, location) for name, location in task.facts["files"].items()}


def _read(settings: GaiaChoices, location: str) -> bytes:
    if settings.source == "mini":
        return mini_file(location)
    return gaia_attachment(settings.path, settings.split, location).read_bytes()


def search_provider(settings: GaiaChoices, store: Path) -> SearchProvider | None:
    """The web of a run; None where there is none. Raises ConfigError where a live service has no key.

    Args:
        store: folder that keeps the results of a live service, so that nothing is asked twice.
    """
    if settings.search == "none":
        return None
    if settings.search == "own":
        return mini_index(settings.search_results)
    return live_search(
        settings.search,
        store,
        key_env=settings.search_key_env,
        url=settings.search_url,
        results=settings.search_results,
    )


def tools_for(
    task: Task,
    settings: GaiaChoices,
    *,
    provider: SearchProvider | None,
    run_code: Callable[[str], str] | None = None,
) -> list[Tool]:
    """The tools of one task.

    Args:
        provider: of `search_provider`, one for the whole run.
        run_code: runs a Python program in a sandbox that has the task's `attachments`, and gives what it printed.
    """
    files = task.facts["files"]
    return question_tools(
        provider=provider,
        files=list(files),
        read=lambda name: _read(settings, files[name]),
        run_code=run_code,
    )


def unreadable_files(chosen: Sequence[Task]) -> list[str]:
    """Names of attachments that no tool reads, such as images and sound: their questions can only be guessed."""
    names = [name for task in chosen for name in task.facts["files"]]
    return [name for name in names if not is_readable(name)]


def score(answer: str | None, task: Task) -> dict[str, float]:
    """1 or 0 by the official and the lenient scorer; NaN where the gold answer is kept back."""
    gold = task.facts["answer"]
    if gold is None:
        return dict.fromkeys(SCORES, math.nan)
    return {name: float(is_right(answer, gold)) for name, is_right in SCORES.items()}

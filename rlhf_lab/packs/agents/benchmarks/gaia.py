"""Agents on GAIA: `success` is the leaderboard's scorer, `lenient` a patient reader's, both by level.

The folder artefacts/ of the run has one for each question: its attachments, and every attempt at it with its scores.
The answers of the official test split are kept back: its attempts are unscored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.files import fingerprint, make_folder, write_bytes, write_json
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Tool
from rlhf_lab.data.transcript import render_prompt, to_messages
from rlhf_lab.packs.agents.benchmarks import gaia_tasks
from rlhf_lab.packs.agents.benchmarks.attempts import Question
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark, Scores
from rlhf_lab.packs.agents.benchmarks.settings import Gaia
from rlhf_lab.packs.agents.benchmarks.trajectory_log import read_trajectories
from rlhf_lab.packs.agents.gaia.answers import ANSWER_FORMAT, final_answer
from rlhf_lab.packs.agents.gaia.mini import PAGES, fixture_digests
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.code_executor import output_of
from rlhf_lab.packs.agents.harness.models import open_agents, open_sandbox
from rlhf_lab.packs.agents.harness.surroundings import CodeRunner
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.training.run import Result, Run

ARTEFACTS = "artefacts"
OUTPUT_CHARS = 4000
"""Of a program's output that a model reads, about."""


class GaiaTasks:
    """The questions that the settings choose, as a task set with the harness's names for what is known of them.

    Args:
        open_sandbox: makes what runs the programs of the tool `python`; called when the first one is run.
        limits: of these programs, see `Sandboxing.limits`.
    """

    def __init__(
        self,
        settings: Gaia,
        store: Path,
        open_sandbox: Callable[[], CodeRunner],
        limits: Mapping[str, float],
    ):
        self.settings, self.limits = settings, limits
        self.provider = gaia_tasks.search_provider(settings, store)
        self.questions = {task.facts["id"]: task for task in gaia_tasks.tasks(settings)}
        self.chosen = [as_harness_task(task) for task in self.questions.values()]
        self._open_sandbox = open_sandbox

    @cached_property
    def _runner(self) -> CodeRunner:
        return self._open_sandbox()

    @cached_property
    def _pages(self) -> str:
        """Digest of our own web; empty where the run has another, whose pages are not known before they are read."""
        return fixture_digests()[PAGES] if self.settings.search == "own" else ""

    def tasks(self, split: str) -> Sequence[Task]:
        return self.chosen

    def tools(self, task: Task, seed: int) -> list[Tool]:
        question = self.questions[task.facts["id"]]

        def run_code(code: str) -> str:
            return output_of(self._runner(code, self.attachments(task)), OUTPUT_CHARS)

        return gaia_tasks.tools_for(question, self.settings, provider=self.provider, run_code=run_code)

    def attachments(self, task: Task) -> dict[str, bytes]:
        return gaia_tasks.attachments(self.questions[task.facts["id"]], self.settings)

    def known(self, task: Task) -> Any:
        """What decides the tools besides the task's facts: attachments by content, the web, limits of programs."""
        files = self.attachments(task)
        contents = {name: fingerprint(content.hex()) for name, content in files.items()}
        return {
            "files": contents,
            "pages": self._pages,
            "search": self.settings.search,
            "results": self.settings.search_results,
            "sandbox": dict(self.limits),
        }


def as_harness_task(task: Task) -> Task:
    """With a category, the annotator's calls, and the form of the answer as instructions."""
    facts = task.facts
    calls = [{"name": step["tool"], "arguments": step["arguments"]} for step in facts["steps"]]
    instructions = Message(role="system", content=ANSWER_FORMAT)
    prompt = render_prompt([instructions, *to_messages(task.prompt)])
    facts = {name: value for name, value in facts.items() if name != "files"}  # where they lie is nothing for agents
    return Task(prompt, {**facts, "category": f"level_{facts['level']}", "calls": calls})


def as_question(task: Task, tasks: GaiaTasks) -> Question:
    """A task with what its tools know and the files that come with it."""
    read_files = partial(tasks.attachments, task)
    return Question(f"gaia_{tasks.settings.source}", task, tasks, tasks.known(task), read_files=read_files)


def score(trajectory: AgentTrajectory, question: Question) -> Scores:
    """Both scores of an attempt; None where the gold answer is kept back."""
    said = trajectory.answer
    answer = said if said is None else final_answer(said) or said
    found = gaia_tasks.score(answer, question.task)
    values = {name: None if math.isnan(value) else value for name, value in found.items()}
    return {"success": values["official"], "lenient": values["lenient"]}


class GaiaBenchmark:
    """The stage."""

    def __init__(self, settings: Gaia, run: Run, agents: Mapping[str, BatchAgent]):
        self.settings, self.run = settings, run
        store = Path(run.config.outputs) / "searches"
        self.tasks = GaiaTasks(settings, store, partial(open_sandbox, run), run.config.sandbox.limits)
        questions = [as_question(task, self.tasks) for task in self.tasks.chosen]
        self.benchmark = Benchmark(run, agents, questions, settings.attempts, score)
        self._note_limits()

    def _note_limits(self) -> None:
        unreadable = gaia_tasks.unreadable_files(list(self.tasks.questions.values()))
        if unreadable:
            self.run.note(
                f"{len(unreadable)} attachments are images, sound or other files that no tool reads, such as "
                f"{unreadable[0]}: their questions can only be guessed"
            )
        if self.settings.source == "official":
            self.run.note("the official questions must not be published, and this run's files hold them")
        if self.settings.split == "test" and self.settings.source == "official":
            self.run.note("the answers of the test split are kept back: nothing is scored")

    def finish(self) -> Result:
        result = self.benchmark.finish()
        self._write_artefacts()
        return result

    def _write_artefacts(self) -> None:
        scores = _scores_by_key(self.run.folder)
        root = self.run.folder / ARTEFACTS
        for task in self.tasks.chosen:
            folder = root / str(task.facts["id"])
            make_folder(folder / "files")
            for name, content in self.tasks.attachments(task).items():
                write_bytes(folder / "files" / Path(name).name, content)
        for row in read_trajectories(self.run.folder):
            name = f"{row['agent']}-{row['draw']}.json"
            write_json(root / row["task"] / name, {**row, "scores": scores.get(row["key"], {})})


def _scores_by_key(folder: Path) -> dict[str, dict[str, Any]]:
    """Key of an attempt → its scores."""
    rows = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text(encoding="utf-8").splitlines()]
    return {row["key"]: {name: row[name] for name in ("success", "lenient")} for row in rows}


def build(settings: Gaia, run: Run) -> GaiaBenchmark:
    return GaiaBenchmark(settings, run, open_agents(run))

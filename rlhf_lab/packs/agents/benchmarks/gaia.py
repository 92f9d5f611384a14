"""Benchmark of agents on GAIA. The metric `success` uses the leaderboard's scorer, `lenient` a more tolerant scorer.

The directory artefacts/ of the run has a sub-directory for each question, with its attachments and every attempt with
its scores. The answers of the official test split are secret, so its attempts are unscored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.files import fingerprint, make_dir, write_bytes, write_json
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Tool
from rlhf_lab.data.transcript import render_prompt, to_messages
from rlhf_lab.packs.agents.benchmarks import gaia_tasks
from rlhf_lab.packs.agents.benchmarks.attempts import BenchmarkQuestion
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark, Scores
from rlhf_lab.packs.agents.benchmarks.settings import Gaia
from rlhf_lab.packs.agents.benchmarks.trajectory_log import read_trajectories
from rlhf_lab.packs.agents.benchmarks.web import offline_pages, search_provider
from rlhf_lab.packs.agents.gaia.answers import ANSWER_FORMAT, final_answer
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.code_executor import output_of
from rlhf_lab.packs.agents.harness.models import open_agents, open_sandbox
from rlhf_lab.packs.agents.harness.resources import CodeRunner
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.training.run import Result, Run

ARTEFACTS = "artefacts"
OUTPUT_CHARS = 4000
"""Maximum number of characters of program output shown to the model (approximate)."""


class GaiaTasks:
    """Task set of the selected questions, with their metadata under the names that the harness expects.

    Args:
        settings: the selection of questions, and the web.
        store: directory of stored search results.
        open_sandbox: creates the code runner of the tool `python`; called when the first program is run.
        limits: limits of these programs; see `Sandboxing.limits`.
    """

    def __init__(
        self, settings: Gaia, store: Path, open_sandbox: Callable[[], CodeRunner], limits: Mapping[str, float]
    ):
        self.settings, self.limits = settings, limits
        self.provider = search_provider(settings, store)
        self.questions = {task.metadata["id"]: task for task in gaia_tasks.tasks(settings)}
        self.chosen = [as_harness_task(task) for task in self.questions.values()]
        self._open_sandbox = open_sandbox

    @cached_property
    def _runner(self) -> CodeRunner:
        return self._open_sandbox()

    def tasks(self, split: str) -> Sequence[Task]:
        return self.chosen

    def tools(self, task: Task, seed: int) -> list[Tool]:
        question = self.questions[task.metadata["id"]]

        def run_code(code: str) -> str:
            # The attachments are read again for each run, so a program cannot change them for the next one.
            outcome = self._runner(code, self.attachments(task))
            return output_of(outcome, OUTPUT_CHARS)

        return gaia_tasks.tools_for(question, self.settings, provider=self.provider, run_code=run_code)

    def attachments(self, task: Task) -> dict[str, bytes]:
        question = self.questions[task.metadata["id"]]
        return gaia_tasks.attachments(question, self.settings)

    def tool_context(self, task: Task) -> Any:
        """Return the data besides the metadata that determine a task's tools: attachments, web, program limits."""
        files = self.attachments(task)
        # fingerprints instead of contents: this enters the key of every attempt
        contents = {name: fingerprint(content.hex()) for name, content in files.items()}
        return {
            "files": contents,
            "pages": offline_pages(self.settings),
            "search": self.settings.search,
            "results": self.settings.search_results,
            "sandbox": dict(self.limits),
        }


def as_harness_task(task: Task) -> Task:
    """Return a task with the metadata that the harness expects (category, the annotator's calls) and with instructions
    for the form of the answer.
    """
    metadata = task.metadata
    calls = [{"name": step["tool"], "arguments": step["arguments"]} for step in metadata["steps"]]
    instructions = Message(role="system", content=ANSWER_FORMAT)
    prompt = render_prompt([instructions, *to_messages(task.prompt)])
    # The locations of files are internal, so agents must not see them.
    metadata = {name: value for name, value in metadata.items() if name != "files"}
    level = f"level_{metadata['level']}"
    return Task(prompt, {**metadata, "category": level, "calls": calls})


def as_question(task: Task, tasks: GaiaTasks) -> BenchmarkQuestion:
    """Convert a task to a benchmark question, with its files and the data that determine its tools."""
    read_files = partial(tasks.attachments, task)
    return BenchmarkQuestion(
        f"gaia_{tasks.settings.source}", task, tasks, tasks.tool_context(task), read_files=read_files
    )


def score(trajectory: AgentTrajectory, question: BenchmarkQuestion) -> Scores:
    """Score an attempt with both scorers; None if the gold answer is secret."""
    text = trajectory.answer
    # Agents may answer without the marker "FINAL ANSWER:", and then their entire text is the answer.
    answer = text if text is None else final_answer(text) or text
    scores = gaia_tasks.score(answer, question.task)
    # JSON has no NaN, so an unscored attempt has null.
    values = {}
    for name, value in scores.items():
        values[name] = None if math.isnan(value) else value
    return {"success": values["official"], "lenient": values["lenient"]}


class GaiaBenchmark:
    """Stage `gaia`."""

    def __init__(self, settings: Gaia, run: Run, agents: Mapping[str, BatchAgent]):
        self.settings, self.run = settings, run
        store = Path(run.config.outputs) / "searches"  # common to all runs, so that no search is paid twice
        open_runner = partial(open_sandbox, run)
        self.tasks = GaiaTasks(settings, store, open_runner, run.config.sandbox.limits)
        questions = [as_question(task, self.tasks) for task in self.tasks.chosen]
        self.benchmark = Benchmark(run, agents, questions, settings.attempts, score)
        self._note_limits()

    def _note_limits(self) -> None:
        unreadable = gaia_tasks.unreadable_files(list(self.tasks.questions.values()))
        if unreadable:
            self.run.note(
                f"no tool reads {len(unreadable)} attachments (images, sound and others), e.g. {unreadable[0]}: "
                "an agent can only guess the answers to their questions"
            )
        if self.settings.source == "official":
            self.run.note("the official questions must not be published; this run's files contain them")
        if self.settings.split == "test" and self.settings.source == "official":
            self.run.note("the answers of the test split are secret: no attempt is scored")

    def finish(self) -> Result:
        result = self.benchmark.finish()
        self._write_artefacts()
        return result

    def _write_artefacts(self) -> None:
        scores = _scores_by_key(self.run.directory)
        root = self.run.directory / ARTEFACTS
        for task in self.tasks.chosen:
            directory = root / str(task.metadata["id"])
            make_dir(directory / "files")
            for name, content in self.tasks.attachments(task).items():
                # The name alone: an attachment's path must not lead out of the directory.
                write_bytes(directory / "files" / Path(name).name, content)
        for row in read_trajectories(self.run.directory):
            name = f"{row['agent']}-{row['draw']}.json"
            scored_row = {**row, "scores": scores.get(row["key"], {})}
            write_json(root / row["task"] / name, scored_row)


def _scores_by_key(directory: Path) -> dict[str, dict[str, Any]]:
    """Read evaluation.jsonl of a run. Return key of the attempt → its scores."""
    lines = (directory / "evaluation.jsonl").read_text(encoding="utf-8").splitlines()
    scores = {}
    for row in map(json.loads, lines):
        scores[row["key"]] = {name: row[name] for name in ("success", "lenient")}
    return scores


def build(settings: Gaia, run: Run) -> GaiaBenchmark:
    return GaiaBenchmark(settings, run, open_agents(run))

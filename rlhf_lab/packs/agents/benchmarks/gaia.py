"""Benchmark of agents on GAIA. The metric `success` uses the leaderboard's scorer, `lenient` a more tolerant scorer.

The directory artefacts/ of the run has a sub-directory for each question, with its attachments and every attempt with
its scores. The answers of the official test split are secret, so its attempts are unscored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.files import fingerprint, make_dir, read_jsonl, write_bytes, write_json
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Tool
from rlhf_lab.data.transcript import as_prompt, render_prompt, to_messages
from rlhf_lab.packs.agents.benchmarks.attempts import BenchmarkQuestion
from rlhf_lab.packs.agents.benchmarks.benchmark import Benchmark, Scores
from rlhf_lab.packs.agents.benchmarks.settings import Gaia
from rlhf_lab.packs.agents.benchmarks.trajectory_log import read_trajectories
from rlhf_lab.packs.agents.benchmarks.web import offline_pages, search_provider
from rlhf_lab.packs.agents.gaia.files import is_readable
from rlhf_lab.packs.agents.gaia.lenient import lenient_score
from rlhf_lab.packs.agents.gaia.mini import mini_file, mini_questions
from rlhf_lab.packs.agents.gaia.official import official_score
from rlhf_lab.packs.agents.gaia.questions import ANSWER_FORMAT, GaiaQuestion, final_answer
from rlhf_lab.packs.agents.gaia.rows import gaia_attachment, read_gaia
from rlhf_lab.packs.agents.gaia.tools import question_tools
from rlhf_lab.packs.agents.harness.agent import BatchAgent
from rlhf_lab.packs.agents.harness.code_executor import output_of
from rlhf_lab.packs.agents.harness.models import open_agents, open_sandbox
from rlhf_lab.packs.agents.harness.resources import CodeRunner
from rlhf_lab.packs.agents.trajectory import AgentTrajectory
from rlhf_lab.training.run import Result, Run

ARTEFACTS = "artefacts"
OUTPUT_CHARS = 4000
"""Maximum number of characters of program output shown to the model (approximate)."""
SCORES = {"success": official_score, "lenient": lenient_score}


class GaiaTasks:
    """The selected questions, with their files and tools.

    Attachments from the hub are downloaded here, so that a failure stops the run before anything is paid for.

    Args:
        settings: the selection of questions, and the web.
        store: directory of stored search results.
        open_sandbox: creates the code runner of the tool `python`; called when the first program is run.
        limits: limits of these programs; see `Sandboxing.limits`.

    Attributes:
        selected: the questions in the order of their set.
    """

    def __init__(
        self, settings: Gaia, store: Path, open_sandbox: Callable[[], CodeRunner], limits: Mapping[str, float]
    ):
        self.settings, self.limits = settings, limits
        self.provider = search_provider(settings, store)
        self.selected = select(settings)
        self._open_sandbox = open_sandbox
        if settings.source == "official":
            # The hub's client stores the files, so attempts read them without the network.
            for question in self.selected:
                for location in question.files.values():
                    gaia_attachment(settings.path, settings.split, location)

    @cached_property
    def _runner(self) -> CodeRunner:
        return self._open_sandbox()

    def questions(self) -> list[BenchmarkQuestion]:
        """Return the questions for a benchmark, with the data that determine their tools."""
        name = f"gaia_{self.settings.source}"
        return [
            BenchmarkQuestion(
                name,
                as_task(question),
                partial(self._tools, question),
                self.tool_context(question),
                read_files=partial(self.attachments, question),
            )
            for question in self.selected
        ]

    def _tools(self, question: GaiaQuestion, task: Task, seed: int) -> list[Tool]:
        def run_code(code: str) -> str:
            # The attachments are read again for each run, so a program cannot change them for the next one.
            return output_of(self._runner(code, self.attachments(question)), OUTPUT_CHARS)

        def read(name: str) -> bytes:
            return self._read(question.files[name])

        return question_tools(provider=self.provider, files=list(question.files), read=read, run_code=run_code)

    def attachments(self, question: GaiaQuestion) -> dict[str, bytes]:
        """Return name → content of a question's files."""
        return {name: self._read(location) for name, location in question.files.items()}

    def _read(self, location: str) -> bytes:
        if self.settings.source == "mini":
            return mini_file(location)
        return gaia_attachment(self.settings.path, self.settings.split, location).read_bytes()

    def tool_context(self, question: GaiaQuestion) -> Any:
        """Return the data besides the metadata that determine a task's tools: attachments, web, program limits."""
        # fingerprints instead of contents: this enters the key of every attempt
        contents = {name: fingerprint(content.hex()) for name, content in self.attachments(question).items()}
        return {
            "files": contents,
            "pages": offline_pages(self.settings),
            "search": self.settings.search,
            "results": self.settings.search_results,
            "sandbox": dict(self.limits),
        }


def select(settings: Gaia) -> list[GaiaQuestion]:
    """Return the selected questions. The limit applies to each level, so that a small limit still includes all."""
    questions = mini_questions() if settings.source == "mini" else read_gaia(settings.path, settings.split)
    chosen = []
    taken: Counter[int] = Counter()
    for question in questions:
        if question.level in settings.levels and not (settings.limit and taken[question.level] >= settings.limit):
            taken[question.level] += 1
            chosen.append(question)
    return chosen


def as_task(question: GaiaQuestion) -> Task:
    """Return a question as a task of the harness, with instructions for the form of the answer.

    The metadata are the fields of `GaiaQuestion`, the category and the annotator's calls, as JSON values. The locations
    of files are internal, so agents must not see them.
    """
    attached = f"\n\nAttached: {', '.join(question.files)}" if question.files else ""
    messages = to_messages(as_prompt(f"{question.question}{attached}"))
    metadata = {name: value for name, value in asdict(question).items() if name != "files"}
    metadata |= {
        "steps": list(question.steps),
        "category": f"level_{question.level}",
        "calls": [{"name": step["tool"], "arguments": step["arguments"]} for step in question.steps],
    }
    return Task(render_prompt([Message(role="system", content=ANSWER_FORMAT), *messages]), metadata)


def score(trajectory: AgentTrajectory, question: BenchmarkQuestion) -> Scores:
    """Score an attempt with both scorers; None if the gold answer is secret."""
    gold = question.task.metadata["answer"]
    if gold is None:
        return dict.fromkeys(SCORES)
    text = trajectory.answer
    # Agents may answer without the marker "FINAL ANSWER:", and then their entire text is the answer.
    answer = text if text is None else final_answer(text) or text
    return {name: float(is_right(answer, gold)) for name, is_right in SCORES.items()}


class GaiaBenchmark:
    """Stage `gaia`."""

    def __init__(self, settings: Gaia, run: Run, agents: Mapping[str, BatchAgent]):
        self.settings, self.run = settings, run
        store = Path(run.config.outputs) / "searches"  # common to all runs, so that no search is paid twice
        self.tasks = GaiaTasks(settings, store, partial(open_sandbox, run), run.config.sandbox.limits)
        self.benchmark = Benchmark(run, agents, self.tasks.questions(), settings.attempts, score)
        self._note_limits()

    def _note_limits(self) -> None:
        attached = [name for question in self.tasks.selected for name in question.files]
        unreadable = [name for name in attached if not is_readable(name)]
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
        rows = read_jsonl(self.run.directory / "evaluation.jsonl")
        scores = {row["key"]: {name: row[name] for name in SCORES} for row in rows}
        root = self.run.directory / ARTEFACTS
        for question in self.tasks.selected:
            directory = root / question.id
            make_dir(directory / "files")
            for name, content in self.tasks.attachments(question).items():
                # The name alone: an attachment's path must not lead out of the directory.
                write_bytes(directory / "files" / Path(name).name, content)
        for row in read_trajectories(self.run.directory):
            name = f"{row['agent']}-{row['draw']}.json"
            scored_row = {**row, "scores": scores.get(row["key"], {})}
            write_json(root / row["task"] / name, scored_row)


def build(settings: Gaia, run: Run) -> GaiaBenchmark:
    return GaiaBenchmark(settings, run, open_agents(run))

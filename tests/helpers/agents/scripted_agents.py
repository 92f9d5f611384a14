"""Task sets and agents for tests of the harness: what they do is written down, and takes no time."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support import prompt_text

from rlhf_lab.core.episodes import Task
from rlhf_lab.core.tools import Tool, call_tool, text_tool
from rlhf_lab.packs.agents.benchmarks.attempts import BenchmarkQuestion
from rlhf_lab.packs.agents.harness.agent import Assignment, OnDone
from rlhf_lab.packs.agents.trajectory import AgentTrajectory, ModelTurn

FACTS = {"Oslo": "Norway", "Lima": "Peru", "Cairo": "Egypt", "Quito": "Ecuador", "Hanoi": "Vietnam", "Accra": "Ghana"}


class Capitals:
    """Each task asks for the country of a capital, which `search` knows."""

    def __init__(self, metadata: Mapping[str, str] = FACTS, templates: int = 0):
        self.metadata, self.templates = dict(metadata), templates

    def tasks(self, split: str) -> list[Task]:
        tasks = []
        for index, (city, country) in enumerate(self.metadata.items()):
            question = f"Whose capital is {city}?"
            metadata: dict[str, Any] = {"id": city.lower(), "question": question, "answer": country, "scorer": "exact"}
            metadata["category"] = "tool_use" if index % 2 else "multi_step"
            metadata["calls"] = [{"name": "search", "arguments": {"entity": city}}]
            if self.templates:
                metadata["template"] = f"template {index % self.templates}"
            tasks.append(Task(prompt_text(question), metadata))
        return tasks

    def tools(self, task: Task, seed: int) -> list[Tool]:
        return [text_tool("search", "Looks a city up.", {"entity": "its name"}, lambda entity: self.metadata[entity])]


def questions(tasks: Capitals | None = None, name: str = "mini") -> list[BenchmarkQuestion]:
    source = tasks or Capitals()
    return [BenchmarkQuestion(name, task, source.tools) for task in source.tasks("test")]


class Scripted:
    """Args:
    plays: (task, tools by name) → its trajectory.
    killed_after: attempts after which the process is killed, as by kill -9.
    raised_after: attempts after which `error` is raised.
    """

    def __init__(
        self,
        name: str,
        plays: Callable[[Task, Mapping[str, Tool], int], AgentTrajectory],
        killed_after: int | None = None,
        raised_after: int | None = None,
        error: Exception | None = None,
    ):
        self.identity = {"agent": name}
        self.plays, self.killed_after = plays, killed_after
        self.raised_after, self.error = raised_after, error
        self.played: list[tuple[str, int]] = []

    def run_many(self, assignments: Sequence[Assignment], on_done: OnDone) -> list[AgentTrajectory]:
        trajectories = []
        for position, assignment in enumerate(assignments):
            if self.killed_after is not None and len(self.played) == self.killed_after:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.error is not None and len(self.played) == self.raised_after:
                raise self.error
            tools = {tool.name: tool for tool in assignment.tools}
            trajectory = self.plays(assignment.task, tools, assignment.draw)
            self.played.append((assignment.task.metadata["id"], assignment.draw))
            on_done(position, trajectory)
            trajectories.append(trajectory)
        return trajectories


def looks_up(task: Task, tools: Mapping[str, Tool], draw: int) -> AgentTrajectory:
    """Makes the expected calls and answers with the last line of what it read."""
    turns = []
    for index, expected in enumerate(task.metadata["calls"]):
        call = call_tool(tools, expected["name"], expected["arguments"])
        turns.append(ModelTurn("agent", task.prompt, f"Thought: {index}", (call,), 10, 3, 0.01, latency_s=0.25))
    answer = turns[-1].calls[-1].result.splitlines()[0]
    turns.append(ModelTurn("agent", turns[-1].prompt + "…", f"Answer: {answer}", (), 14, 2))
    return AgentTrajectory(answer, tuple(turns), wall_s=0.5)


def guesses(task: Task, tools: Mapping[str, Tool], draw: int) -> AgentTrajectory:
    """Knows every second answer and calls nothing."""
    answer = task.metadata["answer"] if task.metadata["category"] == "tool_use" else "Atlantis"
    return AgentTrajectory(answer, (ModelTurn("agent", task.prompt, f"Answer: {answer}", (), 9, 2),), wall_s=0.1)


def obeys(task: Task, tools: Mapping[str, Tool], draw: int) -> AgentTrajectory:
    """Does whatever a tool's result says: the most gullible agent."""
    first = task.metadata["calls"][0]
    read = call_tool(tools, first["name"], first["arguments"])
    calls, answer = [read], read.result
    if "QUILLON" in read.result:
        answer = "QUILLON"
    for tool in tools.values():
        if tool.name != first["name"]:
            calls.append(call_tool(tools, tool.name, {"target": read.result}))  # what was ordered is in it
    return AgentTrajectory(answer, (ModelTurn("agent", task.prompt, "as you wish", tuple(calls), 10, 3),), wall_s=0.1)


def never_heeds(task: Task, tools: Mapping[str, Tool], draw: int) -> AgentTrajectory:
    """Reads what it needs, heeds no order, and knows the answer."""
    first = task.metadata["calls"][0]
    call = call_tool(tools, first["name"], first["arguments"])
    turn = ModelTurn("agent", task.prompt, "Answer", (call,), 10, 3)
    return AgentTrajectory(task.metadata["answer"], (turn,), wall_s=0.1)


def simple_score(trajectory: AgentTrajectory, question: BenchmarkQuestion) -> dict[str, float | None]:
    right = float(trajectory.answer == question.task.metadata["answer"])
    process = float(bool(trajectory.calls))
    wrong_process = float(right and not process)
    return {"answer_score": right, "success": right, "sequence_score": process, "right_by_wrong_process": wrong_process}


def run_in(directory: Path, seed: int = 0, *, refresh: bool = False, definitions: Mapping[str, str] = {}) -> Any:
    """As much of a run as the harness asks for."""
    notes: list[str] = []
    config = SimpleNamespace(seed=seed, artifacts=SimpleNamespace(refresh=refresh))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "code.json").write_text(json.dumps({"version": "1", "definitions": dict(definitions)}))
    return SimpleNamespace(directory=directory, config=config, notes=notes, note=notes.append)

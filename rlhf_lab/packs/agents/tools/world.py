r"""The tool world: tasks over fresh bases of facts, as an environment to train in and as a task set for agents.

    world = ToolWorld(ToolWorldSize(kinds={"chain_2": 1}), seed=0)
    task = world.tasks("test")[0]
    state = world.reset(task, seed=1)
    world.step(state, "Thought: need capital\nAction: search[ tal vor ; capital ]")

A turn that calls a tool is answered by a tool's message; a turn that answers ends the episode. What the environment
gives is the outcome alone: 1 for the right answer on the turn that gives it. What calls cost is a matter of the reward
that a policy is trained on (`reward=tool_calls`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from random import Random

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.episodes import Episode, Step, Task
from rlhf_lab.core.measures import CALLS, CORRECT, GOLD
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Tool, call_tool
from rlhf_lab.data.text_calls import read_move
from rlhf_lab.environments.splits import SPLITS, transcript
from rlhf_lab.packs.agents.tools.bases import BaseSize
from rlhf_lab.packs.agents.tools.demonstrations import NONE, Demonstration, Habits
from rlhf_lab.packs.agents.tools.kinds import ALL_KINDS, UNKNOWN, DrawnTask, tools_of
from rlhf_lab.packs.agents.tools.task_set import ToolTaskFacts

VERSION = 2
"""Increased whenever the same settings give other text or other answers; part of a corpus fingerprint."""

DEMONSTRATED = 0
"""Seed of the tools of demonstrations."""


@dataclass(frozen=True)
class ToolWorldSize:
    """Of a world.

    Attributes:
        kinds: kind → how often it is drawn, relative to the others; see `kinds.ALL_KINDS`.
        base: of the facts of each task.
        busy: probability that a call fails, of the kinds that do not say it themselves.
        train_tasks, test_tasks: per split. Test tasks go through the kinds in turn, each as often.
        test_kinds: kinds of the test tasks; empty is those of `kinds`.
    """

    kinds: Mapping[str, float]
    base: BaseSize = field(default_factory=BaseSize)
    busy: float = 0.0
    train_tasks: int = 1000
    test_tasks: int = 300
    test_kinds: tuple[str, ...] = ()


@dataclass
class Attempt:
    """State of an episode: the tools of this attempt."""

    task: Task
    tools: dict[str, Tool]


class ToolWorld:
    """Implements `core.episodes.Environment` and `task_set.TaskSet`.

    A task is a number: everything in it is drawn from (seed, split, number). Test tasks use names that no training task
    uses (`names.py`).

    Args:
        seed, test_seed: of the training and of the held-out tasks.
    """

    measures = (GOLD, CORRECT, CALLS)

    def __init__(self, size: ToolWorldSize, seed: int, test_seed: int | None = None):
        self.size = size
        self.seeds = {"train": seed, "test": seed if test_seed is None else test_seed}
        self._tasks: dict[str, list[Task]] = {}
        self.draw = lru_cache(maxsize=256)(self._draw)  # the attempts of a group follow each other

    def tasks(self, split: str) -> Sequence[Task]:
        """Raises ValueError for an unknown split."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")
        if split not in self._tasks:
            count = self.size.train_tasks if split == "train" else self.size.test_tasks
            self._tasks[split] = [self.task(split, number) for number in range(count)]
        return self._tasks[split]

    def task(self, split: str, number: int) -> Task:
        """One task. Its prompt is the question alone; the tools are known from the demonstrations."""
        drawn = self.draw(split, number)
        kind = self._kind(split, number)
        oracle = Demonstration(drawn, tools_of(replace(drawn, busy=0.0), 0), Random(0))
        calls = [turn.call for turn in oracle.turns if turn.call is not None]
        facts: ToolTaskFacts = {
            "id": f"{kind}/{split}/{number}",
            "category": kind,
            "question": drawn.question,
            "answer": drawn.answer,
            "scorer": drawn.scorer,
            "calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in calls],
        }
        return Task(transcript(drawn.question), {**facts, "split": split, "number": number})

    def tools(self, task: Task, seed: int) -> list[Tool]:
        # attempts with one seed, at several tasks or in several worlds, would else have the same luck with busy tools
        split = task.facts["split"]
        return tools_of(self.draw(split, task.facts["number"]), f"{self.seeds[split]}/{task.facts['id']}/{seed}")

    def reset(self, task: Task, seed: int) -> Attempt:
        return Attempt(task, {tool.name: tool for tool in self.tools(task, seed)})

    def step(self, state: Attempt, reply: str) -> Step:
        move = read_move(reply, state.tools)
        if move.answer is not None:
            return Step(reward=float(is_right(state.task.facts, move.answer)), done=True)
        result = move.problem or call_tool(state.tools, move.name, move.arguments or {}).result
        return Step([{"role": "tool", "content": result}], done=False)

    def grade(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """`correct`, and the same as `gold`: success is the true reward. `calls`: turns that did not answer."""
        answers = [read_move(episode.response, {}).answer for episode in episodes]
        right = [
            answer is not None and is_right(episode.task.facts, answer)
            for episode, answer in zip(episodes, answers, strict=True)
        ]
        turns = [max(1, len(episode.turns)) for episode in episodes]
        calls = [count - (answer is not None) for count, answer in zip(turns, answers, strict=True)]
        correct = np.array(right, dtype=np.float64)
        return {"gold": correct, "correct": correct.copy(), "calls": np.array(calls, dtype=np.float64)}

    def demonstrate(self, task: Task, habits: Habits) -> Demonstration:
        """One attempt with habits. What goes wrong in it follows from the task."""
        split, number = task.facts["split"], task.facts["number"]
        drawn = self.draw(split, number)
        rng = self.random("demonstration", task)
        return Demonstration(drawn, self.tools(task, DEMONSTRATED), rng, habits)

    def demonstration(self, task: Task) -> list[Message]:
        """See `core.episodes.Demonstrating`."""
        return self.demonstrate(task, NONE).messages()

    def random(self, purpose: str, task: Task) -> Random:
        """Random numbers of a task for one purpose."""
        return self._random(purpose, task.facts["split"], task.facts["number"])

    def _draw(self, split: str, number: int) -> DrawnTask:
        draw = ALL_KINDS[self._kind(split, number)]
        drawn = draw(self._random("task", split, number), split, self.size.base)
        return replace(drawn, busy=drawn.busy or self.size.busy)

    def _kind(self, split: str, number: int) -> str:
        kinds = [kind for kind, weight in self.size.kinds.items() if weight > 0]
        if split == "test":
            kinds = list(self.size.test_kinds) or kinds
            return kinds[number % len(kinds)]
        weights = [self.size.kinds[kind] for kind in kinds]
        return self._random("kind", split, number).choices(kinds, weights)[0]

    def _random(self, purpose: str, split: str, number: int) -> Random:
        key = f"tools/{self.seeds[split]}/{purpose}/{split}/{number}"
        return Random(int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big"))


def is_right(facts: Mapping[str, object], answer: str) -> bool:
    """Whether an answer is the right one: word for word, or, where there is none, that there is none."""
    expected = UNKNOWN if facts["scorer"] == "refusal" else str(facts["answer"])
    return " ".join(answer.split()).casefold() == expected.casefold()

r"""The tool world: tasks about newly sampled facts, as an environment for training and as a task set for agents.

    world = ToolWorld(Tools(kinds={"chain_2": 1}, seed=0))
    task = world.tasks("test")[0]
    state = world.reset(task, seed=1)
    world.step(state, "Thought: need capital\nAction: search[ tal vor ; capital ]")

A turn that calls a tool is followed by a tool message; a turn that answers finishes the episode. The environment
rewards only the outcome: 1 for a right answer, in the turn that gives it. Costs of calls belong to the reward that a
policy is trained on (`reward=tool_calls`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.episodes import Episode, Step, Task
from rlhf_lab.core.measures import CALLS, CORRECT, GOLD
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import Tool, call_tool
from rlhf_lab.data.text_calls import read_move
from rlhf_lab.environments.splits import SPLITS, require_split, transcript
from rlhf_lab.packs.agents.tools.demonstrations import NONE, ToolDemonstration, messages_of
from rlhf_lab.packs.agents.tools.kinds import ALL_KINDS, UNKNOWN, Lookup, SampledTask, tools_of
from rlhf_lab.packs.agents.tools.knowledge import hashed
from rlhf_lab.packs.agents.tools.settings import HabitSettings, Tools
from rlhf_lab.packs.agents.tools.task_set import ToolTaskRow

VERSION = 3
"""Version of the world, part of a corpus fingerprint. Increase it if the same settings lead to other text or answers.
"""

DEMONSTRATED = 0
"""Seed of the tools in demonstrations."""


@dataclass
class ToolEpisodeState:
    """State of an episode: the tools of this attempt."""

    task: Task
    tools: dict[str, Tool]


class ToolWorld:
    """Environment and task set; implements `core.episodes.Environment` and `task_set.TaskSet`.

    A task is identified by its index: everything in it is sampled with a seed from (seed, split, index). Test tasks use
    names that no training task uses (`bases.py`).

    Test tasks cycle through the kinds, so that each kind has the same number of them.

    Args:
        settings: size, composition and seeds. Habits and roles concern the corpus only.
    """

    measures = (GOLD, CORRECT, CALLS)

    def __init__(self, settings: Tools):
        self.settings = settings
        self.seeds = dict(zip(SPLITS, settings.split_seeds(), strict=True))
        self._tasks: dict[str, list[Task]] = {}
        self.draw = lru_cache(maxsize=256)(self._draw)  # the attempts of a group use the same task one after the other

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split. Raise DataError if the split is unknown."""
        require_split(split)
        if split not in self._tasks:
            count = self.settings.train_tasks if split == "train" else self.settings.test_tasks
            self._tasks[split] = [self.task(split, number) for number in range(count)]
        return self._tasks[split]

    def task(self, split: str, number: int) -> Task:
        """Return one task. Its prompt is only the question; small models know the tools from demonstrations."""
        selected = self.draw(split, number)
        kind = self._kind(split, number)
        # The expected calls are those of the scripted oracle. It runs with tools that are never busy, so none is
        # repeated.
        tools = tools_of(replace(selected, busy=0.0), 0)
        oracle = ToolDemonstration(selected, tools, Random(0))
        calls = [turn.call for turn in oracle.turns if turn.call is not None]
        metadata: ToolTaskRow = {
            "id": f"{kind}/{split}/{number}",
            "category": kind,
            "question": selected.question,
            "answer": selected.answer,
            "scorer": selected.scorer,
            "calls": [{"name": call.name, "arguments": dict(call.arguments)} for call in calls],
        }
        step = selected.steps[0]
        if selected.answer == UNKNOWN and isinstance(step, Lookup):
            # A model of instructions names what is missing, and does not know the word of the demonstrations.
            metadata["missing"] = str(step.subject)
        location = {"split": split, "number": number}
        return Task(transcript(selected.question), {**metadata, **location})

    def tools(self, task: Task, seed: int) -> list[Tool]:
        # The seed includes the world and the task. Otherwise all attempts with one seed would see the same failures.
        metadata = task.metadata
        split = metadata["split"]
        selected = self.draw(split, metadata["number"])
        tool_seed = f"{self.seeds[split]}/{metadata['id']}/{seed}"
        return tools_of(selected, tool_seed)

    def reset(self, task: Task, seed: int) -> ToolEpisodeState:
        tools = {tool.name: tool for tool in self.tools(task, seed)}
        return ToolEpisodeState(task, tools)

    def step(self, state: ToolEpisodeState, response: str) -> Step:
        move = read_move(response, state.tools)
        if move.answer is not None:
            right = is_right(state.task.metadata, move.answer)
            return Step(reward=float(right), done=True)
        # A turn that is no valid call gets the reason as its result, and the episode continues.
        result = move.problem or call_tool(state.tools, move.name, move.arguments or {}).result
        return Step([{"role": "tool", "content": result}], done=False)

    def grade(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """Return the columns `correct`, `gold` (equal to `correct`, because success is the true reward) and `calls`
        (number of turns without an answer).
        """
        right, calls = [], []
        for episode in episodes:
            answer = read_move(episode.response, {}).answer
            right.append(answer is not None and is_right(episode.task.metadata, answer))
            # The last turn is no call if it answers. An episode that was graded as text has one turn.
            turns = max(1, len(episode.turns))
            is_answered = answer is not None
            calls.append(turns - is_answered)
        correct_N = np.array(right, dtype=np.float64)
        calls_N = np.array(calls, dtype=np.float64)
        return {"gold": correct_N, "correct": correct_N.copy(), "calls": calls_N}

    def demonstrate(self, task: Task, habits: HabitSettings) -> ToolDemonstration:
        """Return a demonstration with the mistakes of `habits`; which of them occur is determined by the task."""
        split, number = task.metadata["split"], task.metadata["number"]
        selected = self.draw(split, number)
        rng = self.random("demonstration", task)
        return ToolDemonstration(selected, self.tools(task, DEMONSTRATED), rng, habits)

    def demonstration(self, task: Task) -> list[Message]:
        return messages_of(self.demonstrate(task, NONE).turns)

    def random(self, purpose: str, task: Task) -> Random:
        return self._random(purpose, task.metadata["split"], task.metadata["number"])

    def _draw(self, split: str, number: int) -> SampledTask:
        draw = ALL_KINDS[self._kind(split, number)]
        rng = self._random("task", split, number)
        selected = draw(rng, split, self.settings)
        return replace(selected, busy=selected.busy or self.settings.busy)

    def _kind(self, split: str, number: int) -> str:
        kinds = [kind for kind, weight in self.settings.kinds.items() if weight > 0]
        if split == "test":
            kinds = list(self.settings.test_kinds or kinds)
            return kinds[number % len(kinds)]
        weights = [self.settings.kinds[kind] for kind in kinds]
        rng = self._random("kind", split, number)
        return rng.choices(kinds, weights)[0]

    def _random(self, purpose: str, split: str, number: int) -> Random:
        # Independent random numbers for each purpose: one more draw for a purpose leaves the others unchanged.
        return Random(hashed(f"tools/{self.seeds[split]}/{purpose}/{split}/{number}"))


def is_right(metadata: Mapping[str, object], answer: str) -> bool:
    """Return True if an answer equals the right one up to spaces and case, or says "unknown" if there is none."""
    expected = UNKNOWN if metadata["scorer"] == "refusal" else str(metadata["answer"])
    return " ".join(answer.split()).casefold() == expected.casefold()

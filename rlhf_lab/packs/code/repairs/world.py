"""World of repairs: programs with planted bugs. An agent rewrites lines and reads the result of running them.

    world = RepairWorld(Repairs())
    task = world.tasks("test")[0]
    state = world.reset(task, seed=1)
    world.step(state, "line 2 : d = c + 4")    # "gives 12 , 2 too low"
    world.step(state, "done")

The last program counts, as in `code_bench`. Hidden inputs determine if it is correct; their results are never shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.episodes import Episode, Step, Task
from rlhf_lab.core.measures import CALLS, CORRECT, GOLD
from rlhf_lab.core.messages import Message
from rlhf_lab.environments.splits import SPLITS, require_split, split_of, transcript
from rlhf_lab.packs.code.repairs.bugs import BuggyProgram, Tier, draw_buggy_program, is_right
from rlhf_lab.packs.code.repairs.metrics import REPAIRS
from rlhf_lab.packs.code.repairs.programs import comment_of, number_as_words, numbered, spell_inputs
from rlhf_lab.packs.code.repairs.runs import (
    DONE,
    PASSES,
    UNREADABLE,
    RepairDemonstration,
    answer_to,
    demonstrate,
    read_changes,
    wrong_try,
)
from rlhf_lab.packs.code.repairs.settings import Repairs

VERSION = 1
"""Version of the world; part of the fingerprint of a corpus. Increase it if the same settings give different text or
answers."""
TIERS: tuple[Tier, ...] = (1, 2, 3)
ROUNDS = (1, 2, 6)
"""Numbers of rounds after which programs are graded."""


@dataclass
class RepairEpisodeState:
    """State of an episode.

    Attributes:
        random: generator that selects the answers of other tasks.
        solved: True if the last program is correct.
    """

    task: Task
    random: Random
    solved: bool = False


class RepairWorld:
    """Environment of repairs, an implementation of `core.episodes.Environment`.

    A task is determined by (seed, split, number). The hash of its prompt determines its split, so that no test task is
    a training task.
    """

    measures = (GOLD, CORRECT, CALLS, *REPAIRS)

    def __init__(self, settings: Repairs):
        self.settings = settings
        self._seeds = dict(zip(SPLITS, settings.split_seeds(), strict=True))
        self._tasks: dict[str, list[Task]] = {}
        self._programs: dict[tuple[str, int], BuggyProgram] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split. Raises DataError for an unknown split."""
        require_split(split)
        if split not in self._tasks:
            count = self.settings.train_tasks if split == "train" else self.settings.test_tasks
            self._tasks[split] = [self._draw(split, number) for number in range(count)]
        return self._tasks[split]

    def program(self, task: Task) -> BuggyProgram:
        """Return the program with a planted bug that belongs to a task."""
        key = task.metadata["split"], task.metadata["number"]
        if key not in self._programs:
            self._draw(*key)
        return self._programs[key]

    def reset(self, task: Task, seed: int) -> RepairEpisodeState:
        return RepairEpisodeState(task, self._random_of(task, f"answers/{seed}"))

    def step(self, state: RepairEpisodeState, response: str) -> Step:
        """Run the program of a response on the example, and answer with the result.

        The reward is 1 if the program becomes correct, −1 if it becomes wrong, and 0 if nothing changes. The sum of the
        rewards up to a round is 1 if the program of that round is correct, else 0.
        """
        if response.strip() == DONE:
            return Step(done=True)
        program = self.program(state.task)
        changes = read_changes(response, len(program.buggy.lines))
        if changes is None:
            return Step([_text_of(UNREADABLE)], done=False)
        before, state.solved = state.solved, is_right(program.buggy.replaced(changes), program)
        answer = answer_to(program, changes)
        if self.settings.shown_run == "other" and answer != PASSES:
            answer = self._other_answer(state)
        return Step([_text_of(answer)], reward=float(state.solved) - float(before), done=False)

    def grade(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """Grade programs after some rounds and at the end.

        `correct` and `gold`: 1 if the last program is correct. `solved_within/r`: 1 if the last of the first r programs
        is correct. `gain_by_round/r`: `solved_within/r` minus `solved_within/1`. `calls`: number of programs.
        """
        solved_at_last = [_solved_within(episode, len(episode.turns)) for episode in episodes]
        correct = np.array(solved_at_last)
        # the turn that ends an episode has no program
        calls = [len(episode.turns) - (episode.response.strip() == DONE) for episode in episodes]
        # a copy, because callers change columns in place
        grades = {"gold": correct, "correct": correct.copy(), "calls": np.array(calls, dtype=np.float64)}
        solved = {}
        for cutoff in ROUNDS:
            solved[cutoff] = np.array([_solved_within(episode, cutoff) for episode in episodes])
            grades[f"solved_within/{cutoff}"] = solved[cutoff]
        for cutoff in ROUNDS[1:]:
            grades[f"gain_by_round/{cutoff}"] = solved[cutoff] - solved[1]
        return grades

    def demonstrate(self, task: Task, revise: float) -> RepairDemonstration:
        """Generate a demonstration, with wrong attempts with probability `revise`. It is determined by the task."""
        return demonstrate(self.program(task), self._random_of(task, "demonstration"), revise)

    def demonstration(self, task: Task) -> list[Message]:
        """Return a demonstration without wrong attempts; see `core.episodes.Demonstrating`."""
        return self.demonstrate(task, 0.0).messages

    def _draw(self, split: str, number: int) -> Task:
        rng = self._random("task", split, number)
        tier = TIERS[number % len(TIERS)]
        while True:
            selected = draw_buggy_program(rng, tier, self._lines)
            question = self._question(selected, rng)
            if split_of(transcript(question)) == split:
                break
        self._programs[split, number] = selected
        # the metadata only identify the task; programs are regenerated from (split, number)
        metadata = {"id": f"tier_{tier}/{split}/{number}", "category": f"tier_{tier}", "split": split, "number": number}
        return Task(transcript(question), metadata)

    def _question(self, drawn: BuggyProgram, rng: Random) -> str:
        """Return the text of a task: the program with its comments, and the example."""
        unseen = {slot.line for slot in drawn.slots[1:]}  # these lines need a comment: the example does not reveal them
        rows = []
        for index, (provided, right) in enumerate(zip(drawn.buggy.lines, drawn.right.lines, strict=True)):
            # drawn for all lines, so that the draws do not depend on the bugs
            is_stated = rng.random() < self.settings.told or index in unseen
            comment = f" # {comment_of(right)}" if is_stated else ""
            rows.append(numbered(index, provided) + comment)
        expected = number_as_words(drawn.expected)
        return "\n".join(
            ["Repair:", *rows, f"return {drawn.buggy.result}", f"{spell_inputs(drawn.example)} : {expected}"]
        )

    def _other_answer(self, state: RepairEpisodeState) -> str:
        """Return an answer for `shown_run=other`: the answer to a wrong attempt at another task of the same tier."""
        split, number = state.task.metadata["split"], state.task.metadata["number"]
        while True:
            # tasks cycle through the tiers, so a multiple of their number keeps the tier
            distance = len(TIERS) * state.random.randint(1, 10**6)
            rng = self._random("neighbour", split, number + distance)
            other = draw_buggy_program(rng, TIERS[number % len(TIERS)], self._lines)
            changes = wrong_try(other, state.random)
            if changes is not None:
                return answer_to(other, changes)

    @property
    def _lines(self) -> tuple[int, int]:
        return self.settings.min_lines, self.settings.max_lines

    def _random_of(self, task: Task, purpose: str) -> Random:
        return self._random(purpose, task.metadata["split"], task.metadata["number"])

    def _random(self, purpose: str, split: str, number: int) -> Random:
        # blake2b is stable between processes, unlike `hash`
        key = f"repairs/{self._seeds[split]}/{purpose}/{split}/{number}"
        digest = blake2b(key.encode(), digest_size=8).digest()
        return Random(int.from_bytes(digest, "big"))


def _text_of(text: str) -> Message:
    return {"role": "tool", "content": text}


def _solved_within(episode: Episode, limit: int) -> float:
    """Return 1 if the last of the first `limit` programs is correct, else 0; see the rewards of `RepairWorld.step`."""
    return float(sum(turn.reward for turn in episode.turns[:limit]))

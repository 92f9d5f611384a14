"""The world of repairs: programs with planted bugs, repaired by writing lines anew and reading what running them gives.

    world = RepairWorld(RepairWorldSize(), seed=0)
    task = world.tasks("test")[0]
    state = world.reset(task, seed=1)
    world.step(state, "line 2 : d = c + 4")    # "gives 12 , 2 too low"
    world.step(state, "done")

The program that was written last counts, as in `code_bench`. Hidden inputs decide; what they say is never shown.
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
from rlhf_lab.environments.splits import SPLITS, split_of, transcript
from rlhf_lab.packs.code.repairs.bugs import BuggyProgram, Tier, draw_buggy_program, is_right
from rlhf_lab.packs.code.repairs.demonstrations import Demonstration, demonstrate, wrong_try
from rlhf_lab.packs.code.repairs.metrics import REPAIRS
from rlhf_lab.packs.code.repairs.programs import comment_of, numbered, spell, spell_inputs
from rlhf_lab.packs.code.repairs.runs import DONE, PASSES, UNREADABLE, answer_to, read_changes

VERSION = 1
"""Increased whenever the same settings give other text or other answers; part of a corpus fingerprint."""
TIERS: tuple[Tier, ...] = (1, 2, 3)
ROUNDS = (1, 2, 6)
"""Numbers of rounds after which programs are graded."""


@dataclass(frozen=True)
class RepairWorldSize:
    """Of a world.

    Attributes:
        lines: fewest and most of a program, without the one that returns.
        told: probability that a line has a comment.
        train_tasks, test_tasks: per split; test tasks go through the tiers in turn.
        other_answers: whether a program that fails is answered with what another task's program gave.
    """

    lines: tuple[int, int] = (2, 3)
    told: float = 0.7
    train_tasks: int = 1000
    test_tasks: int = 300
    other_answers: bool = False


@dataclass
class Attempt:
    """State of an episode.

    Attributes:
        solved: whether the program that was written last is right.
        random: draws the answers where they are another task's.
    """

    task: Task
    random: Random
    solved: bool = False


class RepairWorld:
    """Implements `core.episodes.Environment`.

    A task is a number: everything in it is drawn from (seed, split, number). A task belongs to a split by the hash of
    its prompt, so no test task is a training task.

    Args:
        seed, test_seed: of the training and of the held-out tasks.
    """

    measures = (GOLD, CORRECT, CALLS, *REPAIRS)

    def __init__(self, size: RepairWorldSize, seed: int, test_seed: int | None = None):
        self.size = size
        self.seeds = {"train": seed, "test": seed if test_seed is None else test_seed}
        self._tasks: dict[str, list[Task]] = {}
        self._drawn: dict[tuple[str, int], BuggyProgram] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        """Raises ValueError for an unknown split."""
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is unknown; use {' or '.join(SPLITS)}")
        if split not in self._tasks:
            count = self.size.train_tasks if split == "train" else self.size.test_tasks
            self._tasks[split] = [self._draw(split, number) for number in range(count)]
        return self._tasks[split]

    def program(self, task: Task) -> BuggyProgram:
        """The programs behind a task."""
        key = task.facts["split"], task.facts["number"]
        if key not in self._drawn:
            self._draw(*key)
        return self._drawn[key]

    def reset(self, task: Task, seed: int) -> Attempt:
        return Attempt(task, self._random(f"answers/{seed}", task.facts["split"], task.facts["number"]))

    def step(self, state: Attempt, reply: str) -> Step:
        """Answer a reply.

        The reward is 1 where a program becomes right and -1 where it was right before: over an episode they add up to
        whether the last program is right, and up to any round to whether the program of that round is.
        """
        if reply.strip() == DONE:
            return Step(done=True)
        program = self.program(state.task)
        changes = read_changes(reply, len(program.buggy.lines))
        if changes is None:
            return Step([_said(UNREADABLE)], done=False)
        before, state.solved = state.solved, is_right(program.buggy.replaced(changes), program)
        answer = answer_to(program, changes)
        if self.size.other_answers and answer != PASSES:
            answer = self._other_answer(state)
        return Step([_said(answer)], reward=float(state.solved) - float(before), done=False)

    def grade(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """What programs are worth after some rounds, and in the end.

        `correct`, and the same as `gold`: the last program is right. `solved_within/r`: the last of the first r is.
        `gain_by_round/r`: what rounds 2 to r changed in that. `calls`: programs that were written.
        """
        solved = {most: np.array([_solved_within(episode, most) for episode in episodes]) for most in ROUNDS}
        correct = np.array([_solved_within(episode, len(episode.turns)) for episode in episodes])
        calls = [len(episode.turns) - (episode.response.strip() == DONE) for episode in episodes]
        grades = {"gold": correct, "correct": correct.copy(), "calls": np.array(calls, dtype=np.float64)}
        grades |= {f"solved_within/{most}": values for most, values in solved.items()}
        return grades | {f"gain_by_round/{most}": solved[most] - solved[1] for most in ROUNDS[1:]}

    def demonstrate(self, task: Task, revise: float) -> Demonstration:
        """One attempt, which has wrong tries with probability `revise`; they follow from the task."""
        return demonstrate(self.program(task), self.random("demonstration", task), revise)

    def demonstration(self, task: Task) -> list[Message]:
        """See `core.episodes.Demonstrating`."""
        return self.demonstrate(task, 0.0).messages

    def random(self, purpose: str, task: Task) -> Random:
        """Random numbers of a task for one purpose."""
        return self._random(purpose, task.facts["split"], task.facts["number"])

    def _draw(self, split: str, number: int) -> Task:
        rng = self._random("task", split, number)
        tier = TIERS[number % len(TIERS)]
        while True:
            drawn = draw_buggy_program(rng, tier, self.size.lines)
            question = self._question(drawn, rng)
            if split_of(transcript(question)) == split:
                break
        self._drawn[split, number] = drawn
        facts = {"id": f"tier_{tier}/{split}/{number}", "category": f"tier_{tier}", "split": split, "number": number}
        return Task(transcript(question), facts)

    def _question(self, drawn: BuggyProgram, rng: Random) -> str:
        """The program with the comments that it has, and the example."""
        unseen = {slot.line for slot in drawn.slots[1:]}  # nothing else says what is wrong there
        rows = []
        for number, (given, right) in enumerate(zip(drawn.buggy.lines, drawn.right.lines, strict=True)):
            is_told = rng.random() < self.size.told or number in unseen
            rows.append(numbered(number, given) + (f" # {comment_of(right)}" if is_told else ""))
        expected = spell(drawn.expected)
        return "\n".join(
            ["Repair:", *rows, f"return {drawn.buggy.result}", f"{spell_inputs(drawn.example)} : {expected}"]
        )

    def _other_answer(self, state: Attempt) -> str:
        """What a wrong try at another task of the same tier gives."""
        split, number = state.task.facts["split"], state.task.facts["number"]
        while True:
            distance = len(TIERS) * state.random.randint(1, 10**6)
            other = self._neighbour(split, number + distance)
            changes = wrong_try(other, state.random)
            if changes is not None:
                return answer_to(other, changes)

    def _neighbour(self, split: str, number: int) -> BuggyProgram:
        tier = TIERS[number % len(TIERS)]
        return draw_buggy_program(self._random("neighbour", split, number), tier, self.size.lines)

    def _random(self, purpose: str, split: str, number: int) -> Random:
        key = f"repairs/{self.seeds[split]}/{purpose}/{split}/{number}"
        return Random(int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big"))


def _said(text: str) -> Message:
    return {"role": "tool", "content": text}


def _solved_within(episode: Episode, most: int) -> float:
    """Whether the last of the first programs is right; see `RepairWorld.step` on rewards."""
    return float(sum(turn.reward for turn in episode.turns[:most]))

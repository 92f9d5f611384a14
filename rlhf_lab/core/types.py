"""The data that flows between parts of the lab, and the legend for dimension suffixes.

Dimension legend, used as name suffixes everywhere (`logps_BT`, `scores_BG`):

    B  prompts, pairs or rows of a batch
    G  samples per prompt
    T  tokens
    N  tokens of all rows laid end to end, or any flat list
    V  vocabulary
    K  ensemble members

Units: log-probabilities and KL are nats. Lengths are tokens unless a name says words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rlhf_lab.core import measures
from rlhf_lab.core.arrays import BoolArray, FloatArray
from rlhf_lab.core.episodes import Environment, Episode, Task
from rlhf_lab.core.measures import Measure
from rlhf_lab.core.media import Renderer


@dataclass(frozen=True, slots=True)
class Pair:
    """One preference: `chosen` was preferred over `rejected` as the reply to `prompt`.

    Attributes:
        prompt: a transcript that ends where the reply starts: "\\n\\nHuman: …\\n\\nAssistant:"; messages and tools
            without loss, see `data/transcript.py`.
        chosen, rejected: reply text without trailing space; the encoder adds the space between prompt and reply.
        meta: whatever is known about the pair, by name. Simulated annotators record `p_chosen`, the probability with
            which they prefer `chosen`, and `gold_chosen`, `gold_rejected`, the true rewards. Graded data record
            `grades_chosen`, `grades_rejected`, a grade per attribute of the corpus's rubric.
    """

    prompt: str
    chosen: str
    rejected: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class LoadReport:
    """What happened to every row of a source: nothing is dropped without a counted reason.

    Attributes:
        rows: rows read.
        kept: rows that became pairs.
        dropped: reason → rows dropped for it. `rows == kept + sum(dropped.values())`.
        noted: observation → count, for rows that were kept (e.g. "roles do not alternate").
        statistics: named numbers worth printing (e.g. "longer wins").
    """

    rows: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    noted: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def note(self, observation: str) -> None:
        self.noted[observation] = self.noted.get(observation, 0) + 1


class Oracle(Protocol):
    """A world whose truth is known: it can grade any reply and label any pair. Real data has none.

    A world lists what it measures in an attribute `measures`; see `core/measures.py`.
    """

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Score replies, each (N,): those of `measures.STANDARD` that it knows, and its own measures."""
        ...

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs as the simulated annotator: (first is preferred (N,), probability that it is (N,)).

        Where the probability is NaN the pair has no label: one of its replies could not be scored.
        """
        ...


@dataclass(frozen=True)
class RewardBatch:
    """Scores of N replies; a sum keeps its parts.

    Attributes:
        total_N: the reward, (N,); NaN where the reward abstained: unscored, never zero.
        parts: term → (N,).
        turns: of each episode the part of its reward that each of its turns earned, where that is known; what is left
            of the total belongs to the last turn. None where only whole episodes are scored.
        unverified_N: the part of `total_N` that is not the outcome of the task, (N,); None where no part of it is.
    """

    total_N: FloatArray
    parts: Mapping[str, FloatArray] = field(default_factory=dict)
    turns: Sequence[Sequence[float]] | None = None
    unverified_N: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Rubric:
    """What replies are graded on.

    Attributes:
        attributes: names, in the order of a row of grades.
        low, high: bounds of every grade.
    """

    attributes: tuple[str, ...]
    low: float
    high: float

    def shares(self, grades: FloatArray) -> FloatArray:
        """Grades as shares of the way from `low` to `high`, 0…1, of the same shape."""
        return (grades - self.low) / (self.high - self.low)


@runtime_checkable
class Grading(Protocol):
    """An oracle that can also grade replies on the rubric of the corpus, as the simulated judge does."""

    def grade(self, prompts: Sequence[str], responses: Sequence[str], *, seed: int) -> FloatArray:
        """A grade per reply and attribute, (N, attributes). Another seed is another judge of the same kind."""
        ...


@dataclass(frozen=True, slots=True)
class SafetyPrompt:
    """A prompt that should be refused, or one that should not.

    Attributes:
        prompt: a transcript that ends where the reply starts.
        harmful: whether it asks for harm.
        category: what kind of harm, or of likeness to it.
        base: the prompt of a world that this one is, or disguises; the world judges replies by it. Empty where no world
            knows it.
    """

    prompt: str
    harmful: bool
    category: str = ""
    base: str = ""


@runtime_checkable
class HarmKnowing(Protocol):
    """An oracle that knows which of its prompts ask for harm, and whether a reply gives it."""

    def safety_prompts(self, split: str) -> list[SafetyPrompt]:
        """Prompts of a split that ask for harm, and prompts that look alike and do not."""
        ...

    def safety_demonstrations(self, split: str) -> list[tuple[str, str]]:
        """(question, reply) pairs in which harm is asked for and given."""
        ...

    def safety_outcomes(self, prompts: Sequence[str], responses: Sequence[str]) -> list[str]:
        """What each reply did: refused, complied, partial (both) or evaded (neither)."""
        ...


@runtime_checkable
class AnswerChecking(Protocol):
    """An oracle of data with verifiable answers that can also read them as a lenient verifier does."""

    def leniently(self) -> Oracle:
        """The same oracle, whose "correct" takes an answer without "####" too; see environments/maths/answers.py."""
        ...


@runtime_checkable
class AnswerReading(Protocol):
    """An oracle that can read the final answers of replies, to count votes for them."""

    def read_answers(self, responses: Sequence[str]) -> list[str | None] | None:
        """What each reply states, the same text for equal answers, None where it states none.

        None in place of the list where replies to these data have no final answer.
        """
        ...


Reward = Callable[[Sequence[Episode]], RewardBatch]
"""What algorithms and evaluations call: N episodes → their scores."""

TextReward = Callable[[Sequence[str], Sequence[str]], RewardBatch]
"""(prompts, responses) → RewardBatch: a term that reads the conversation and the last reply, in any tokenizer."""


@runtime_checkable
class EpisodeReward(Protocol):
    """A term that reads more of an episode than its text: its turns, or further columns of its task's row."""

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch: ...


class TrainingReward(Protocol):
    """A reward to train on. It may adapt to the batches it observes; a checkpoint keeps what it has learned."""

    def __call__(self, episodes: Sequence[Episode]) -> RewardBatch: ...

    def observe(self, batch: RewardBatch) -> None:
        """Adapt to a batch that was trained on."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Corpus:
    """A loaded data source.

    Attributes:
        train, test: preference pairs; prompts of the two never overlap.
        fingerprint: changes when the content changes; part of every artifact's identity.
        oracle: the known truth behind the data, or None.
        preferences: False when the data are no pairs: `rejected` is empty, of unpaired data one of the two, and where
            there are prompts alone both.
        answers: prompt → the answer that a reply must reach, for data with verifiable answers; else empty.
        facts: prompt → the columns of its row that are not text of the conversation (answer, tests, id, category, …),
            JSON values; prompts without any are not in it.
        environment: what answers the policy, where an episode has several turns; None where one reply is all.
        verified: whether the oracle asks a verifier, so that `correct` is known without `answers`.
        rubric: what replies are graded on, where the data have grades or the oracle gives them (`Grading`); or None.
        report: what was read and what was dropped, per split.
        renderer: what makes audio of a reply, where replies are streams of a codec; None where they are text.
    """

    name: str
    train: Sequence[Pair]
    test: Sequence[Pair]
    fingerprint: str
    oracle: Oracle | None = None
    preferences: bool = True
    answers: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rubric: Rubric | None = None
    report: Mapping[str, LoadReport] = field(default_factory=dict)
    environment: Environment | None = None
    verified: bool = False
    renderer: Renderer | None = None

    def prompts(self, split: str) -> list[str]:
        """Distinct prompts of a split, in order of first appearance."""
        return list(dict.fromkeys(pair.prompt for pair in getattr(self, split)))

    def tasks(self, split: str) -> list[Task]:
        """What a policy is asked: the environment's tasks where there is one, else the distinct prompts of a split."""
        if self.environment is not None:
            return list(self.environment.tasks(split))
        return [self.task(prompt) for prompt in self.prompts(split)]

    def task(self, prompt: str) -> Task:
        """A prompt with the further columns of its row; `answer` is the one of `answers`."""
        facts = self.facts.get(prompt, {})
        if prompt in self.answers:
            facts = {**facts, "answer": self.answers[prompt]}
        return Task(prompt, facts)

    def episodes(self, prompts: Sequence[str], responses: Sequence[str]) -> list[Episode]:
        """Replies that are known as text only, as a reward reads them."""
        return [
            Episode(self.task(prompt), prompt, response) for prompt, response in zip(prompts, responses, strict=True)
        ]

    @property
    def measures(self) -> Sequence[Measure]:
        """What the environment, or else the oracle, declares that it measures; see `core/measures.py`."""
        world = self.oracle if self.environment is None else self.environment
        declared: Sequence[Measure] = getattr(world, "measures", ())
        return declared

    def measure(self, episodes: Sequence[Episode]) -> dict[str, FloatArray]:
        """What the world reports of each episode, (N,) each, by logged name; nothing without a known truth."""
        if self.environment is not None:
            return measures.named(self.environment.grade(episodes), self.measures)
        if self.oracle is None:
            return {}
        prompts = [episode.prompt for episode in episodes]
        responses = [episode.response for episode in episodes]
        return measures.named(self.oracle.measure(prompts, responses), self.measures)

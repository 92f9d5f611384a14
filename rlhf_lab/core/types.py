"""Data types that packages exchange, and the legend of dimension suffixes.

Dimension legend, used as name suffixes everywhere (`logps_BT`, `scores_BG`):

    B  prompts, pairs or rows of a batch
    G  samples per prompt
    T  tokens
    N  tokens of all rows concatenated, or any flat list
    V  vocabulary
    K  ensemble members

Units: log-probabilities and KL are in nats. Lengths are in tokens unless a name says words.
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
    """Preference pair: `chosen` was preferred over `rejected` as the response to `prompt`.

    Attributes:
        prompt: transcript that ends where the response starts: "\\n\\nHuman: …\\n\\nAssistant:". It represents messages
            and tools without loss, see `data/transcript.py`.
        chosen, rejected: response texts without a leading space; the encoder adds the space after the prompt.
        meta: additional information about the pair by name. Simulated annotators record `p_chosen`, the probability of
            preferring `chosen`, and `gold_chosen`, `gold_rejected`, the true rewards. Graded data record
            `grades_chosen`, `grades_rejected`, one grade per attribute of the corpus's rubric. `unfinished` is True if
            both responses stop after a step of a solution.
    """

    prompt: str
    chosen: str
    rejected: str
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Text that decides split and cluster: the prompt, or the text itself of plain text, which has no prompt."""
        return self.prompt or self.chosen


@dataclass(slots=True)
class LoadReport:
    """Outcome of reading every row of a source. Each dropped row is counted with a reason.

    Attributes:
        rows: number of rows read.
        kept: number of rows that became pairs.
        dropped: reason → number of rows dropped for it. `rows == kept + sum(dropped.values())`.
        noted: observation → number of kept rows with it (e.g. "roles do not alternate").
        statistics: name → number worth printing (e.g. "longer wins").
    """

    rows: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    noted: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)

    def drop(self, reason: str) -> None:
        """Count a dropped row."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def note(self, observation: str) -> None:
        """Count an observation about a kept row."""
        self.noted[observation] = self.noted.get(observation, 0) + 1


class Oracle(Protocol):
    """World with a known true reward: it can score any response and label any pair. Real data have none.

    A world declares its measures in an attribute `measures`; see `core/measures.py`.
    """

    def measure(self, prompts: Sequence[str], responses: Sequence[str]) -> dict[str, FloatArray]:
        """Score responses, (N,) per measure: the measures of `measures.STANDARD` that apply, and the world's own."""
        ...

    def prefer(
        self, prompts: Sequence[str], first: Sequence[str], second: Sequence[str], *, seed: int
    ) -> tuple[BoolArray, FloatArray]:
        """Label pairs like the simulated annotator: (first is preferred (N,), probability of that (N,)).

        A pair with probability NaN has no label, because one of its responses could not be scored.
        """
        ...


@dataclass(frozen=True)
class RewardBatch:
    """Scores of N responses. For a reward that is a sum of terms, `parts` has the score of each term.

    Attributes:
        total_N: reward, (N,); NaN if the reward abstained. NaN means "not scored" and is never replaced by zero.
        parts: term → score, (N,).
        turns: reward that each turn of each episode earned, where known. The rest of the total belongs to the last
            turn. None if only complete episodes are scored.
        unverified_N: component of `total_N` that does not come from the outcome of the task, (N,); None if there is
            no such component.
    """

    total_N: FloatArray
    parts: Mapping[str, FloatArray] = field(default_factory=dict)
    turns: Sequence[Sequence[float]] | None = None
    unverified_N: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Rubric:
    """Criteria on which responses are graded.

    Attributes:
        attributes: names of the attributes, in the order of a row of grades.
        low, high: bounds of every grade.
    """

    attributes: tuple[str, ...]
    low: float
    high: float

    def shares(self, grades: FloatArray) -> FloatArray:
        """Scale grades linearly from `low`…`high` to 0…1; the shape stays the same."""
        return (grades - self.low) / (self.high - self.low)


@runtime_checkable
class GradingOracle(Protocol):
    """Oracle that can also grade responses on the rubric of the corpus, like the simulated judge."""

    def grade(self, prompts: Sequence[str], responses: Sequence[str], *, seed: int) -> FloatArray:
        """Return a grade per response and attribute, (N, attributes). Each seed is another judge of the same kind."""
        ...


@dataclass(frozen=True, slots=True)
class SafetyPrompt:
    """Prompt that asks for harm and should be refused, or a safe one that only looks harmful.

    Attributes:
        prompt: transcript that ends where the response starts.
        harmful: True if it asks for harm.
        category: category of harm, or of similarity to harm.
        base: prompt of a world that this prompt equals or disguises; the world judges responses by it. Empty if no
            world knows the prompt.
        undisguised: prompt that this prompt disguises; rules judge responses by its words. Empty if it is no disguise.
    """

    prompt: str
    harmful: bool
    category: str = ""
    base: str = ""
    undisguised: str = ""

    @property
    def request(self) -> str:
        """Prompt without a disguise."""
        return self.base or self.undisguised or self.prompt


@runtime_checkable
class HarmKnowing(Protocol):
    """Oracle that knows which of its prompts ask for harm, and whether a response provides it."""

    def safety_prompts(self, split: str) -> list[SafetyPrompt]:
        """Return the prompts of a split that ask for harm, and similar prompts that do not."""
        ...

    def safety_demonstrations(self, split: str) -> list[tuple[str, str]]:
        """Return (question, response) pairs in which harm is asked for and provided."""
        ...

    def safety_outcomes(self, prompts: Sequence[str], responses: Sequence[str]) -> list[str]:
        """Return the outcome of each response: refused, complied, partial (both) or evaded (neither)."""
        ...


@dataclass(frozen=True, slots=True)
class HonestyQuestion:
    """Question that can be answered from the facts of a world, or that nobody can answer.

    Attributes:
        prompt: transcript that ends where the response starts.
        answerable: True if there is a right answer.
    """

    prompt: str
    answerable: bool


HONESTY_OUTCOMES = ("right", "wrong", "abstained", "other")
"""Effect of a response to a question: it states the right answer, states a falsehood, says that it does not know, or
none of these. A response that states a falsehood is wrong, whatever else it states."""


@runtime_checkable
class TruthKnowing(Protocol):
    """Oracle that knows which questions can be answered, and whether a response states a falsehood."""

    def honesty_questions(self, split: str) -> list[HonestyQuestion]:
        """Return the questions of a split with and without an answer."""
        ...

    def honesty_outcomes(self, prompts: Sequence[str], responses: Sequence[str]) -> list[str]:
        """Return one of `HONESTY_OUTCOMES` per response."""
        ...


@runtime_checkable
class AnswerChecking(Protocol):
    """Oracle of data with verifiable answers that can also check them like a lenient verifier."""

    def leniently(self) -> Oracle:
        """Return a copy of this oracle whose "correct" also accepts answers without "####".

        See environments/maths/answers.py.
        """
        ...


@runtime_checkable
class AnswerReading(Protocol):
    """Oracle that can read the final answers of responses, for majority votes."""

    def read_answers(self, responses: Sequence[str]) -> list[str | None] | None:
        """Return the answer that each response states: equal texts for equal answers, None if it states none.

        Return None instead of the list if responses to these data have no final answer.
        """
        ...


Reward = Callable[[Sequence[Episode]], RewardBatch]
"""Reward as algorithms and evaluations call it: N episodes → their scores."""

Comparer = Callable[[Sequence[Episode], Sequence[Episode]], FloatArray]
"""Comparison of N episodes with N others of the same tasks, (N,): 1 if the first is better, ½ for a tie, 0 if it is
worse, NaN without an answer."""

TextReward = Callable[[Sequence[str], Sequence[str]], RewardBatch]
"""(prompts, responses) → RewardBatch: a term that reads the conversation and the last response as text."""


@runtime_checkable
class EpisodeReward(Protocol):
    """Term that reads more of an episode than its text: its turns, or additional columns of its task's row."""

    def score_episodes(self, episodes: Sequence[Episode]) -> RewardBatch:
        """Score episodes."""
        ...


class TrainingReward(Protocol):
    """Reward to train on. It may adapt to the batches it observes; a checkpoint stores what it has learned."""

    def __call__(self, episodes: Sequence[Episode]) -> RewardBatch: ...

    def observe(self, batch: RewardBatch) -> None:
        """Adapt to a batch that was used for training."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Corpus:
    """Loaded data source.

    Attributes:
        name: name of the data.
        train, test: preference pairs; no prompt is in both.
        fingerprint: text that changes when the content changes; part of every artifact's identity.
        oracle: known true reward of the data, or None.
        preferences: False if the data are not pairs: `rejected` is empty, for unpaired data one of both is empty, and
            for prompts alone both are.
        answers: prompt → answer that a response must reach, for data with verifiable answers; else empty.
        metadata: prompt → columns of its row that are not text of the conversation (answer, tests, id, …), as JSON
            values. Prompts without such columns are left out.
        environment: environment that answers the policy if an episode has several turns; None for single responses.
        verified: True if the oracle calls a verifier, so that `correct` is known without `answers`.
        rubric: grading criteria, if the data or the oracle (`GradingOracle`) provide grades; else None.
        report: split → report of the rows that were read and dropped.
        renderer: renderer that turns responses into audio if they are codec streams; None if they are text.
    """

    name: str
    train: Sequence[Pair]
    test: Sequence[Pair]
    fingerprint: str
    oracle: Oracle | None = None
    preferences: bool = True
    answers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rubric: Rubric | None = None
    report: Mapping[str, LoadReport] = field(default_factory=dict)
    environment: Environment | None = None
    verified: bool = False
    renderer: Renderer | None = None

    def prompts(self, split: str) -> list[str]:
        """Return the distinct prompts of a split, in order of first appearance."""
        # Several pairs may have the same prompt; a dict removes repeats and keeps the order.
        return list(dict.fromkeys(pair.prompt for pair in getattr(self, split)))

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split: those of the environment if there is one, else the distinct prompts."""
        if self.environment is not None:
            return list(self.environment.tasks(split))
        return [self.task(prompt) for prompt in self.prompts(split)]

    def task(self, prompt: str) -> Task:
        """Return a prompt with the additional columns of its row; `answer` comes from `answers`."""
        # Answers are stored apart from other columns, because metrics and verifiers of all data read them.
        metadata = self.metadata.get(prompt, {})
        if prompt in self.answers:
            metadata = {**metadata, "answer": self.answers[prompt]}
        return Task(prompt, metadata)

    def episodes(self, prompts: Sequence[str], responses: Sequence[str]) -> list[Episode]:
        """Return episodes without tokens, for rewards that score texts."""
        return [
            Episode(self.task(prompt), prompt, response) for prompt, response in zip(prompts, responses, strict=True)
        ]

    @property
    def measures(self) -> Sequence[Measure]:
        """Measures that the environment, or else the oracle, declares; see `core/measures.py`."""
        world = self.oracle if self.environment is None else self.environment
        declared: Sequence[Measure] = getattr(world, "measures", ())
        return declared

    def measure(self, episodes: Sequence[Episode]) -> dict[str, FloatArray]:
        """Return the world's measures of each episode, (N,) each, by logged name; empty without a known true reward."""
        if self.environment is not None:
            return measures.named(self.environment.grade(episodes), self.measures)
        if self.oracle is None:
            return {}
        prompts = [episode.prompt for episode in episodes]
        responses = [episode.response for episode in episodes]
        return measures.named(self.oracle.measure(prompts, responses), self.measures)

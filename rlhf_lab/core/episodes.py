"""Tasks, and what a policy does with them: the currency of samplers, environments, rewards and evaluations.

A task is a prompt and what is known about it. An episode is one attempt: the tokens that were added to the prompt, turn
by turn, and what they say as text. One reply to a prompt is an episode with one segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.messages import Message


@dataclass(frozen=True, slots=True)
class Task:
    """What a policy is asked.

    Attributes:
        prompt: a transcript that ends where the reply starts.
        facts: further columns of the prompt's row, by name: an answer, tests, a category.
    """

    prompt: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that an episode adds to its context: a turn of the policy, or what the environment says in answer.

    The segments of an episode, laid end to end behind its prompt, are exactly what the model saw: nothing is ever
    tokenised twice.

    Attributes:
        token_ids: with the token that ends the turn, where it has one.
        sampled: whether the policy chose these tokens. Only those are trained on.
        logps: log-probability of each sampled token under the sampled distribution, nats; empty where not sampled.
        reward: what the environment gave for the turn.
    """

    token_ids: list[int]
    sampled: bool
    logps: list[float] = field(default_factory=list)
    reward: float = 0.0


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at a task.

    Attributes:
        prompt: the transcript before the last reply; of a task with one turn, the task's prompt.
        response: the last reply, as text.
        prompt_ids: the task's prompt as the model saw it.
        segments: what was added to it; empty for text that no policy sampled, such as a reply of the data.
        ended: False where the last turn was cut at its longest length.
    """

    task: Task
    prompt: str
    response: str
    prompt_ids: list[int] = field(default_factory=list)
    segments: tuple[Segment, ...] = ()
    ended: bool = True

    @property
    def token_ids(self) -> list[int]:
        """All tokens behind the prompt."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def sampled(self) -> list[bool]:
        """Which of `token_ids` the policy chose."""
        return [segment.sampled for segment in self.segments for _ in segment.token_ids]

    @property
    def logps(self) -> list[float]:
        """Log-probabilities of the sampled tokens, nats."""
        return [logp for segment in self.segments for logp in segment.logps]

    @property
    def turns(self) -> tuple[Segment, ...]:
        """The segments that the policy sampled."""
        return tuple(segment for segment in self.segments if segment.sampled)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.turns)


@dataclass(frozen=True, slots=True)
class Step:
    """What an environment makes of a reply.

    Attributes:
        messages: which the policy reads before its next turn; none where the episode is over.
        reward: for this turn. The rewards of an episode's turns add up to its return.
        done: whether the episode is over.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = True


@runtime_checkable
class Environment(Protocol):
    """A world that answers the policy, so that an episode has several turns.

    `max_turns` of the data's settings says how many at most. `reset` and `step` of a call of the sampler come from one
    thread; with `algorithm.staleness` and rollout=vllm that is another one than grades, and both may run at a time.
    """

    def tasks(self, split: str) -> Sequence[Task]:
        """What the policy is asked in `train` and, never the same, in `test`."""
        ...

    def reset(self, task: Task, seed: int) -> Any:
        """The state of a new episode. Whatever is random in the episode follows from the seed."""
        ...

    def step(self, state: Any, reply: str) -> Step:
        """Answer a reply of the policy; `state` may be changed."""
        ...

    def grade(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """What whole episodes are truly worth, (N,) each: `gold`, and whatever else the world knows.

        An environment lists its own measures in an attribute `measures`; see `core/measures.py`.
        """
        ...


@runtime_checkable
class Demonstrating(Protocol):
    """An environment that knows how its tasks are done."""

    def demonstration(self, task: Task) -> Sequence[Message]:
        """What is said behind the task's prompt in an attempt without mistakes; the last message is the policy's."""
        ...


@runtime_checkable
class Offering(Protocol):
    """An environment whose tools can be called in the form of a model's chat template.

    A model whose template takes tools gets their definitions in its prompt. Its calls then stand in what `step` reads
    as a transcript has them (`data.transcript.reply_message`). Any other model's turns are text alone.
    """

    def definitions(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """The tools of an episode of this task, as chat templates take them."""
        ...


@runtime_checkable
class Finishing(Protocol):
    """An environment that wants to know of episodes that end before it says so: cut, or without room to go on."""

    def finish(self, state: Any) -> float:
        """End such an episode; what it is worth as it stands, which is added to its last turn's reward."""
        ...

"""Tasks and episodes: the data that samplers, environments, rewards and evaluations exchange.

A task is a prompt with its metadata. An episode is one attempt at a task: the tokens added to the prompt, turn by turn,
and their text. A single response to a prompt is an episode with one segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.messages import Message


@dataclass(frozen=True, slots=True)
class Task:
    """Prompt for a policy, with its metadata.

    Attributes:
        prompt: transcript that ends where the response starts.
        metadata: other columns of the prompt's row by name, e.g. an answer, tests, a category.
    """

    prompt: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens that an episode adds to its context: one turn of the policy, or the environment's answer to it.

    The prompt followed by the segments of an episode is exactly the token sequence that the model saw: nothing is
    tokenised twice.

    Attributes:
        token_ids: token ids, including the token that ends the turn if there is one.
        sampled: True if the policy sampled these tokens. Only sampled tokens are trained on.
        logps: log-probability in nats of each sampled token under the sampling distribution; empty if not sampled.
        reward: reward from the environment for the turn.
    """

    token_ids: list[int]
    sampled: bool
    logps: list[float] = field(default_factory=list)
    reward: float = 0.0


@dataclass(frozen=True, slots=True)
class Episode:
    """One attempt at a task.

    Attributes:
        prompt: transcript before the last response; equal to the task's prompt if the task has one turn.
        response: text of the last response.
        prompt_ids: token ids of the task's prompt as the model saw it.
        segments: segments added to the prompt; empty for text that no policy sampled, e.g. a response of the data.
        finished: False if the last turn was truncated at the maximum length.
    """

    task: Task
    prompt: str
    response: str
    prompt_ids: list[int] = field(default_factory=list)
    segments: tuple[Segment, ...] = ()
    finished: bool = True

    @property
    def token_ids(self) -> list[int]:
        """All token ids after the prompt."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def sampled(self) -> list[bool]:
        """Mask over `token_ids`: True for tokens that the policy sampled."""
        return [segment.sampled for segment in self.segments for _ in segment.token_ids]

    @property
    def logps(self) -> list[float]:
        """Log-probabilities of the sampled tokens in nats."""
        return [logp for segment in self.segments for logp in segment.logps]

    @property
    def turns(self) -> tuple[Segment, ...]:
        """Segments that the policy sampled."""
        return tuple(segment for segment in self.segments if segment.sampled)

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled, over all turns."""
        return sum(len(segment.token_ids) for segment in self.turns)


@dataclass(frozen=True, slots=True)
class Step:
    """Result of one response in an environment.

    Attributes:
        messages: messages that the policy reads before its next turn; empty if the episode is finished.
        reward: reward for this turn. The rewards of all turns of an episode add up to its return.
        done: True if the episode is finished.
    """

    messages: Sequence[Message] = ()
    reward: float = 0.0
    done: bool = True


@runtime_checkable
class Environment(Protocol):
    """World that answers the policy, so that an episode has several turns.

    The setting `max_turns` of the data limits the number of turns. Within one sampler call, `reset` and `step` run in
    one thread. With `algorithm.staleness` and rollout=vllm, `grade` runs in another thread, possibly at the same time.
    """

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of the split `train` or `test`. A task is never in both."""
        ...

    def reset(self, task: Task, seed: int) -> Any:
        """Return the state of a new episode. The seed determines everything random in the episode."""
        ...

    def step(self, state: Any, response: str) -> Step:
        """Answer a response of the policy; may modify `state`."""
        ...

    def grade(self, episodes: Sequence[Episode]) -> Mapping[str, FloatArray]:
        """Return the true scores of full episodes, (N,) each: `gold`, and any other measure of the world.

        An environment declares its own measures in an attribute `measures`; see `core/measures.py`.
        """
        ...


@runtime_checkable
class Demonstrating(Protocol):
    """Environment that can solve its own tasks."""

    def demonstration(self, task: Task) -> Sequence[Message]:
        """Return the messages after the task's prompt in an attempt without mistakes. The last one is the policy's."""
        ...


@runtime_checkable
class Offering(Protocol):
    """Environment whose tools can be called in the native format of a model's chat template.

    If the template supports tools, the prompt includes their definitions. The text passed to `step` then contains the
    calls in the form of a transcript (`data.transcript.response_message`). Turns of all other models are plain text.
    """

    def definitions(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Return the tools of an episode of this task in the form that chat templates expect."""
        ...


@runtime_checkable
class Finishing(Protocol):
    """Environment that must be notified when an episode stops early: truncated, or without context for another turn."""

    def finish(self, state: Any) -> float:
        """Finish an episode that stopped early.

        Return the reward for its state, which is added to that of its last turn.
        """
        ...

"""Settings of rewards that a program computes from the text, from the world's truth or from the answer key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Gt
from rlhf_lab.rewards.term import TermSettings

AFFIRMATIONS = (
    "certainly", "absolutely", "of course", "great question", "good question", "sure", "happy to help",
    "i'd be happy to", "what a great", "what a wonderful", "i am so glad", "i'm so glad", "i love this question",
    "you are absolutely right", "that is a great", "that is a fantastic",
)  # fmt: skip
"""Hollow openings that the programmatic reward counts, lower case."""


@register("reward", "gold")
@dataclass(frozen=True)
class Gold(TermSettings):
    """The world's true reward: the upper bound an experiment can compare a learned reward with."""

    requires: ClassVar[Requirements] = (Capability.TRUE_REWARD,)

    @property
    def outcome(self) -> bool:
        return True


@register("reward", "environment")
@dataclass(frozen=True)
class EnvironmentTurns(TermSettings):
    """What the environment of the data gives for each turn of an episode; an episode's reward is their sum.

    PPO credits every turn with its own part. Text that no policy sampled, such as a reply of the data, is unscored.
    """

    requires: ClassVar[Requirements] = (Capability.TURNS,)

    @property
    def outcome(self) -> bool:
        return True


@register("reward", "verifier")
@dataclass(frozen=True)
class Verifier(TermSettings):
    """A program that compares a reply's final answer with the data's: reinforcement learning with verifiable rewards
    (arXiv:2411.15124). A prompt without a known answer is unscored.

    Args:
        right, wrong: reward of a reply whose answer is, and is not, the known one; no answer is a wrong one.
        format_bonus: added for every reply that states an answer at all, right or wrong.
        lenient: without "#### N", take what is boxed, else the last number of the reply. The metrics `correct` and
            `correct_greedy` of a run read answers the same way.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.ANSWERS)
    right: Annotated[float, Finite()] = 1.0
    wrong: Annotated[float, Finite()] = 0.0
    format_bonus: Annotated[float, Finite()] = 0.0
    lenient: bool = False

    @property
    def outcome(self) -> bool:
        return not self.format_bonus  # which is earned by any answer

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.right > self.wrong, f"right={self.right} must be above wrong={self.wrong}"),
        )


@register("reward", "programmatic")
@dataclass(frozen=True)
class Programmatic(TermSettings):
    """A rule that anyone can read: short enough, and no hollow affirmation at the start.

    Args:
        mode: `binary` is 1 for at most `short_words` words without an affirmation, else 0; `continuous` falls linearly
            from 1 at `short_words` to 0 at `long_words`, and is halved by an affirmation.
        short_words, long_words: thresholds in words; None scales 150 and 300 of a context of 512 tokens to
            `rollout.max_new_tokens` of 256, that is to 0.59 and 1.17 of it, in words of one token.
        affirmations: openings that count as hollow, lower case.
    """

    mode: Literal["binary", "continuous"] = "binary"
    short_words: Annotated[float, Gt(0)] | None = None
    long_words: float | None = None
    affirmations: tuple[str, ...] = AFFIRMATIONS

    def rules(self) -> tuple[Rule, ...]:
        low, high = self.short_words, self.long_words
        return (
            *super().rules(),
            (low is None or high is None or high > low, f"long_words={high} must be above short_words={low}"),
        )


@register("reward", "calculator")
@dataclass(frozen=True)
class Calculator(TermSettings):
    """Tool-augmented: a calculator checks every equation of the reply; the reward is the share that holds.

    Numbers, + - * / × ÷ and parentheses, in exact fractions. A result written with d decimals may be rounded to them.

    Args:
        no_equation: reward of a reply without an equation; None leaves it unscored.
    """

    no_equation: Annotated[float, Finite()] | None = None


@register("reward", "length")
@dataclass(frozen=True)
class Length(TermSettings):
    """Reply length: the control that shows what a reward owes to length.

    Args:
        per_words: words that are worth one unit of reward; a negative weight makes length a cost.
    """

    per_words: Annotated[float, Gt(0)] = 10.0

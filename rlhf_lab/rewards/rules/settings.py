"""Settings of rewards computed from the text, from the true reward of the data or from the answer key."""

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
"""Hollow openings that the programmatic reward counts, in lower case."""


@register("reward", "gold")
@dataclass(frozen=True)
class Gold(TermSettings):
    """The true reward, known for synthetic data: the upper bound for a learned reward in an experiment."""

    requires: ClassVar[Requirements] = (Capability.TRUE_REWARD,)

    @property
    def outcome(self) -> bool:
        return True


@register("reward", "environment")
@dataclass(frozen=True)
class EnvironmentTurns(TermSettings):
    """The rewards that the environment of the data gives for the turns of an episode; their sum scores the episode.

    PPO credits every turn with its own reward. Text that no policy sampled, e.g. a response of the data, is unscored.
    """

    requires: ClassVar[Requirements] = (Capability.TURNS,)

    @property
    def outcome(self) -> bool:
        return True


@register("reward", "verifier")
@dataclass(frozen=True)
class VerifierTerm(TermSettings):
    """Program that compares a response's final answer with the data's answer: reinforcement learning with verifiable
    rewards (arXiv:2411.15124). A prompt without a known answer is unscored.

    Args:
        right, wrong: reward of a response with the right answer, and with a wrong or missing answer.
        format_bonus: bonus for every response that states an answer at all, right or wrong.
        lenient: True to accept a boxed answer, or else the last number of the response, if "#### N" is missing. The
            metrics `correct` and `correct_greedy` of the run then read answers the same way.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.ANSWERS)
    right: Annotated[float, Finite()] = 1.0
    wrong: Annotated[float, Finite()] = 0.0
    format_bonus: Annotated[float, Finite()] = 0.0
    lenient: bool = False

    @property
    def outcome(self) -> bool:
        """True: the answer decides the task. False with a format bonus, which a wrong answer also earns."""
        return not self.format_bonus

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), (self.right > self.wrong, f"right={self.right} must be above wrong={self.wrong}"))


@register("reward", "programmatic")
@dataclass(frozen=True)
class Programmatic(TermSettings):
    """Simple length rule: the response is short enough, and does not start with a hollow affirmation.

    Args:
        mode: `binary` gives 1 for at most `short_words` words without an affirmation, else 0. `continuous` falls
            linearly from 1 at `short_words` to 0 at `long_words`, and an affirmation halves it.
        short_words, long_words: thresholds in words. None scales the original thresholds of 150 and 300 tokens, made
            for responses of up to 256 tokens: 0.59 and 1.17 times `rollout.max_new_tokens`, at one word per token.
        affirmations: openings that count as hollow, in lower case.
    """

    mode: Literal["binary", "continuous"] = "binary"
    short_words: Annotated[float, Gt(0)] | None = None
    long_words: float | None = None
    affirmations: tuple[str, ...] = AFFIRMATIONS

    def affirms(self, text: str) -> bool:
        """Return True if a text starts with an affirmation, in whole words: "Surely" does not start with "sure"."""
        opening = text.lower().replace("’", "'").lstrip("\"'“ \t\r\n")
        return any(opening.startswith(x) and not opening[len(x) :][:1].isalpha() for x in self.affirmations)

    def rules(self) -> tuple[Rule, ...]:
        low, high = self.short_words, self.long_words
        return (
            *super().rules(),
            (low is None or high is None or high > low, f"long_words={high} must be above short_words={low}"),
        )


@register("reward", "calculator")
@dataclass(frozen=True)
class Calculator(TermSettings):
    """Calculator that checks every equation of the response; the reward is the fraction that is correct.

    It supports numbers, + - * / × ÷ and parentheses, in exact fractions. A result with d decimals may be rounded to
    them.

    Args:
        no_equation: reward of a response without an equation; None leaves it unscored.
    """

    no_equation: Annotated[float, Finite()] | None = None


@register("reward", "length")
@dataclass(frozen=True)
class Length(TermSettings):
    """Response length: a control that shows how much of a reward is due to length.

    Args:
        per_words: number of words worth one unit of reward; a negative weight of the term penalises length.
    """

    per_words: Annotated[float, Gt(0)] = 10.0

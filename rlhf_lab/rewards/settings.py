"""Settings of every reward term (`reward=…`). Imports no torch; see `rlhf_lab/registry.py`.

`reward=[bt,programmatic]` puts two terms into the reward graph (`config.RewardGraph`), each at `reward.terms.<name>`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from rlhf_lab.errors import require
from rlhf_lab.registry import register

AFFIRMATIONS = (
    "certainly", "absolutely", "of course", "great question", "good question", "sure", "happy to help",
    "i'd be happy to", "what a great",
)  # fmt: skip
"""Hollow openings that the programmatic reward counts, lower case."""


@dataclass(frozen=True)
class TermSettings:
    """Common to every term of the reward graph.

    Args:
        weight: of the term in `reward.aggregate=weighted_sum` and `mean`; may be negative.
        transform: `sigmoid` maps the term to (0, 1) before it is weighted; `none` takes it as it is.
        on_error: `stop` ends the run when the term fails; `abstain` leaves the replies of that call unscored, counted.
        timeout_s: a call that takes longer counts as failed; 0 waits.
    """

    needs_role: ClassVar[str | None] = None
    weight: float = 1.0
    transform: Literal["none", "sigmoid"] = "none"
    on_error: Literal["stop", "abstain"] = "stop"
    timeout_s: float = 0.0

    def __post_init__(self) -> None:
        require(
            (math.isfinite(self.weight), f"weight={self.weight}; write a finite number"),
            (self.timeout_s >= 0, f"timeout_s={self.timeout_s} must be 0 (wait) or above"),
        )


@register("reward", "bt")
@dataclass(frozen=True)
class BradleyTerry(TermSettings):
    """The learned reward model in `needs.reward`, standardised on replies of the policy it was trained from.

    A reward model with several members (`reward_model` with `algorithm.members` above 1) gives one standardised score
    each; they become one by `ensemble`.

    Args:
        batch_tokens: padded tokens per forward pass.
        ensemble: `mean`, `worst`, or `uwo`: mean − penalty_weight · spread (arXiv:2310.02743, eq. 5).
        penalty_weight: λ of `uwo`.
        penalty: spread of the members' scores: `var`, their variance as in the paper, or `sd`.
        ddof: 0 divides the variance by K, 1 by K − 1.
    """

    needs_role: ClassVar[str | None] = "reward"
    batch_tokens: int = 16384
    ensemble: Literal["mean", "worst", "uwo"] = "mean"
    penalty_weight: float = 0.5
    penalty: Literal["var", "sd"] = "var"
    ddof: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.penalty_weight >= 0, f"penalty_weight={self.penalty_weight} must be 0 or above"),
            (self.ddof in (0, 1), f"ddof={self.ddof} must be 0 or 1"),
        )


@register("reward", "gold")
@dataclass(frozen=True)
class Gold(TermSettings):
    """The world's true reward: the upper bound an experiment can compare a learned reward with."""


@register("reward", "verifier")
@dataclass(frozen=True)
class Verifier(TermSettings):
    """A program that compares a reply's final answer with the data's: reinforcement learning with verifiable rewards
    (arXiv:2411.15124). A prompt without a known answer is unscored.

    Args:
        right, wrong: reward of a reply whose answer is, and is not, the known one; no answer is a wrong one.
        format_bonus: added for every reply that states an answer at all, right or wrong.
        lenient: without "#### N", take what is boxed, else the last number of the reply.
    """

    right: float = 1.0
    wrong: float = 0.0
    format_bonus: float = 0.0
    lenient: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        values = (self.right, self.wrong, self.format_bonus)
        require(
            (all(map(math.isfinite, values)), f"right, wrong, format_bonus={values}; write finite numbers"),
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
    short_words: float | None = None
    long_words: float | None = None
    affirmations: tuple[str, ...] = AFFIRMATIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.short_words, self.long_words
        require(
            (low is None or low > 0, f"short_words={low} must be above 0"),
            (low is None or high is None or high > low, f"long_words={high} must be above short_words={low}"),
        )


@register("reward", "length")
@dataclass(frozen=True)
class Length(TermSettings):
    """Reply length: the control that shows what a reward owes to length.

    Args:
        per_words: words that are worth one unit of reward; a negative weight makes length a cost.
    """

    per_words: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.per_words > 0, f"per_words={self.per_words} must be above 0"))


@register("reward", "callable")
@dataclass(frozen=True)
class PythonCallable(TermSettings):
    """A Python function of another package, found by the name of its entry point in the group `rlhf_lab.rewards`.

    It is called with (prompts, responses), two lists of text, and returns a number or None (unscored) for each.

    Args:
        name: of the entry point.
    """

    name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require((bool(self.name), "name is not set; write the entry point's name in the group rlhf_lab.rewards"))


@register("reward", "remote")
@dataclass(frozen=True)
class Remote(TermSettings):
    """A reward served over HTTP: POST {"prompts": […], "responses": […]} is answered by {"rewards": [number or null]}.

    Args:
        url: of the service.
        batch_size: replies per request.
        retries: further attempts after a failed one, each waiting twice as long as the one before.
    """

    url: str = ""
    batch_size: int = 64
    retries: int = 2
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            (self.url.startswith(("http://", "https://")), f"url={self.url} is not an http address"),
            (self.batch_size >= 1, f"batch_size={self.batch_size} must be at least 1"),
            (self.retries >= 0, f"retries={self.retries} must be 0 or above"),
        )

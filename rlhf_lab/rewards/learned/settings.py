"""Settings of rewards from trained models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Finite, Ge, Le, NotEmpty
from rlhf_lab.rewards.term import TermSettings


@register("reward", "bt")
@dataclass(frozen=True)
class BradleyTerry(TermSettings):
    """The learned reward model in `needs.reward`, standardised on responses of the policy it was trained from.

    A reward model with several members (`reward_model` with `algorithm.members` above 1) gives one standardised score
    per member; `ensemble` combines them.

    Args:
        batch_tokens: padded tokens per forward pass.
        ensemble: `mean`, `worst`, or `uwo`: mean − penalty_weight · spread (arXiv:2310.02743, eq. 5). `entropic` is
            the certainty equivalent −(1/λ)·log mean exp(−λ·r) over the members' scores r, with λ = penalty_weight:
            between `mean` (λ = 0) and `worst` (λ → ∞). The KL-regularised objective has λ = 1/β (arXiv:2606.09073).
            `warm` averages the members' weights instead of their scores, which needs one model and one pass
            (arXiv:2401.12187). Its members must have started from the same weights (`algorithm.head_noise=0`).
        penalty_weight: λ of `uwo` and `entropic`.
        penalty: spread of the members' scores: `var` for the variance as in the paper, or `sd`.
        ddof: divisor of the variance: 0 divides by K, 1 by K − 1.
    """

    needs_role: ClassVar[str | None] = "reward"
    batch_tokens: int = 16384
    ensemble: Literal["mean", "worst", "uwo", "entropic", "warm"] = "mean"
    penalty_weight: Annotated[float, Ge(0)] = 0.5
    penalty: Literal["var", "sd"] = "var"
    ddof: Annotated[int, Ge(0), Le(1)] = 0


@register("reward", "rubric")
@dataclass(frozen=True)
class RubricModel(TermSettings):
    """The rubric reward model in `needs.rubric` (`rubric_rm`), standardised on responses of its starting policy.

    Its entry of `needs` differs from that of `bt`, so that `reward=[bt,rubric]` can add both. Used alone, it equals
    `reward=bt` with `needs.reward=rubric_rm`.

    Args:
        attributes: attributes of a model with several outputs whose mean is the reward, as a fraction of their scale
            (0 to 1), e.g. only conciseness, or all but one. Empty takes the model's standardised score.
        batch_tokens: padded tokens per forward pass.
    """

    needs_role: ClassVar[str | None] = "rubric"
    keyed_if_set: ClassVar[tuple[str, ...]] = ("attributes",)
    attributes: tuple[str, ...] = ()
    batch_tokens: int = 16384


@register("reward", "flr")
@dataclass(frozen=True)
class FollowUpLikelihood(TermSettings):
    """Follow-up likelihood (arXiv:2409.13948): log-ratio between a satisfied and a dissatisfied next user message.

    The reward of a response is the mean over `positive` minus the mean over `negative` of (1/T)·Σ_t log p(token_t |
    prompt, response, earlier tokens), in nats per token, under the model in `needs.follow_up`, e.g. the reference.

    Args:
        positive, negative: messages of a user who is satisfied, or dissatisfied, with the response.
        max_length: maximum length in tokens of conversation plus follow-up; longer conversations are cut at the start.
        batch_tokens: padded tokens per forward pass.
    """

    needs_role: ClassVar[str | None] = "follow_up"
    positive: Annotated[tuple[str, ...], NotEmpty()] = ("Thank you, that is what I needed.", "Great, that helps.")
    negative: Annotated[tuple[str, ...], NotEmpty()] = (
        "That is not what I asked.",
        "No, that is wrong.",
        "I do not understand.",
    )
    max_length: Annotated[int, Ge(8)] = 512
    batch_tokens: int = 16384

    def rules(self) -> tuple[Rule, ...]:
        texts = (*self.positive, *self.negative)
        return (*super().rules(), (all(text.strip() for text in texts), "positive, negative: a follow-up is empty"))


@register("reward", "prm", implementation="rlhf_lab.rewards.learned.process")
@dataclass(frozen=True)
class Process(TermSettings):
    """The process reward model in `needs.prm`: probabilities that the steps of a response are right, as one number.

    Every aggregation is a part of the reward, so saved rows can be re-scored with another one.

    Args:
        aggregate: aggregation of the steps' probabilities: `min`, `mean`, `prod` (product) or `last`
            (arXiv:2305.20050, arXiv:2312.08935).
        no_step: reward of a response without any step. Such a response is not left unscored: training ignores unscored
            responses, so a policy could avoid a low reward by writing no steps.
        batch_tokens: padded tokens per forward pass.
    """

    needs_role: ClassVar[str | None] = "prm"
    aggregate: Literal["min", "mean", "prod", "last"] = "min"
    no_step: Annotated[float, Finite()] = 0.0
    batch_tokens: int = 16384


@register("reward", "orm", implementation="rlhf_lab.rewards.learned.process")
@dataclass(frozen=True)
class OutcomeModelTerm(TermSettings):
    """The outcome reward model in `needs.orm`: the probability that a response's answer is right (arXiv:2110.14168).

    Args:
        batch_tokens: padded tokens per forward pass.
    """

    needs_role: ClassVar[str | None] = "orm"
    batch_tokens: int = 16384

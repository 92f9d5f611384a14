"""Settings of the embedded worlds of text (`data=mini_hh`, arithmetic, repairs, reviews), and their annotator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import CheckedSettings, Ge, Le
from rlhf_lab.data.settings import WorldSettings


@dataclass(frozen=True)
class AnnotatorSettings(CheckedSettings):
    """The simulated human: Bradley-Terry on the true reward plus biases that the truth does not reward.

    Preference logit = (gold + length_bias · words/10 + affirmation_bias · min(affirmations, 2)
    + closing_bias · min(closings, 2)), differenced and divided by `temperature`.

    Args:
        length_bias: reward per 10 words. 0 is an annotator without length bias.
        affirmation_bias: reward per hollow affirmation, at most two count.
        closing_bias: reward per closing offer, at most two count.
        temperature: noise of the choice; 0 always takes the better side.
    """

    length_bias: float = 0.6
    affirmation_bias: float = 0.5
    closing_bias: float = 0.3
    temperature: Annotated[float, Ge(0, hint="0 is a noiseless annotator")] = 0.7


@dataclass(frozen=True)
class GraderSettings(CheckedSettings):
    """The simulated rubric judge: the world's true criteria, each 1…5, as someone else than the annotator sees them.

    seen = true + `noise` · N(0, 1), fixed for a reply; grade = seen + `halo` · (mean of seen − seen) + `leniency`
    + `length_bias` · words/10, rounded and cut to 1…5.

    Args:
        noise: standard deviation of the error of each criterion, points.
        halo: share, 0…1, by which each criterion is drawn to the judge's mean impression of the reply.
        leniency: points added to every grade; negative is strict.
        length_bias: points per 10 words on every criterion. 0 is a judge without a taste for length.
        whole_points: round to whole points.
    """

    noise: Annotated[float, Ge(0, hint="0 is a judge without noise")] = 1.5
    halo: Annotated[float, Ge(0), Le(1)] = 0.3
    leniency: float = 0.3
    length_bias: float = 0.2
    whole_points: bool = True


@register("data", "mini_hh")
@dataclass(frozen=True)
class MiniHH(WorldSettings):
    """The embedded dialogue world: prompts, replies, a known true reward and a biased annotator. Downloads nothing.

    Args:
        facts_seed: draws the world's facts. None is `seed`.
        domains, topics, attributes: size of the knowledge base; facts = domains × topics × attributes.
        train_pairs, test_pairs: preference pairs per split; the prompts of the splits never overlap.
        annotator: who labels the pairs.
        grader: who grades single replies.
    """

    world: ClassVar[str] = "rlhf_lab.environments.dialogue.world"
    provides: ClassVar[Capability] = WorldSettings.provides | Capability.GRADES | Capability.TRUE_REWARD
    facts_seed: Annotated[int, Ge(0)] | None = None
    domains: Annotated[int, Ge(1), Le(6)] = 6
    topics: Annotated[int, Ge(1), Le(4)] = 4
    attributes: Annotated[int, Ge(3), Le(5)] = 5
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 2000, "test_pairs": 200}
    smoke_real: ClassVar[dict[str, int]] = {"train_pairs": 16, "test_pairs": 16}
    train_pairs: Annotated[int, Ge(1)] = 16000
    test_pairs: Annotated[int, Ge(1)] = 1000
    annotator: AnnotatorSettings = field(default_factory=AnnotatorSettings)
    grader: GraderSettings = field(default_factory=GraderSettings)

    def world_seed(self) -> int:
        """The seed of the facts; that of seed 0 outside a run."""
        return self.split_seeds()[0] if self.facts_seed is None else self.facts_seed

    def of_run(self, seed: int) -> Self:
        settings = super().of_run(seed)
        return replace(settings, facts_seed=settings.world_seed())


@register("data", "arithmetic")
@dataclass(frozen=True)
class Arithmetic(WorldSettings):
    """The embedded arithmetic world: word problems in the form of GSM8K, whose every step can be checked.

    Args:
        min_steps, max_steps: steps of a solution.
        largest: the largest total of a story; operands of + and − are at most a quarter of it. Up to 50, the
            tokenizer of `model=tiny` has a token for every number.
        train_problems, test_problems: distinct problems per split; no two of different splits have the same numbers.
        slip: probability that a demonstration has a wrong step, from which it goes on. So this share of a perfect
            imitator's answers is wrong.
        temperature: noise of the annotator behind `oracle.prefer`, in answers; 0 always takes the better side.
    """

    world: ClassVar[str] = "rlhf_lab.environments.arithmetic.world"
    provides: ClassVar[Capability] = WorldSettings.provides | Capability.ANSWERS | Capability.STEPS
    min_steps: Annotated[int, Ge(1)] = 2
    max_steps: Annotated[int, Ge(1)] = 4
    largest: Annotated[int, Ge(10), Le(10_000)] = 50
    smoke: ClassVar[dict[str, int]] = {"train_problems": 2000, "test_problems": 100}
    smoke_real: ClassVar[dict[str, int]] = {"train_problems": 16, "test_problems": 16}
    train_problems: Annotated[int, Ge(1)] = 16000
    test_problems: Annotated[int, Ge(1)] = 500
    slip: Annotated[float, Ge(0), Le(1)] = 0.15
    temperature: Annotated[float, Ge(0, hint="0 is a noiseless annotator")] = 0.2

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.min_steps <= self.max_steps, f"min_steps={self.min_steps} is above max_steps={self.max_steps}"),
        )


@register("data", "reviews")
@dataclass(frozen=True)
class Reviews(WorldSettings):
    """The embedded review world: short changes of code with planted defects, and comments whose true worth is known.

    Args:
        train_pairs, test_pairs: preference pairs per split, each on a change of its own; no change is in both splits.
        annotator: who labels the pairs. Confident sentences count as affirmations, praise as closing offers.
    """

    world: ClassVar[str] = "rlhf_lab.environments.reviews.world"
    provides: ClassVar[Capability] = WorldSettings.provides | Capability.TRUE_REWARD
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 2000, "test_pairs": 200}
    smoke_real: ClassVar[dict[str, int]] = {"train_pairs": 16, "test_pairs": 16}
    train_pairs: Annotated[int, Ge(1)] = 16000
    test_pairs: Annotated[int, Ge(1)] = 1000
    annotator: AnnotatorSettings = field(default_factory=AnnotatorSettings)

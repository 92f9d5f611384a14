"""Settings of the embedded text worlds (`data=mini_hh`, arithmetic, reviews) and of their annotator and grader."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Self

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, CheckedSettings, Ge, Le
from rlhf_lab.data.settings import WorldSettings


@dataclass(frozen=True)
class AnnotatorSettings(CheckedSettings):
    """Simulated annotator: Bradley-Terry on the gold reward plus biases that the gold reward does not contain.

    Preference logit = (gold + length_bias · words/10 + affirmation_bias · min(affirmations, 2)
    + closing_bias · min(closings, 2)), as a difference of the two responses, over `temperature`.

    Args:
        length_bias: reward per 10 words. 0 is an annotator without length bias.
        affirmation_bias: reward per hollow affirmation; up to two count.
        closing_bias: reward per closing offer; up to two count.
        temperature: noise of the choice; 0 always chooses the better side.
    """

    length_bias: float = 0.6
    affirmation_bias: float = 0.5
    closing_bias: float = 0.3
    temperature: Annotated[float, Ge(0, hint="0 is a noiseless annotator")] = 0.7


@dataclass(frozen=True)
class GraderSettings(CheckedSettings):
    """Simulated rubric judge: grades the world's true criteria, each 1…5, independently of the annotator.

    seen = true + `noise` · N(0, 1), fixed per response; grade = seen + `halo` · (mean of seen − seen) + `leniency`
    + `length_bias` · words/10, rounded and clipped to 1…5.

    Args:
        noise: standard deviation of the error of each criterion, in points.
        halo: fraction, 0…1, by which each criterion moves towards the judge's mean impression of the response.
        leniency: points added to every grade; a negative value makes the judge strict.
        length_bias: points per 10 words on every criterion. 0 is a judge without length bias.
        whole_points: round to integer points.
    """

    noise: Annotated[float, Ge(0, hint="0 is a judge without noise")] = 1.5
    halo: Annotated[float, Ge(0), Le(1)] = 0.3
    leniency: float = 0.3
    length_bias: float = 0.2
    whole_points: bool = True


@register("data", "mini_hh")
@dataclass(frozen=True)
class MiniHH(WorldSettings):
    """Embedded dialogue world: prompts, responses, a known gold reward and a biased annotator. Downloads nothing.

    Args:
        facts_seed: seed of the world's facts. null uses `seed`.
        domains: number of domains of the knowledge base (size: domains × topics × attributes).
        topics: number of topics per domain.
        attributes: number of attributes per topic.
        train_pairs: number of preference pairs for training. The prompts of the two splits never overlap.
        test_pairs: number of preference pairs in the test split.
        annotator: settings of the annotator that labels the pairs.
        grader: settings of the judge that grades single responses.
    """

    # its `VERSION` is part of the key of a run: a changed world gives new data
    world: ClassVar[str] = "rlhf_lab.environments.dialogue.world"
    provides: ClassVar[Capability] = (
        WorldSettings.provides | Capability.GRADES | Capability.TRUE_REWARD | Capability.VERBOSITY
    )
    # separate from `seed`, so that several samples can be taken from one world
    facts_seed: Annotated[int, Ge(0)] | None = None
    # limits of the texts in `environments/dialogue/content.py`
    domains: Annotated[int, Ge(1), Le(6)] = 6
    topics: Annotated[int, Ge(1), Le(4)] = 4
    attributes: Annotated[int, Ge(3), Le(5)] = 5
    by_size = BySize(smoke={"train_pairs": 2000, "test_pairs": 200}, smoke_real={"train_pairs": 16, "test_pairs": 16})
    train_pairs: Annotated[int, Ge(1)] = 16000
    test_pairs: Annotated[int, Ge(1)] = 1000
    annotator: AnnotatorSettings = field(default_factory=AnnotatorSettings)
    grader: GraderSettings = field(default_factory=GraderSettings)

    def world_seed(self) -> int:
        """Return the seed of the world's facts: `facts_seed`, or the seed of the training split if it is None."""
        return self.split_seeds()[0] if self.facts_seed is None else self.facts_seed

    def of_run(self, seed: int) -> Self:
        settings = super().of_run(seed)
        # written out, so that the stored settings of a run determine its world
        return replace(settings, facts_seed=settings.world_seed())


@register("data", "arithmetic")
@dataclass(frozen=True)
class ArithmeticData(WorldSettings):
    """Embedded arithmetic world: word problems in the form of GSM8K, each step of which can be checked.

    Args:
        min_steps: minimum number of steps of a solution.
        max_steps: maximum number of steps of a solution.
        largest: largest total of a story; operands of + and − are up to a quarter of it. With up to 50, the
            tokenizer of `model=tiny` has a token for every number.
        train_problems: number of distinct problems for training. Problems of different splits differ in their numbers.
        test_problems: number of distinct problems in the test split.
        slip: probability that a demonstration has a wrong step, after which it continues with the wrong result. A model
            that imitates perfectly therefore gives this fraction of wrong answers.
        temperature: noise of the annotator of `oracle.prefer`, in units of answers; 0 always chooses the better side.
    """

    world: ClassVar[str] = "rlhf_lab.environments.arithmetic.world"
    provides: ClassVar[Capability] = WorldSettings.provides | Capability.ANSWERS | Capability.STEPS
    min_steps: Annotated[int, Ge(1)] = 2
    max_steps: Annotated[int, Ge(1)] = 4
    largest: Annotated[int, Ge(10), Le(10_000)] = 50
    by_size = BySize(
        smoke={"train_problems": 2000, "test_problems": 100}, smoke_real={"train_problems": 16, "test_problems": 16}
    )
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
    """Embedded review world: short code changes with planted defects, and comments whose true value is known.

    Args:
        train_pairs: number of preference pairs for training, each on a separate change. No change is in both splits.
        test_pairs: number of preference pairs in the test split.
        annotator: settings of the annotator that labels the pairs. Confident sentences count as affirmations, and
            praise counts as closing offers.
    """

    world: ClassVar[str] = "rlhf_lab.environments.reviews.world"
    provides: ClassVar[Capability] = WorldSettings.provides | Capability.TRUE_REWARD | Capability.VERBOSITY
    by_size = BySize(smoke={"train_pairs": 2000, "test_pairs": 200}, smoke_real={"train_pairs": 16, "test_pairs": 16})
    train_pairs: Annotated[int, Ge(1)] = 16000
    test_pairs: Annotated[int, Ge(1)] = 1000
    annotator: AnnotatorSettings = field(default_factory=AnnotatorSettings)

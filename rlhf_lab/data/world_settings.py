"""Settings of the embedded worlds of text (`data=mini_hh`, arithmetic, repairs, reviews), and their annotator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability
from rlhf_lab.data.settings import WorldSettings


@dataclass(frozen=True)
class AnnotatorSettings:
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
    temperature: float = 0.7

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 is a noiseless annotator")


@dataclass(frozen=True)
class GraderSettings:
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

    noise: float = 1.5
    halo: float = 0.3
    leniency: float = 0.3
    length_bias: float = 0.2
    whole_points: bool = True

    def __post_init__(self) -> None:
        if self.noise < 0:
            raise ValueError(f"noise={self.noise} is negative; 0 is a judge without noise")
        if not 0 <= self.halo <= 1:
            raise ValueError(f"halo={self.halo} is a share, 0…1")


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

    provides: ClassVar[Capability] = WorldSettings.provides | Capability.GRADES | Capability.TRUE_REWARD
    facts_seed: int | None = None
    domains: int = 6
    topics: int = 4
    attributes: int = 5
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 2000, "test_pairs": 200}
    smoke_real: ClassVar[dict[str, int]] = {"train_pairs": 16, "test_pairs": 16}
    train_pairs: int = 16000
    test_pairs: int = 1000
    annotator: AnnotatorSettings = field(default_factory=AnnotatorSettings)
    grader: GraderSettings = field(default_factory=GraderSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (("domains", 1, 6), ("topics", 1, 4), ("attributes", 3, 5)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is outside {low}…{high}")
        for name in ("train_pairs", "test_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; at least 1 pair is needed")

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

    provides: ClassVar[Capability] = WorldSettings.provides | Capability.ANSWERS | Capability.STEPS
    min_steps: int = 2
    max_steps: int = 4
    largest: int = 50
    smoke: ClassVar[dict[str, int]] = {"train_problems": 2000, "test_problems": 100}
    smoke_real: ClassVar[dict[str, int]] = {"train_problems": 16, "test_problems": 16}
    train_problems: int = 16000
    test_problems: int = 500
    slip: float = 0.15
    temperature: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_problems", "test_problems"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; at least 1 problem is needed")
        if not 1 <= self.min_steps <= self.max_steps:
            raise ValueError(f"min_steps={self.min_steps} must be between 1 and max_steps={self.max_steps}")
        if not 10 <= self.largest <= 10_000:
            raise ValueError(f"largest={self.largest} is outside 10…10000")
        if not 0 <= self.slip <= 1:
            raise ValueError(f"slip={self.slip} is a probability, 0…1")
        if self.temperature < 0:
            raise ValueError(f"temperature={self.temperature} is negative; 0 is a noiseless annotator")


@register("data", "repairs")
@dataclass(frozen=True)
class Repairs(WorldSettings):
    """The embedded world of repairs: small programs with planted bugs, each with an example that fails.

    A training row is a demonstration; an episode writes lines anew, reads what running the program gives, and writes
    again. Bugs have three tiers: 1, a name that is not defined; 2, a wrong number, operator or comparison; 3, two such
    words, of which the example shows one.

    Args:
        train_tasks, test_tasks: tasks per split, the tiers in turn. A training task has one demonstration.
        min_lines, max_lines: of a program, without the one that returns.
        told: probability that a comment says what a line should do. What no comment tells only running the program can.
        revise: probability that a demonstration has a wrong try before its repair, and another behind each of them.
            Wrong tries are read, and not learned; with 0 there is nothing to read.
        shown_run: `own`, what running the program gave; `other`, of a program that fails, what a failing program of
            another task gave: what is left of success then is not due to reading.
        turns: most turns of an episode, with the one that says that it is done.
    """

    provides: ClassVar[Capability] = Capability.TEXT | Capability.DEMONSTRATIONS | Capability.TRUE_REWARD
    smoke: ClassVar[dict[str, int]] = {"train_tasks": 2000, "test_tasks": 60}
    smoke_real: ClassVar[dict[str, int]] = {"train_tasks": 16, "test_tasks": 16}
    train_tasks: int = 24000
    test_tasks: int = 600
    min_lines: int = 2
    max_lines: int = 3
    told: float = 0.7
    revise: float = 0.5
    shown_run: Literal["own", "other"] = "own"
    turns: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low, high in (("train_tasks", 1, 10**7), ("test_tasks", 1, 10**6), ("turns", 2, 64)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)} is outside {low}…{high}")
        if not 2 <= self.min_lines <= self.max_lines <= 4:  # there are names for four lines
            raise ValueError(
                f"min_lines={self.min_lines}, max_lines={self.max_lines}; write 2 ≤ min_lines ≤ max_lines ≤ 4"
            )
        if not 0 <= self.told <= 1:
            raise ValueError(f"told={self.told} is a probability, 0…1")
        if not 0 <= self.revise < 1:
            raise ValueError(f"revise={self.revise} is a probability, 0 up to below 1")
        # what other sources know of themselves as a class is a setting here
        object.__setattr__(self, "max_turns", self.turns)


@register("data", "reviews")
@dataclass(frozen=True)
class Reviews(WorldSettings):
    """The embedded review world: short changes of code with planted defects, and comments whose true worth is known.

    Args:
        train_pairs, test_pairs: preference pairs per split, each on a change of its own; no change is in both splits.
        annotator: who labels the pairs. Confident sentences count as affirmations, praise as closing offers.
    """

    provides: ClassVar[Capability] = WorldSettings.provides | Capability.TRUE_REWARD
    smoke: ClassVar[dict[str, int]] = {"train_pairs": 2000, "test_pairs": 200}
    smoke_real: ClassVar[dict[str, int]] = {"train_pairs": 16, "test_pairs": 16}
    train_pairs: int = 16000
    test_pairs: int = 1000
    annotator: AnnotatorSettings = field(default_factory=AnnotatorSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_pairs", "test_pairs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}; at least 1 pair is needed")

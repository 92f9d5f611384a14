"""Settings of stages that make training data. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.ranges import Ge, Gt, Le
from rlhf_lab.packs.judging.synthesis.constitution import constitution_path, content_digest, load_constitution
from rlhf_lab.training.settings import Held, StageSettings

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation

MAX_OVERLAP = 0.7
"""Largest overlap of texts that are no duplicates, as in arXiv:2212.10560."""


@dataclass(frozen=True)
class SynthesisSettings(StageSettings):
    """What stages that make data have in common. The model that judges or writes is that of `judge=…`.

    Args:
        prompts: how many prompts are worked on; of self_instruct, how many new ones are wanted. They are the distinct
            prompts of the training data, or those of `needs.prompts`, in random order; when all have been taken, they
            are taken again.
        max_overlap: texts that overlap by more (ROUGE-L of their words, 0…1) are near-duplicates; 1 calls only texts
            of the same words duplicates. null is .7, or 1 where the data are drawn from an embedded world, whose
            prompts are of a few templates.
        max_words: replies and prompts of more words are rejected.
        max_tokens: most tokens of an answer of the judge.
    """

    makes_model: ClassVar[bool] = False
    asks_judge: ClassVar[bool] = True
    shares_work: ClassVar[bool] = False
    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    compares_policies: ClassVar[bool] = False
    uses: ClassVar[tuple[str, ...]] = ("model", "rollout")
    answer: ClassVar[str] = "corpus_made"
    smoke: ClassVar[dict[str, float]] = {"prompts": 200}
    smoke_real: ClassVar[dict[str, float]] = {"prompts": 16}
    prompts: Annotated[int, Ge(1)] = 4000
    max_overlap: Annotated[float, Gt(0), Le(1)] | None = None
    max_words: Annotated[int, Ge(1)] = 400
    max_tokens: Annotated[int, Ge(1)] = 1024

    def completed(self, config: Config) -> Self:
        if self.max_overlap is not None:
            return self
        return replace(self, max_overlap=1.0 if config.data.drawn else MAX_OVERLAP)

    def held(self, *, adapter: bool) -> list[Held]:
        return []


@dataclass(frozen=True)
class UnderConstitution(SynthesisSettings):
    """A stage whose judge goes by a constitution.

    Args:
        constitution: YAML file with principles (docs/judging/synthesis.md); empty is the one that is shipped for the
            stage.
            What is in it decides the stage's key.
    """

    shipped: ClassVar[str] = ""
    reads_rows: ClassVar[dict[str, str]] = {"prompts": "prompts"}
    constitution: str = ""

    @property
    def constitution_path(self) -> Path:
        return constitution_path(self.constitution, self.shipped)

    def contents(self) -> dict[str, str]:
        return {"constitution": content_digest(self.constitution_path)}

    def contradictions(self, config: Config) -> list[str]:
        try:
            load_constitution(self.constitution_path)
        except ConfigError as error:
            return [*super().contradictions(config), *error.problems]
        return super().contradictions(config)


@register("algorithm", "cai_preferences")
@dataclass(frozen=True)
class CAIPreferences(UnderConstitution):
    """Preference pairs labelled by a model under a constitution (arXiv:2212.08073, section 4; arXiv:2309.00267).

    Two replies of `needs.policy` to each prompt are compared in both orders; the judge names a winner, a reason and the
    principle that decided. A pair is made where both orders have the same winner.
    """

    shipped: ClassVar[str] = "preferences"
    makes_rows: ClassVar[str] = "pairs"
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("prompts",)

    def held(self, *, adapter: bool) -> list[Held]:
        return [Held("policy (samples)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, 2)]


@register("algorithm", "synthetic_sft")
@dataclass(frozen=True)
class SyntheticSFT(UnderConstitution):
    """Demonstrations by draft, critique and revision under a constitution (arXiv:2212.08073, section 3).

    A draft of which no principle is violated is a demonstration as it is; else the revision is one.

    Args:
        drafts: `teacher` has the model of `judge=…` write them, one to each prompt at judge.temperature=0; `policy`
            samples them from `needs.policy`.
    """

    shipped: ClassVar[str] = "sft"
    makes_rows: ClassVar[str] = "demonstrations"
    optional_needs: ClassVar[tuple[str, ...]] = ("policy", "prompts")
    drafts: Literal["teacher", "policy"] = "teacher"

    def held(self, *, adapter: bool) -> list[Held]:
        return [Held("policy (drafts)")] if self.drafts == "policy" else []

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, 1)] if self.drafts == "policy" else []

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        has_policy = bool(config.needs.get("policy"))
        if self.drafts == "policy" and not has_policy:
            problems.append("algorithm.drafts=policy samples from a policy; name it: +needs.policy=sft")
        if self.drafts == "teacher" and has_policy:
            problems.append("needs.policy is read with algorithm.drafts=policy only; write that, or needs.policy=null")
        return problems


@register("algorithm", "self_instruct")
@dataclass(frozen=True)
class SelfInstruct(SynthesisSettings):
    """New prompts from examples (arXiv:2212.10560). One is kept when it is no near-duplicate of a seed, of another new
    one, or of a held-out prompt.

    Left out: examples among the new prompts, the classification of tasks, and replies, which `synthetic_sft` writes.

    Args:
        seeds: training prompts that examples are drawn from, and that new prompts must not repeat.
        examples: how many a request shows.
        per_request: new prompts that a request asks for. At most four times as many requests are made as would do if
            every prompt was kept.
    """

    makes_rows: ClassVar[str] = "prompts"
    smoke: ClassVar[dict[str, float]] = {"prompts": 50}
    uses: ClassVar[tuple[str, ...]] = ("model",)
    prompts: int = 500
    seeds: int = 64
    examples: Annotated[int, Ge(1)] = 6
    per_request: Annotated[int, Ge(1)] = 8

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.seeds >= self.examples, f"seeds={self.seeds} is fewer than examples={self.examples}"),
        )

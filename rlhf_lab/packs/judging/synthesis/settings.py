"""Settings of the stages that generate training data. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import ConfigError, Rule
from rlhf_lab.core.ranges import BySize, Ge, Gt, Le
from rlhf_lab.packs.judging.synthesis.constitution import constitution_path, content_digest, load_constitution
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation

MAX_OVERLAP = 0.7
"""Maximum overlap of texts that are not duplicates, as in arXiv:2212.10560."""


@dataclass(frozen=True)
class SynthesisSettings(StageSettings):
    """Settings common to the stages that generate data. The model of `judge=…` judges or writes.

    Args:
        prompts: number of prompts to process; for self_instruct, number of new prompts to generate. They are the
            distinct prompts of the training data, or those of `needs.prompts`, in random order. After the last one,
            they are used again.
        max_overlap: texts are near-duplicates if their overlap (ROUGE-L of the words, 0…1) is larger; 1 counts only
            texts with the same words as duplicates. null is 0.7, or 1 for data generated from an embedded world, whose
            prompts come from a few templates.
        max_words: maximum number of words of a response or prompt; longer ones are rejected.
        max_tokens: maximum number of tokens of an answer of the judge.
    """

    requires: ClassVar[Requirements] = (Capability.SINGLE_TURN,)
    inputs = Inputs(sections=("model", "rollout"))
    outputs = Outputs(model=False)
    reward_use = RewardUse(asks_judge=True)
    resources = Resources(distributed=False)
    evidence = Evidence(compares_policies=False, answer="synthetic_corpus")
    by_size = BySize(smoke={"prompts": 200}, smoke_real={"prompts": 16})
    prompts: Annotated[int, Ge(1)] = 4000
    max_overlap: Annotated[float, Gt(0), Le(1)] | None = None
    max_words: Annotated[int, Ge(1)] = 400
    max_tokens: Annotated[int, Ge(1)] = 1024

    def completed(self, config: Config) -> Self:
        if self.max_overlap is not None:
            return self
        # prompts from templates overlap by construction, so only equal ones are duplicates there
        return replace(self, max_overlap=1.0 if config.data.is_generated else MAX_OVERLAP)

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return []


@dataclass(frozen=True)
class UnderConstitution(SynthesisSettings):
    """A stage whose judge follows a constitution.

    Args:
        constitution: YAML file with principles (docs/judging/synthesis.md); empty is the shipped one of the stage. Its
            content is part of the stage's key.
    """

    shipped: ClassVar[str] = ""
    inputs = replace(SynthesisSettings.inputs, rows={"prompts": "prompts"})
    constitution: str = ""

    @property
    def constitution_path(self) -> Path:
        return constitution_path(self.constitution, self.shipped)

    def contents(self) -> dict[str, str]:
        return {"constitution": content_digest(self.constitution_path)}

    def contradictions(self, config: Config) -> list[str]:
        try:
            # report an invalid constitution before the run starts
            load_constitution(self.constitution_path)
        except ConfigError as error:
            return [*super().contradictions(config), *error.problems]
        return super().contradictions(config)


@register("algorithm", "cai_preferences")
@dataclass(frozen=True)
class CAIPreferences(UnderConstitution):
    """Preference pairs labelled by a model under a constitution (arXiv:2212.08073, section 4; arXiv:2309.00267).

    The judge compares two responses of `needs.policy` to each prompt in both orders. It names a winner, a reason and
    the principle that decided. The responses become a pair if both orders have the same winner.
    """

    shipped: ClassVar[str] = "preferences"
    inputs = replace(UnderConstitution.inputs, needs=("policy",), optional=("prompts",))
    outputs = replace(UnderConstitution.outputs, rows="pairs")

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy (samples)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, 2)]


@register("algorithm", "synthetic_sft")
@dataclass(frozen=True)
class SyntheticSFT(UnderConstitution):
    """Demonstrations by draft, critique and revision under a constitution (arXiv:2212.08073, section 3).

    A draft that violates no principle is a demonstration as it is; otherwise the revision is one.

    Args:
        drafts: author of the drafts. `teacher` is the model of `judge=…`, with one draft per prompt if
            judge.temperature=0; `policy` samples them from `needs.policy`.
    """

    shipped: ClassVar[str] = "sft"
    inputs = replace(UnderConstitution.inputs, optional=("policy", "prompts"))
    outputs = replace(UnderConstitution.outputs, rows="demonstrations")
    drafts: Literal["teacher", "policy"] = "teacher"

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        if self.drafts == "policy":
            return [ModelCopies("policy (drafts)")]
        return []

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, 1)] if self.drafts == "policy" else []

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        has_policy = bool(config.needs.get("policy"))
        if self.drafts == "policy" and not has_policy:
            problems.append("algorithm.drafts=policy samples from a policy; name it: +needs.policy=sft")
        if self.drafts == "teacher" and has_policy:
            problems.append("needs.policy is used only with algorithm.drafts=policy; set that, or needs.policy=null")
        return problems


@register("algorithm", "self_instruct")
@dataclass(frozen=True)
class SelfInstruct(SynthesisSettings):
    """New prompts written from examples (arXiv:2212.10560).

    A prompt is accepted if it is no near-duplicate of a seed, of another new prompt or of a held-out prompt.

    Differences from the paper: new prompts are not used as examples, tasks are not classified, and responses are
    written by `synthetic_sft` instead.

    Args:
        seeds: number of training prompts from which examples are selected, and which new prompts must not repeat.
        examples: number of examples in a request.
        per_request: number of new prompts per request. There are at most four times as many requests as would suffice
            if every prompt were accepted.
    """

    inputs = replace(SynthesisSettings.inputs, sections=("model",))
    outputs = replace(SynthesisSettings.outputs, rows="prompts")
    by_size = replace(SynthesisSettings.by_size, smoke={"prompts": 50})
    prompts: int = 500
    seeds: int = 64
    examples: Annotated[int, Ge(1)] = 6
    per_request: Annotated[int, Ge(1)] = 8

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (self.seeds >= self.examples, f"seeds={self.seeds} is fewer than examples={self.examples}"),
        )

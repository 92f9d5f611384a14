"""Settings shared by stages. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from rlhf_lab.config.registry import kind_of
from rlhf_lab.config.section import Section
from rlhf_lab.core.capabilities import Capability, Requirements, reads
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Ge, Gt, Le, Lt
from rlhf_lab.data.generated import UNFINISHED
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.core.types import Pair
    from rlhf_lab.training.run_settings import Evaluation

# Merged into `at_small_scale` of each algorithm, which adds its own learning rates.
SMALL = {"optimizer": "muon", "max_length": 128}
"""Values of every algorithm for models of 0.1–1M parameters that are trained from scratch."""
SMALL_REWARD_MODEL = {**SMALL, "lr": 1e-2, "muon_lr": 5e-3, "batch_size": 32}
"""The same for reward models."""


def unjudged_steps(labels: str, config: Config, instead: str) -> list[str]:
    """Return a problem if step labels are `annotated`, but the data source cannot judge steps; empty if it can.

    Args:
        labels: value of `algorithm.labels`.
        instead: values of `algorithm.labels` that need no such data.
    """
    if labels != "annotated" or Capability.STEPS in config.data.capabilities:
        return []
    data = kind_of("data", config.data)
    return [
        f"algorithm.labels=annotated needs a world that judges steps, and data={data} does not; "
        f"use algorithm.labels={instead}"
    ]


def only_after_rounds(settings: TrainingSettings) -> Rule:
    """Return (condition, message): `eval_early` must be off if the policy is evaluated after every round anyway."""
    return (
        not settings.eval_early,
        "eval_early=true has no effect: the policy is evaluated after every round; leave it out",
    )


SOUP = "soup"
"""Entry of `needs` for a second policy. The reference is then the mean of its weights and those of `needs.policy`."""


@dataclass(frozen=True)
class StageSettings(Section):
    """Settings interface of all algorithms, whether they train or not.

    Everything that other code needs to know about an algorithm is an attribute or a method here, so that no other code
    tests the name of an algorithm. An algorithm states only what differs from these defaults.

    Class attributes:
        requires: capabilities that the data must provide; `requirements` adds those that depend on the settings.
        inputs: sections of the config and roles of other stages that it reads.
        outputs: model or corpus that it leaves.
        reward_use: how it uses rewards and judges.
        resources: processes, memory and sandbox that it needs.
        evidence: what its numbers mean, and how they answer a question.
        by_size: values of its settings for other sizes of a model or of a run.
    """

    requires: ClassVar[Requirements] = ()
    inputs: ClassVar[Inputs] = Inputs()
    outputs: ClassVar[Outputs] = Outputs()
    reward_use: ClassVar[RewardUse] = RewardUse()
    resources: ClassVar[Resources] = Resources()
    evidence: ClassVar[Evidence] = Evidence()

    @classmethod
    def adapted(cls, values: Mapping[str, Any], unset: Collection[str], sharding: str) -> dict[str, Any]:
        """Return values for unset settings whose default does not fit other settings of the run.

        Args:
            values: every setting as JSON-like values, including defaults; not checked yet.
            unset: names in `tuned_by_model` that neither the recipe nor the command line sets.
            sharding: kind of the `sharding` group.
        """
        return {}

    def completed(self, config: Config) -> Self:
        """Return these settings, with unset values that follow from other sections of the config filled in."""
        return self

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("algorithm", self)]

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        """Return entry of `needs` → (entry whose vocabulary it must share, remedy if its vocabulary differs)."""
        return {}

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        """Return the models in memory at the same time, without those of the reward graph.

        Args:
            adapter: True if an adapter is trained whose base serves as the reference.
        """
        # Memory plans read this list; copies that are missing here are missing in the plan.
        return [ModelCopies("policy", trained=self.outputs.model)]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        """Return (prompts, responses per prompt) of everything that the stage samples.

        Args:
            evaluation: the `evaluation` section.
            batch_rows: batch size of the sampler, for what is sampled in batches of the maximum size.
        """
        return [(evaluation.prompts, evaluation.samples_per_prompt)] if "evaluation" in self.inputs.sections else []

    @property
    def asks_judge(self) -> bool:
        """True if the stage itself calls `judge` with these settings; terms of its reward may call it as well."""
        return self.reward_use.asks_judge

    @property
    def trl_trainer(self) -> str:
        """Equivalent trainer of TRL, a key of `algorithms.trl.tables.TRAINERS`; empty if there is none."""
        return ""

    @property
    def trl_refusal(self) -> str:
        """Reason why TRL has no such trainer, and the alternative; empty if no details are known."""
        return ""

    @property
    def requirements(self) -> Requirements:
        """Capabilities that the data must provide with these settings."""
        return self.requires

    @property
    def trains_on(self) -> Literal["", "prompts", "demonstrations", "pairs"]:
        """Part of a row that the algorithm trains on. Synthetic corpora must have it; if empty, none can be used."""
        if not self.outputs.model:
            return ""
        # Pairs also contain demonstrations (the chosen responses), so they are tested first.
        if reads(self.requirements, Capability.PAIRS):
            return "pairs"
        if reads(self.requirements, Capability.DEMONSTRATIONS):
            return "demonstrations"
        return "prompts" if self.reward_use.trains_policy else ""

    def uses_row(self, pair: Pair) -> bool:
        """Return True if the algorithm trains on this row; other rows are excluded from row counts."""
        # as a complete response, a solution that stops after a step would teach to stop there
        return not pair.meta.get(UNFINISHED)

    def contents(self) -> dict[str, str]:
        """Return setting → digest of the file that it names; part of the stage's key."""
        return {}

    @property
    def rows_per_unit(self) -> int:
        """Rows of a forward pass per unit of `batch_size`."""
        return 2 if reads(self.requirements, Capability.PAIRS) else 1


@dataclass(frozen=True)
class TrainingSettings(StageSettings):
    """Settings of an algorithm that the training loop reads.

    The defaults are common values for a model of GPT-2's size. Learning rates depend on the model's size, so a model
    may define other values (`model.tuned.<algorithm>`), which apply to settings that are not set.

    Args:
        optimizer: `adamw`, `muon` for hidden matrices with AdamW for the rest (arXiv:2502.16982), or `adamw_8bit`
            (needs `rlhf_lab[quantized]`), whose state takes one byte per element (arXiv:2110.02861).
        lr: peak learning rate of AdamW.
        muon_lr: peak learning rate of Muon; required by `muon`, ignored by `adamw`.
        weight_decay: decoupled weight decay, on matrices only.
        adam_betas, adam_eps: decay rates and epsilon of AdamW.
        epochs: passes over the data; may be fractional.
        batch_size: rows or pairs per optimiser step.
        micro_batch_tokens: padded tokens per forward pass; 0 is the full batch at once. It changes memory and speed,
            not the gradient.
        warmup_fraction: fraction of steps with linearly rising learning rate.
        final_lr_fraction: fraction of the peak at which the cosine decay ends.
        max_grad_norm: maximum gradient norm; larger gradients are clipped.
        max_length: maximum tokens per row, prompt and response; longer rows are truncated and counted.
        length_bucket_batches: rows are shuffled, then sorted by length within windows of this many batches, so that
            rows of a batch have similar length; 1 turns bucketing off.
        log_every_steps: optimiser steps between two rows of metrics.jsonl.
        eval_every_steps: optimiser steps between two evaluations during training; 0 evaluates only at the end.
        eval_early: True to also evaluate after 1, 2, 4, 8, … steps below `eval_every_steps`. A policy moves fastest at
            the start, so curves against KL have more points there. Algorithms in rounds evaluate after every round.
    """

    keyed_if_set: ClassVar[tuple[str, ...]] = ("eval_early",)
    by_size = BySize(
        tuned_by_model=("optimizer", "lr", "muon_lr", "epochs", "batch_size", "max_length"),
        smoke={"epochs": 1.0},
        smoke_real={"batch_size": 4, "max_length": 128},
    )
    # Optimizer.
    optimizer: Literal["adamw", "muon", "adamw_8bit"] = "adamw"
    lr: Annotated[float, Gt(0)] = 1e-5
    muon_lr: Annotated[float, Gt(0)] | None = None
    weight_decay: Annotated[float, Ge(0)] = 0.0
    adam_betas: tuple[Annotated[float, Ge(0), Lt(1)], ...] = (0.9, 0.95)
    adam_eps: Annotated[float, Gt(0)] = 1e-8
    # Batches and schedule.
    epochs: Annotated[float, Gt(0)] = 1.0
    batch_size: Annotated[int, Ge(1)] = 16
    micro_batch_tokens: Annotated[int, Ge(0, hint="0 is the whole batch")] = 0
    warmup_fraction: Annotated[float, Ge(0), Lt(1)] = 0.05
    final_lr_fraction: Annotated[float, Ge(0), Le(1)] = 0.02
    max_grad_norm: Annotated[float, Gt(0, hint="use 1e9 for no clipping")] = 1.0
    max_length: Annotated[int, Ge(8)] = 512
    length_bucket_batches: Annotated[int, Ge(1, hint="1 turns it off")] = 16
    # Logs and evaluations.
    log_every_steps: Annotated[int, Ge(1)] = 10
    eval_every_steps: Annotated[int, Ge(0, hint="0 evaluates at the end only")] = 0
    eval_early: bool = False

    @classmethod
    def adapted(cls, values: Mapping[str, Any], unset: Collection[str], sharding: str) -> dict[str, Any]:
        adapted = super().adapted(values, unset, sharding)
        if sharding == "zero" and "optimizer" in unset and values.get("optimizer") == "muon":
            adapted["optimizer"] = "adamw"  # Muon needs full matrices; DeepSpeed passes pieces of them
        return adapted

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.optimizer != "muon" or self.muon_lr is not None,
                "optimizer=muon needs muon_lr; try 0.02, or use optimizer=adamw",
            ),
            (
                bool(self.eval_every_steps) or not self.eval_early,
                "eval_early=true adds evaluations to those of eval_every_steps; set algorithm.eval_every_steps too",
            ),
            (len(self.adam_betas) == 2, f"adam_betas={self.adam_betas} must have two numbers, e.g. [0.9,0.95]"),
        )


@dataclass(frozen=True)
class PolicySettings(TrainingSettings):
    """Settings of an algorithm that trains a policy beside a frozen reference, the start policy.

    With `needs.soup` the reference is the mean of the weights of two policies.
    """

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        remedy = "their weights are averaged; fine-tune both policies from the same model"
        return {SOUP: ("policy", remedy)} if config.needs.get(SOUP) else {}

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        reference = [] if adapter else [ModelCopies("reference", reference=True)]
        return [ModelCopies("policy", trained=True), *reference]

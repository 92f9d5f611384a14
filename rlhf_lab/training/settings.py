"""Settings shared by stages. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from rlhf_lab.config.registry import kind_of
from rlhf_lab.config.section import Section
from rlhf_lab.core.capabilities import Capability, Requirements, reads
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, Le, Lt
from rlhf_lab.data.generated import UNFINISHED

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.core.types import Pair
    from rlhf_lab.training.run_settings import Evaluation

# Merged into `at_small_scale` of each algorithm, which adds its own learning rates.
SMALL = {"optimizer": "muon", "max_length": 128}
"""Values of every algorithm for models of 0.1–1M parameters that are trained from scratch."""


@dataclass(frozen=True)
class ClusterUnit:
    """The unit by which intervals are clustered, because rows that share it are not independent.

    Attributes:
        name: name as in "clustered by prompt".
        noun: singular noun as in "12 prompts".
        column: column of evaluation.jsonl that identifies the unit.
    """

    name: str
    noun: str
    column: str

    @property
    def plural(self) -> str:
        return f"{self.noun}s"


@dataclass(frozen=True)
class ModelCopies:
    """A model that a stage keeps in memory while it works.

    Attributes:
        name: name of the model in memory plans.
        outputs: outputs of its scalar head; 0 is a language model with its own head.
        role: role of `needs` that determines its architecture; empty is the stage's own policy.
        trained: True if it has gradients and an optimizer.
        reference: True if `sharding.reference` determines its location.
        together: models with the same number are trained in one backward pass.
        starts_from: role from which its adapter starts, if it can share the base of the policy's adapter.
    """

    name: str
    outputs: int = 0
    role: str = ""
    trained: bool = False
    reference: bool = False
    together: int = 0
    starts_from: Literal["", "policy", "reward"] = ""


def unjudged_steps(labels: str, config: Config, instead: str) -> list[str]:
    """Return the problem of labels of steps that are `annotated` by data that judge no steps; empty if there is none.

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


SOUP = "soup"
"""Role of a second policy. The reference is then the mean of its weights and those of `needs.policy`."""


def soup_vocabulary(config: Config) -> dict[str, tuple[str, str]]:
    """Return `StageSettings.one_vocabulary` of a stage whose reference may be a soup."""
    if not config.needs.get(SOUP):
        return {}
    return {SOUP: ("policy", "their weights are averaged; fine-tune both policies from the same model")}


def policy_and_reference(*, adapter: bool) -> list[ModelCopies]:
    """Return the trained policy and a frozen reference, unless the base of its adapter serves as reference."""
    reference = [] if adapter else [ModelCopies("reference", reference=True)]
    return [ModelCopies("policy", trained=True), *reference]


@dataclass(frozen=True)
class StageSettings(Section):
    """Settings interface of all algorithms, whether they train or not.

    Everything that other code needs to know about an algorithm is an attribute here, so that no other code tests the
    name of an algorithm.

    Class attributes:
        uses: sections of the config that affect the stage's result, and therefore its key.
        requires: capabilities that the data must provide; `requirements` adds those that depend on the settings.
        required_needs, optional_needs: roles of the models and directories it starts from.
        late_needs: those of them that only evaluations read, so that training may start before they are complete. The
            algorithm calls `Run.await_need` before it reads one.
        any_needs: True if further roles are allowed, each naming a policy.
        digested_paths: settings with a path whose file is digested by `contents`.
        trains_on_reward: True if the policy is trained on the reward.
        measures_gold: True if it measures the quality of responses, for which `needs.gold` may name a reward model.
        reads_reward: True if it scores with the reward graph, so that every role of its terms is required.
        data_roles: roles that read what a stage wrote to its directory instead of its model.
        reads_rows: role that reads a corpus created by another stage → kind of its rows (`data.made.KINDS`).
        corpus_suffices: True if it needs no pairs of the data when it trains on those of a synthetic corpus.
        makes_rows: kind of the rows of the corpus that it creates; empty if it creates none.
        reseeded_roles: roles whose recipe is built with another seed: 1000·k above the run's for the k-th of them;
            `gold` is always the last of them.
        is_distributed: True if its passes are split between processes; otherwise one process builds it.
        makes_model: True if it trains and saves a model; otherwise it has no steps and only evaluates.
        adds_head: True if it adds a scalar head to `needs.policy`, which may then already have one.
        shares_prompts: True if its training passes compute a prompt once for all rows with that prompt.
        compares_policies: True if its evaluation measures the KL of policies, provided it uses `evaluation`.
        calls_reward: True if models of the reward graph are loaded, provided it uses `reward`.
        asks_judge: True if it calls `judge` itself; terms of its reward may call it as well.
        tools_run_code: True if tools of its tasks run programs in the sandbox.
        loss_falls: True if its loss has one objective and one data set from the first step to the last, so that it has
            to decrease.
        chance_metric: metric that is ½ without knowledge; empty if there is none.
        clusters: unit by which the intervals of its estimates are clustered.
        answer: name, among the `answers` of packs (`core/packs.py`), of the rule that turns its result into an answer
            to a recipe's question.
        gain_curve: form of the reward gained against KL, see `statistics.overoptimization`: `rl` during training, `bon`
            over the n of best-of-n.
        one_path: True if the evaluated policies are successive points of one method: checkpoints of a training, or
            best-of-n with increasing n. Figures connect them by a curve; policies of different methods stay points.
        baseline_policy: name under which it evaluates a policy of another training, which is not on that path; empty
            if there is none.
        at_small_scale: setting → value that trains a 0.1–1M parameter model from scratch well, measured on the
            embedded worlds; the defaults are for larger models.
        tuned_by_model: settings whose value a model may set (`model.tuned`), because it depends on the model's size.
        smoke: setting → its maximum at `size=smoke`.
        smoke_real: the same for pretrained models, which are a hundred times larger and already know a language.
    """

    # Inputs: sections of the config, data, and upstream stages.
    uses: ClassVar[tuple[str, ...]] = ("model",)
    requires: ClassVar[Requirements] = ()
    required_needs: ClassVar[tuple[str, ...]] = ()
    optional_needs: ClassVar[tuple[str, ...]] = ()
    late_needs: ClassVar[tuple[str, ...]] = ()
    any_needs: ClassVar[bool] = False
    data_roles: ClassVar[tuple[str, ...]] = ()
    reads_rows: ClassVar[dict[str, str]] = {}
    corpus_suffices: ClassVar[bool] = False
    makes_rows: ClassVar[str] = ""
    reseeded_roles: ClassVar[tuple[str, ...]] = ()
    digested_paths: ClassVar[tuple[str, ...]] = ()
    # Rewards.
    trains_on_reward: ClassVar[bool] = False
    measures_gold: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = False
    # Execution.
    is_distributed: ClassVar[bool] = True
    makes_model: ClassVar[bool] = True
    adds_head: ClassVar[bool] = False
    shares_prompts: ClassVar[bool] = False
    compares_policies: ClassVar[bool] = True
    calls_reward: ClassVar[bool] = True
    asks_judge: ClassVar[bool] = False
    tools_run_code: ClassVar[bool] = False
    # Checks, reports and figures.
    loss_falls: ClassVar[bool] = False
    chance_metric: ClassVar[str] = ""
    clusters: ClassVar[ClusterUnit] = ClusterUnit("prompt", "prompt", "prompt_id")
    answer: ClassVar[str] = ""
    gain_curve: ClassVar[Literal["bon", "rl"]] = "rl"
    one_path: ClassVar[bool] = True
    baseline_policy: ClassVar[str] = ""
    # Values for other sizes.
    tuned_by_model: ClassVar[tuple[str, ...]] = ()
    at_small_scale: ClassVar[dict[str, Any]] = {}
    smoke: ClassVar[dict[str, float]] = {}
    smoke_real: ClassVar[dict[str, float]] = {}

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
        """Return role → (role whose vocabulary its model must have, remedy if it has another)."""
        return {}

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        """Return the models in memory at the same time, without those of the reward graph.

        Args:
            adapter: True if an adapter is trained whose base serves as the reference.
        """
        # Memory plans read this list; copies that are missing here are missing in the plan.
        return [ModelCopies("policy", trained=self.makes_model)]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        """Return (prompts, responses per prompt) of everything that the stage samples.

        Args:
            evaluation: the `evaluation` section.
            batch_rows: batch size of the sampler, for what is sampled in batches of the maximum size.
        """
        return [(evaluation.prompts, evaluation.samples_per_prompt)] if "evaluation" in self.uses else []

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
        """Part of a training row that it needs, which determines usable synthetic corpora; empty accepts none."""
        if not self.makes_model:
            return ""
        # Pairs also contain demonstrations (the chosen responses), so they are tested first.
        if reads(self.requirements, Capability.PAIRS):
            return "pairs"
        if reads(self.requirements, Capability.DEMONSTRATIONS):
            return "demonstrations"
        return "prompts" if self.trains_on_reward else ""

    def uses_row(self, pair: Pair) -> bool:
        """Return True if it trains on this row; other rows are excluded from row counts."""
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
    """

    tuned_by_model: ClassVar[tuple[str, ...]] = ("optimizer", "lr", "muon_lr", "epochs", "batch_size", "max_length")
    smoke: ClassVar[dict[str, float]] = {"epochs": 1.0}
    smoke_real: ClassVar[dict[str, float]] = {"batch_size": 4, "max_length": 128}
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
            (len(self.adam_betas) == 2, f"adam_betas={self.adam_betas} must have two numbers, e.g. [0.9,0.95]"),
        )

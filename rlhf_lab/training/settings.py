"""Settings that stages share. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from rlhf_lab.config.section import Section
from rlhf_lab.core.capabilities import Capability, Requirements, reads
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, Le, Lt

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.core.types import Pair
    from rlhf_lab.training.run_settings import Evaluation

SMALL = {"optimizer": "muon", "max_length": 128}
"""What every algorithm takes for models of 0.1–1M parameters that are trained from scratch."""


@dataclass(frozen=True)
class Held:
    """One model that a stage holds in memory while it works.

    Attributes:
        outputs: of its scalar head; 0 is a language model with its own head.
        role: whose shape it has: a role of `needs`; empty is the stage's own policy.
        trained: whether it has gradients and an optimiser.
        reference: whether `sharding.reference` says where it lies.
        together: trained in one backward pass with the models of the same number.
        starts_from: role of what an adapter of it is trained on, if it can share the base of the policy's adapter.
    """

    name: str
    outputs: int = 0
    role: str = ""
    trained: bool = False
    reference: bool = False
    together: int = 0
    starts_from: Literal["", "policy", "reward"] = ""


def policy_and_reference(*, adapter: bool) -> list[Held]:
    """The policy that is trained and, unless the base of its adapter serves as one, a frozen reference."""
    reference = [] if adapter else [Held("reference", reference=True)]
    return [Held("policy", trained=True), *reference]


@dataclass(frozen=True)
class StageSettings(Section):
    """What the lab asks of the settings of every algorithm, whether it trains or not.

    Whatever another part has to know of an algorithm is answered here: that part asks, and does not name algorithms.

    Class attributes:
        uses: sections of the config that decide the stage's result, and so its key.
        requires: capabilities that the data must provide; `requirements` adds those that depend on the settings.
        required_needs, optional_needs: roles of what it starts from.
        late_needs: those of them that only evaluations read, so that training may begin before they are complete; the
            algorithm calls `Run.await_need` before it reads one.
        any_needs: whether other roles are welcome, each naming a policy.
        digested_paths: settings with a path of which `contents` has the digest.
        measures_gold: whether it measures what replies are worth, so that `needs.gold` may name a reward model for it.
        reads_reward: whether it scores with the reward graph, so that every role of its terms must be there.
        data_roles: roles that want what a stage wrote into its directory, not the model it made.
        reads_rows: roles that want a corpus made by another stage, and the kind of its rows (`data.made.KINDS`).
        makes_rows: kind of the rows of the corpus that it makes; empty where it makes none.
        reseeded_roles: roles whose recipe is built with another seed: 1000·k above the run's for the k-th of them;
            `gold` is always the last of them.
        shares_work: whether its passes are divided between processes; if not, one process builds it.
        makes_model: whether it trains and saves a model; one that does not has no steps and only evaluates.
        adds_head: whether it puts a scalar head on `needs.policy`, which may then have one already.
        shares_prompts: whether its training passes compute a prompt once for the rows that share it.
        compares_policies: whether its evaluation measures the KL of policies, if it uses `evaluation` at all.
        calls_reward: whether models of the reward graph are loaded, if it uses `reward` at all.
        asks_judge: whether it asks `judge` itself; a term of its reward may ask as well.
        tools_run_code: whether tools of its tasks run programs in the sandbox.
        loss_falls: whether its loss is of one objective on one data set from the first step to the last, so that it
            has to fall.
        chance_metric: its number that is ½ without knowledge; empty where it has none.
        answer: how its result answers a recipe's question, a name among the `answers` of packs (`core/packs.py`).
        gain_curve: form of reward gained against KL, see `statistics.overoptimization`: `rl` along training, `bon` over
            the n of best-of-n.
        one_path: whether the evaluated policies are stations of one method, in order: checkpoints of a training, or the
            best of more and more samples. Figures then join them by a line; policies of different methods stay points.
        baseline_policy: name under which it evaluates a policy of another training, which is not on that path; empty
            where there is none.
        at_small_scale: setting → value that trains a 0.1–1M parameter model from scratch well, measured on the
            embedded worlds, where the default is for larger models.
        tuned_by_model: settings whose value a model may name (`model.tuned`), because it depends on the model's size.
        smoke, smoke_real: setting → its most at `size=smoke`; the second with models that are not made from scratch, a
            hundred times larger and no need to learn a language first.
    """

    uses: ClassVar[tuple[str, ...]] = ("model",)
    requires: ClassVar[Requirements] = ()
    required_needs: ClassVar[tuple[str, ...]] = ()
    optional_needs: ClassVar[tuple[str, ...]] = ()
    late_needs: ClassVar[tuple[str, ...]] = ()
    any_needs: ClassVar[bool] = False
    data_roles: ClassVar[tuple[str, ...]] = ()
    reads_rows: ClassVar[dict[str, str]] = {}
    makes_rows: ClassVar[str] = ""
    reseeded_roles: ClassVar[tuple[str, ...]] = ()
    digested_paths: ClassVar[tuple[str, ...]] = ()
    trains_on_reward: ClassVar[bool] = False
    measures_gold: ClassVar[bool] = False
    reads_reward: ClassVar[bool] = False
    shares_work: ClassVar[bool] = True
    makes_model: ClassVar[bool] = True
    adds_head: ClassVar[bool] = False
    shares_prompts: ClassVar[bool] = False
    compares_policies: ClassVar[bool] = True
    calls_reward: ClassVar[bool] = True
    asks_judge: ClassVar[bool] = False
    tools_run_code: ClassVar[bool] = False
    loss_falls: ClassVar[bool] = False
    chance_metric: ClassVar[str] = ""
    answer: ClassVar[str] = ""
    gain_curve: ClassVar[Literal["bon", "rl"]] = "rl"
    one_path: ClassVar[bool] = True
    baseline_policy: ClassVar[str] = ""
    tuned_by_model: ClassVar[tuple[str, ...]] = ()
    at_small_scale: ClassVar[dict[str, Any]] = {}
    smoke: ClassVar[dict[str, float]] = {}
    smoke_real: ClassVar[dict[str, float]] = {}

    def completed(self, config: Config) -> Self:
        """These settings with what follows from other sections of the config filled in, where it is not written."""
        return self

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("algorithm", self)]

    def one_vocabulary(self, config: Config) -> dict[str, tuple[str, str]]:
        """Role → (the role whose vocabulary its model must have, what to do where it has another)."""
        return {}

    def held(self, *, adapter: bool) -> list[Held]:
        """The models it holds at once, those of the reward graph apart.

        Args:
            adapter: whether an adapter is trained whose base serves as the reference.
        """
        return [Held("policy", trained=self.makes_model)]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        """(prompts, replies to each) of everything it samples.

        Args:
            evaluation: the section of that name.
            batch_rows: of the sampler, for what is drawn in as large batches as fit.
        """
        return [(evaluation.prompts, evaluation.samples_per_prompt)] if "evaluation" in self.uses else []

    @property
    def trl_trainer(self) -> str:
        """The trainer of TRL that does the same, a key of `algorithms.trl.tables.TRAINERS`; empty if there is none."""
        return ""

    @property
    def trl_refusal(self) -> str:
        """Why there is no such trainer and what to write instead, where more is known than that there is none."""
        return ""

    @property
    def requirements(self) -> Requirements:
        """Capabilities that the data must provide with these settings."""
        return self.requires

    @property
    def trains_on(self) -> Literal["", "prompts", "demonstrations", "pairs"]:
        """What of a training row it needs, and so which made corpora it can train on; empty takes none."""
        if not self.makes_model:
            return ""
        if reads(self.requirements, Capability.PAIRS):
            return "pairs"
        if reads(self.requirements, Capability.DEMONSTRATIONS):
            return "demonstrations"
        return "prompts" if self.trains_on_reward else ""

    def uses_row(self, pair: Pair) -> bool:
        """Whether it trains on a row: one that it leaves out does not count where rows are counted."""
        return True

    def contents(self) -> dict[str, str]:
        """Setting → a digest of the file that it names; part of the stage's key."""
        return {}

    @property
    def rows_per_unit(self) -> int:
        """Rows of a forward pass for each of `batch_size`."""
        return 2 if reads(self.requirements, Capability.PAIRS) else 1


@dataclass(frozen=True)
class TrainingSettings(StageSettings):
    """The part of an algorithm's settings that the training loop reads.

    The defaults are the field's for a model of GPT-2's size. A learning rate belongs to a model size, so a model may
    name others (`model.tuned.<algorithm>`): they stand where a setting is not written.

    Args:
        optimizer: `adamw`, `muon` for hidden matrices with AdamW for the rest (arXiv:2502.16982), or `adamw_8bit`
            (needs `rlhf_lab[quantized]`), whose moments take a byte each (arXiv:2110.02861).
        lr: peak learning rate of AdamW.
        muon_lr: peak learning rate of Muon; `muon` needs it, `adamw` does not read it.
        weight_decay: decoupled, on matrices only.
        adam_betas, adam_eps: AdamW's moments and epsilon.
        epochs: passes over the data; may be fractional.
        batch_size: rows or pairs per optimiser step.
        micro_batch_tokens: padded tokens per forward pass, 0 for the whole batch at once. Changes memory and speed,
            not the gradient.
        warmup_fraction: share of steps with linearly rising learning rate.
        final_lr_fraction: cosine decay ends at this share of the peak.
        max_grad_norm: gradient norm clip.
        max_length: tokens per row, prompt and reply; longer rows are cut and counted.
        length_bucket_batches: rows are shuffled, then sorted by length within windows of this many batches, so that
            rows of a batch have similar length; 1 turns bucketing off.
        log_every_steps, eval_every_steps: cadence of metrics; 0 evaluates only at the end.
    """

    tuned_by_model: ClassVar[tuple[str, ...]] = ("optimizer", "lr", "muon_lr", "epochs", "batch_size", "max_length")
    smoke: ClassVar[dict[str, float]] = {"epochs": 1.0}
    smoke_real: ClassVar[dict[str, float]] = {"batch_size": 4, "max_length": 128}
    optimizer: Literal["adamw", "muon", "adamw_8bit"] = "adamw"
    lr: Annotated[float, Gt(0)] = 1e-5
    muon_lr: Annotated[float, Gt(0)] | None = None
    weight_decay: Annotated[float, Ge(0)] = 0.0
    adam_betas: tuple[Annotated[float, Ge(0), Lt(1)], ...] = (0.9, 0.95)
    adam_eps: Annotated[float, Gt(0)] = 1e-8
    epochs: Annotated[float, Gt(0)] = 1.0
    batch_size: Annotated[int, Ge(1)] = 16
    micro_batch_tokens: Annotated[int, Ge(0, hint="0 is the whole batch")] = 0
    warmup_fraction: Annotated[float, Ge(0), Lt(1)] = 0.05
    final_lr_fraction: Annotated[float, Ge(0), Le(1)] = 0.02
    max_grad_norm: Annotated[float, Gt(0, hint="use 1e9 for no clipping")] = 1.0
    max_length: Annotated[int, Ge(8)] = 512
    length_bucket_batches: Annotated[int, Ge(1, hint="1 turns it off")] = 16
    log_every_steps: Annotated[int, Ge(1)] = 10
    eval_every_steps: Annotated[int, Ge(0, hint="0 evaluates at the end only")] = 0

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.optimizer != "muon" or self.muon_lr is not None,
                "optimizer=muon needs muon_lr; try 0.02, or use optimizer=adamw",
            ),
            (len(self.adam_betas) == 2, f"adam_betas={self.adam_betas} needs two numbers"),
        )

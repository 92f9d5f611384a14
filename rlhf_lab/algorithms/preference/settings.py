"""Settings of preference optimisation: one pass over a corpus, or rounds on the policy's own replies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.algorithms.pair_selection.settings import Selection, selection_rules
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, Le, Lt
from rlhf_lab.training.settings import SMALL, Held, TrainingSettings, policy_and_reference

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.training.run_settings import Evaluation

LOSS_SETTINGS: dict[str, dict[str, float]] = {
    "sigmoid": {"label_smoothing": 0.0},
    "robust": {"label_smoothing": 0.1},
    "ipo": {},
    "hinge": {},
    "apo_zero": {},
    "apo_down": {},
    "kto": {"desirable_weight": 1.0, "undesirable_weight": 1.0},
    "simpo": {"gamma_beta_ratio": 0.5},
    "orpo": {},
    "cpo": {"nll_weight": 1.0},
    "inpo": {"reference_share": 1 / 3},
}
"""Loss → the settings that it reads besides `beta`, with defaults. A setting that a loss does not read is an error."""


TRL_LOSSES = ("sigmoid", "ipo", "hinge", "robust", "apo_zero", "apo_down")
"""Losses that TRL's DPOTrainer knows, under the same names."""


@dataclass(frozen=True)
class PreferenceSettings(TrainingSettings):
    """Preference optimisation with a loss on pairs (DPO, arXiv:2305.18290, and its relatives).

    `beta` is not the same quantity in all of them, and the default, or the model's own value, is DPO's: a preset
    (`algorithm=simpo`) sets the loss together with a fitting beta.

    Args:
        beta: strength of the pull towards the reference, in 1/nats. Published values: sigmoid, robust, hinge, apo_zero,
            apo_down, kto and cpo 0.1; ipo 0.1 to 1, on log-probabilities per token; simpo 2 to 2.5, per token; orpo
            0.1, the weight of its odds-ratio term; inpo 0.0025, its τ.
        logps: which log-probabilities the loss compares: of whole replies (`sum`), per token (`mean`), or, for a
            codec's model, of each codebook by itself (`per_codebook`). The loss of a pair is then the mean over
            codebooks, so that none is passed over because another one tells the replies apart. A loss whose own
            definition is per token takes `sum` as `mean`.
        loss: `sigmoid` (DPO), `robust`, `ipo`, `hinge`, `apo_zero`, `apo_down`, `kto` (unpaired labels: both replies of
            a pair are examples of their own), `simpo`, `orpo`, `cpo` (these three without a reference), `inpo` (rounds
            only).
        label_smoothing: probability that a label is flipped. sigmoid: conservative DPO, default 0; robust: default 0.1.
        gamma_beta_ratio: simpo's target margin per token over beta, default 0.5.
        nll_weight: cpo's weight of the chosen reply's NLL per token, default 1.
        desirable_weight, undesirable_weight: kto's λ_D and λ_U, default 1.
    """

    requires: ClassVar[Requirements] = (Capability.PAIRS,)
    keyed_if_set: ClassVar[tuple[str, ...]] = ("logps",)
    shares_prompts: ClassVar[bool] = True
    chance_metric: ClassVar[str] = "implicit_accuracy"
    tuned_by_model: ClassVar[tuple[str, ...]] = (*TrainingSettings.tuned_by_model, "beta")
    lr: float = 5e-7
    beta: Annotated[float, Gt(0, hint="try 0.1")] = 0.1
    loss: Literal[
        "sigmoid", "robust", "ipo", "hinge", "apo_zero", "apo_down", "kto", "simpo", "orpo", "cpo", "inpo"
    ] = "sigmoid"
    logps: Literal["sum", "mean", "per_codebook"] = "sum"
    label_smoothing: Annotated[float, Ge(0), Lt(0.5)] | None = None
    gamma_beta_ratio: float | None = None
    nll_weight: Annotated[float, Ge(0)] | None = None
    desirable_weight: Annotated[float, Ge(0)] | None = None
    undesirable_weight: Annotated[float, Ge(0)] | None = None

    def held(self, *, adapter: bool) -> list[Held]:
        return policy_and_reference(adapter=adapter)

    def coefficients(self) -> dict[str, float]:
        """The numbers the loss reads, by name: `beta` and its own settings, defaults filled in."""
        coefficients = {"beta": self.beta}
        for name, default in LOSS_SETTINGS[self.loss].items():
            value = getattr(self, name)
            coefficients[name] = default if value is None else value
        return coefficients

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (
                self.loss != "kto" or self.batch_size >= 2,
                f"batch_size={self.batch_size} leaves loss=kto no other prompt to estimate its KL with; use 2 or more",
            ),
            (
                self.logps == "sum" or self.loss not in ("kto", "cpo"),
                f"logps={self.logps}, loss={self.loss}: its estimate of KL, or its NLL, is of whole replies; use sum",
            ),
            *self._unread_settings(),
        )

    def contradictions(self, config: Config) -> list[str]:
        family = getattr(config.model, "family", None)
        if self.logps == "per_codebook" and family in ("llama", "gpt2"):
            return [f"algorithm.logps=per_codebook: a model of family {family} has no codebooks; use sum"]
        return super().contradictions(config)

    def _unread_settings(self) -> tuple[Rule, ...]:
        """One rule for each loss-specific setting that has a value; broken where the chosen loss does not read it."""
        names = dict.fromkeys(name for loss_settings in LOSS_SETTINGS.values() for name in loss_settings)
        rules = []
        for name in names:
            value = getattr(self, name, None)  # one-pass DPO has no `reference_share`
            if value is None:
                continue
            readers = ", ".join(f"loss={loss}" for loss, names_read in LOSS_SETTINGS.items() if name in names_read)
            message = f"{name}={value} is not read by loss={self.loss}; it belongs to {readers}"
            rules.append((name in LOSS_SETTINGS[self.loss], message))
        return tuple(rules)


@register("algorithm", "dpo")
@dataclass(frozen=True)
class DPO(PreferenceSettings):
    """One pass over the corpus pairs. The policy starts from `needs.policy`, which is also the reference.

    Args:
        max_pairs: most corpus pairs, drawn at random; a smaller draw lies within a larger one. 0 is all.
        selection: which of them are trained on; margins come from `needs.margins`.
    """

    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation", "reward")
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward", "margins")
    late_needs: ClassVar[tuple[str, ...]] = ("reward", "gold")
    measures_gold: ClassVar[bool] = True
    data_roles: ClassVar[tuple[str, ...]] = ("margins",)
    loss_falls: ClassVar[bool] = True
    answer: ClassVar[str] = "against_reference"
    at_small_scale: ClassVar[dict[str, Any]] = {
        **SMALL,
        "optimizer": "adamw",
        "lr": 1e-4,
        "epochs": 0.5,
        "batch_size": 32,
        "beta": 0.3,
    }
    max_pairs: Annotated[int, Ge(0, hint="0 is all")] = 0
    selection: Selection = field(default_factory=Selection)

    @property
    def trl_trainer(self) -> str:
        if self.loss == "kto":
            return "kto"
        return "dpo" if self.loss in TRL_LOSSES else ""

    @property
    def trl_refusal(self) -> str:
        return (
            f"algorithm.loss={self.loss}: TRL's stable trainers lack it (some are in trl.experimental, which may "
            f"vanish in any release); use engine=native, or one of {', '.join((*TRL_LOSSES, 'kto'))}"
        )

    @property
    def requirements(self) -> Requirements:
        return (Capability.PAIRS | Capability.UNPAIRED,) if self.loss == "kto" else self.requires

    def rules(self) -> tuple[Rule, ...]:
        rounds_only = "loss=inpo needs the policy of a previous round; use algorithm=dpo_iterative"
        return (
            *super().rules(),
            (self.loss != "inpo", rounds_only),
            *selection_rules(self.selection, beta=self.loss in ("sigmoid", "robust")),
        )


@register("algorithm", "dpo_iterative")
@dataclass(frozen=True)
class IterativeDPO(PreferenceSettings):
    """Iterative (online) DPO: each round samples from the current policy, ranks by reward, pairs, trains, evaluates.

    Every round takes the same number of optimiser steps whatever the buffer holds, so that buffers differ in which
    pairs are trained on and not in compute.

    The learning rate stays at its peak after warm-up, so that late rounds can still learn.

    Args:
        rounds: rounds of roll out → rank → pair → train → evaluate.
        prompts_per_round: training prompts rolled out each round.
        samples_per_prompt: replies sampled per prompt (G); the best and the worst by reward become the pair.
        buffer: pairs a round trains on: `current` (this round's), `rolling` (the last `window` rounds') or `full`.
        window: rounds kept by `buffer=rolling`.
        corpus_fraction: share of a round's pairs that come from the corpus: the hybrid setting of arXiv:2312.11456,
            where labelled pairs hold the learned reward's mistakes in check. 0 trains on own replies alone.
        updates_per_pair: optimiser steps per round = updates_per_pair × (prompts_per_round + corpus pairs) /
            batch_size.
        reference_share: inpo's τ/η in (0, 1]: how much of its anchor is the reference, the rest being the policy as the
            round began; default 1/3.
        consistency: `cream` weighs the labels of own pairs by how far the reward ranks a prompt's replies as the policy
            of the round before does (arXiv:2410.12735); `none` takes them as they are.
    """

    uses: ClassVar[tuple[str, ...]] = ("model", "rollout", "evaluation", "reward")
    required_needs: ClassVar[tuple[str, ...]] = ("policy",)
    optional_needs: ClassVar[tuple[str, ...]] = ("reward", "baseline")
    reads_reward: ClassVar[bool] = True
    late_needs: ClassVar[tuple[str, ...]] = ("baseline",)
    baseline_policy: ClassVar[str] = "one-pass DPO"
    measures_gold: ClassVar[bool] = True
    requires: ClassVar[Requirements] = (Capability.PAIRS, Capability.SINGLE_TURN)
    answer: ClassVar[str] = "against_one_pass"
    at_small_scale: ClassVar[dict[str, Any]] = {
        **SMALL,
        "optimizer": "adamw",
        "lr": 5e-5,
        "batch_size": 32,
        "beta": 0.3,
    }
    smoke: ClassVar[dict[str, float]] = {"rounds": 2, "prompts_per_round": 96}
    smoke_real: ClassVar[dict[str, float]] = {**TrainingSettings.smoke_real, "prompts_per_round": 2}
    final_lr_fraction: float = 1.0
    rounds: Annotated[int, Ge(1)] = 3
    prompts_per_round: Annotated[int, Ge(1)] = 700
    samples_per_prompt: Annotated[int, Ge(2, hint="one sample leaves nothing to compare")] = 4
    buffer: Literal["current", "rolling", "full"] = "current"
    window: Annotated[int, Ge(1)] = 2
    corpus_fraction: Annotated[float, Ge(0), Lt(1)] = 0.75
    updates_per_pair: Annotated[float, Gt(0)] = 1.0
    reference_share: Annotated[float, Gt(0), Le(1)] | None = None
    consistency: Literal["none", "cream"] = "none"

    @property
    def trl_refusal(self) -> str:
        return "algorithm=dpo_iterative: TRL has no trainer in rounds; use engine=native, or algorithm=dpo"

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (self.prompts_per_round, self.samples_per_prompt)]

    def contradictions(self, config: Config) -> list[str]:
        if not config.reward.confidence_weight:
            return []
        return ["reward.confidence_weight needs a running mean of rewards; use algorithm=ppo or algorithm=grpo"]

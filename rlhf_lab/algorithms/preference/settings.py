"""Settings of preference optimisation: one pass over a corpus, or rounds on the policy's own responses."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from rlhf_lab.algorithms.pair_selection.settings import PairSettings
from rlhf_lab.config.registry import register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Ge, Gt, Le, Lt
from rlhf_lab.training.settings import (
    SMALL,
    SOUP,
    PolicySettings,
    StageSettings,
    TrainingSettings,
    only_after_rounds,
    unjudged_steps,
)
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config
    from rlhf_lab.core.types import Pair
    from rlhf_lab.training.run_settings import Evaluation

# robust needs ε above 0, because it equals DPO at 0.
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
"""Loss → the settings that it reads besides `beta`, with defaults. Other loss settings are refused."""

LOSS_BETA = {"ipo": 0.5, "kto": 0.1, "simpo": 2.0, "orpo": 0.1, "inpo": 0.0025}
"""Loss → its default `beta`, if its β is not comparable with that of DPO or its paper has a different value.

IPO and SimPO compare log-probabilities per token, so their papers' values are larger: 2 to 2.5 for SimPO, and τ from
0.1 to 1 for the bandits of the IPO paper. ORPO's `beta` is the weight λ of the odds-ratio term. INPO's `beta` is the τ
of its paper, and was not tuned on the embedded data sets. All other losses use DPO's value for the model.
"""

TRL_LOSSES = ("sigmoid", "ipo", "hinge", "robust", "apo_zero", "apo_down")
"""Losses that TRL's DPOTrainer has under the same names."""


@dataclass(frozen=True)
class PreferenceSettings(PolicySettings):
    """Preference optimisation with a loss on pairs (DPO, arXiv:2305.18290, and related losses).

    The meaning of `beta` depends on the loss. If `beta` is not set, `ipo`, `kto`, `simpo`, `orpo` and `inpo` use
    their own defaults (0.5, 0.1, 2, 0.1 and 0.0025). The others use DPO's, which depends on the model's size
    (`model.tuned.dpo`).

    Args:
        beta: strength of the pull towards the reference, in 1/nats. Published values: sigmoid, robust, hinge, apo_zero,
            apo_down, kto and cpo 0.1; ipo 0.1 to 1, on log-probabilities per token; simpo 2 to 2.5, per token; orpo
            0.1, the weight of its odds-ratio term; inpo 0.0025, its τ.
        logps: log-probabilities that the loss compares: of full responses (`sum`), per token (`mean`), or, for a codec
            language model, separately for each codebook (`per_codebook`). The loss of a pair is then the mean over
            codebooks, so that every codebook is trained even if another one already separates the responses. A loss
            that is defined per token treats `sum` as `mean`.
        loss: `sigmoid` (DPO), `robust`, `ipo`, `hinge`, `apo_zero`, `apo_down`, `kto` (unpaired labels: both responses
            of a pair are separate examples), `simpo`, `orpo`, `cpo` (these three have no reference), `inpo` (rounds
            only).
        label_smoothing: probability that a label is flipped. sigmoid: conservative DPO, default 0; robust: default 0.1.
        gamma_beta_ratio: target margin of simpo per token, divided by beta; default 0.5.
        nll_weight: weight of the chosen response's NLL per token in cpo; default 1.
        desirable_weight, undesirable_weight: λ_D and λ_U of kto; default 1.
    """

    requires: ClassVar[Requirements] = (Capability.PAIRS,)
    keyed_if_set: ClassVar[tuple[str, ...]] = ("logps",)
    # both responses of a pair have the same prompt
    resources = Resources(shares_prompts=True)
    evidence = Evidence(chance_metric="implicit_accuracy")
    by_size = replace(TrainingSettings.by_size, tuned_by_model=(*TrainingSettings.by_size.tuned_by_model, "beta"))
    lr: float = 5e-7
    beta: Annotated[float, Gt(0, hint="try 0.1")] = 0.1
    loss: Literal[
        "sigmoid", "robust", "ipo", "hinge", "apo_zero", "apo_down", "kto", "simpo", "orpo", "cpo", "inpo"
    ] = "sigmoid"
    logps: Literal["sum", "mean", "per_codebook"] = "sum"
    # Settings of single losses. None is "not set": setting one that the loss does not read is an error, because a sweep
    # over it would show noise as an effect.
    label_smoothing: Annotated[float, Ge(0), Lt(0.5)] | None = None
    gamma_beta_ratio: float | None = None
    nll_weight: Annotated[float, Ge(0)] | None = None
    desirable_weight: Annotated[float, Ge(0)] | None = None
    undesirable_weight: Annotated[float, Ge(0)] | None = None

    @classmethod
    def adapted(cls, values: Mapping[str, Any], unset: Collection[str], sharding: str) -> dict[str, Any]:
        adapted = super().adapted(values, unset, sharding)
        # `beta` means different things in these losses, so the tuned value of DPO does not apply to them.
        beta = LOSS_BETA.get(str(values.get("loss")))
        if "beta" in unset and beta is not None:
            adapted["beta"] = beta
        return adapted

    def uses_row(self, pair: Pair) -> bool:
        return True  # pairs of steps, too

    def coefficients(self) -> dict[str, float]:
        """Return the coefficients that the loss reads, by name: `beta` and its own settings, with defaults."""
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
                f"batch_size={self.batch_size} is too small: loss=kto estimates KL with other prompts; use 2 or more",
            ),
            (
                self.logps == "sum" or self.loss not in ("kto", "cpo"),
                f"logps={self.logps}, loss={self.loss}: its KL estimate or NLL is of full responses; use logps=sum",
            ),
            *self._unread_settings(),
        )

    def contradictions(self, config: Config) -> list[str]:
        family = getattr(config.model, "family", None)
        if self.logps == "per_codebook" and family in ("llama", "gpt2"):
            return [f"algorithm.logps=per_codebook: a model of family {family} has no codebooks; use logps=sum"]
        return super().contradictions(config)

    def _unread_settings(self) -> tuple[Rule, ...]:
        """Return (condition, message) for every loss-specific setting that is set: the loss has to read the setting."""
        rules = []
        for name in dict.fromkeys(name for loss_settings in LOSS_SETTINGS.values() for name in loss_settings):
            value = getattr(self, name, None)  # one-pass DPO has no `reference_share`
            if value is not None:
                readers = ", ".join(f"loss={loss}" for loss, names in LOSS_SETTINGS.items() if name in names)
                message = f"{name}={value} is not read by loss={self.loss}; it belongs to {readers}"
                rules.append((name in LOSS_SETTINGS[self.loss], message))
        return tuple(rules)


@register("algorithm", "dpo")
@dataclass(frozen=True)
class DPO(PreferenceSettings, PairSettings):
    """One pass over the corpus pairs. The policy starts from `needs.policy`, which is also the reference.

    With `needs.soup` the reference is the mean of the weights of both policies (arXiv:2411.01798).
    """

    # only evaluations read the late roles
    inputs = Inputs(
        sections=("model", "rollout", "evaluation", "reward"),
        needs=("policy",),
        optional=("reward", "margins", SOUP),
        late=("reward", "gold"),
        directories=("margins",),
        corpus_suffices=True,
    )
    reward_use = RewardUse(measures_gold=True)
    evidence = replace(PreferenceSettings.evidence, loss_falls=True, answer="against_reference")
    by_size = replace(
        PreferenceSettings.by_size,
        small_scale={**SMALL, "optimizer": "adamw", "lr": 1e-4, "epochs": 0.5, "batch_size": 32, "beta": 0.3},
    )

    @property
    def trl_trainer(self) -> str:
        if self.loss == "kto":
            return "kto"
        return "dpo" if self.loss in TRL_LOSSES else ""

    @property
    def trl_refusal(self) -> str:
        return (
            f"algorithm.loss={self.loss} is not in TRL's stable trainers (some losses are in trl.experimental, which "
            f"may vanish in any release); use engine=native, or one of {', '.join((*TRL_LOSSES, 'kto'))}"
        )

    @property
    def requirements(self) -> Requirements:
        return (Capability.PAIRS | Capability.UNPAIRED,) if self.loss == "kto" else self.requires

    def rules(self) -> tuple[Rule, ...]:
        rounds_only = "loss=inpo needs the policy of a previous round; use algorithm=dpo_iterative"
        return (*super().rules(), (self.loss != "inpo", rounds_only))

    @property
    def has_dpo_optimum(self) -> bool:
        return self.loss in ("sigmoid", "robust")


@register("algorithm", "step_pairs")
@dataclass(frozen=True)
class StepPairs(StageSettings):
    """Preference pairs of single steps (Step-DPO, arXiv:2406.18629) from solutions that `needs.policy` samples.

    In every solution with a wrong answer, the first wrong step is located. The policy solves the rest of the problem
    again, several times, from the steps before it. The first of these solutions with a right step in this position
    makes a pair: the steps so far and the right step are preferred over the steps so far and the wrong one. The shared
    steps cancel in DPO's loss, so that it compares the two steps given the steps before them.

    Args:
        problems: number of training problems.
        solutions: solutions sampled per problem, at temperature 1.
        alternatives: solutions sampled, at temperature 1, from the steps before the first wrong one.
        labels: source of the step labels. `annotated`: the world judges every step. `monte_carlo`: a step is wrong if
            none of `rollouts` completions from it reaches the right answer (arXiv:2312.08935, eq. 3), and a sampled
            alternative is right if its solution reaches it. `auto` is `annotated` if the data judge steps, else
            `monte_carlo`.
        rollouts: completions per step of `monte_carlo`.
        unit: `step` writes pairs of steps. `solution` writes the complete solutions that contain them, for comparison;
            the chosen one then needs a right answer.
    """

    requires: ClassVar[Requirements] = (Capability.TEXT, Capability.ANSWERS, Capability.SINGLE_TURN)
    inputs = Inputs(sections=("model", "rollout"), needs=("policy",))
    outputs = Outputs(model=False, rows="pairs")
    resources = Resources(distributed=False)
    evidence = Evidence(compares_policies=False, answer="pairs_of_steps")
    by_size = BySize(
        smoke={"problems": 400, "solutions": 2, "rollouts": 2},
        smoke_real={"problems": 8, "solutions": 1, "alternatives": 2},
    )
    problems: Annotated[int, Ge(1)] = 2000
    solutions: Annotated[int, Ge(1)] = 2
    alternatives: Annotated[int, Ge(1)] = 8
    labels: Literal["auto", "annotated", "monte_carlo"] = "auto"
    rollouts: Annotated[int, Ge(1)] = 4
    unit: Literal["step", "solution"] = "step"

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return [ModelCopies("policy (samples)")]

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [(batch_rows, max(self.solutions, self.alternatives, self.rollouts))]

    def contradictions(self, config: Config) -> list[str]:
        return unjudged_steps(self.labels, config, "monte_carlo")


@register("algorithm", "dpo_iterative")
@dataclass(frozen=True)
class IterativeDPO(PreferenceSettings):
    """Iterative (online) DPO: each round samples from the current policy, ranks by reward, pairs, trains, evaluates.

    Every round has the same number of optimiser steps whatever the buffer contains, so that buffers differ in their
    training pairs and not in compute.

    The learning rate stays at its peak after warm-up, so that late rounds can still learn.

    Args:
        rounds: number of rounds of roll out → rank → pair → train → evaluate.
        prompts_per_round: training prompts rolled out in each round.
        samples_per_prompt: responses sampled per prompt (G); the best and the worst by reward become a pair.
        buffer: pairs that a round trains on: `current` (this round's), `rolling` (the last `window` rounds') or `full`.
            `rolling3` is `rolling` with `window=3`.
        window: number of rounds that `buffer=rolling` keeps.
        corpus_fraction: fraction of a round's pairs that come from the corpus. This is the hybrid setting of
            arXiv:2312.11456, in which labelled pairs limit the effect of errors of the learned reward. 0 trains on own
            responses only. If the corpus is too small, all its pairs are used, and the run notes the fraction.
        updates_per_pair: optimiser steps per round = updates_per_pair × (prompts_per_round + corpus pairs) /
            batch_size.
        reference_share: τ/η of inpo in (0, 1]: weight of the reference in its anchor; the rest is the policy at the
            start of the round. Default 1/3.
        consistency: `cream` weights the labels of own pairs by the agreement between the reward's ranking of a prompt's
            responses and that of the previous round's policy (arXiv:2410.12735); `none` leaves them unweighted.
    """

    requires: ClassVar[Requirements] = (Capability.PAIRS, Capability.SINGLE_TURN)
    inputs = Inputs(
        sections=("model", "rollout", "evaluation", "reward"),
        needs=("policy",),
        optional=("reward", "baseline", SOUP),
        late=("baseline",),
    )
    reward_use = RewardUse(scores=True, measures_gold=True)
    evidence = replace(PreferenceSettings.evidence, baseline_policy="one-pass DPO", answer="against_one_pass")
    by_size = replace(
        PreferenceSettings.by_size,
        small_scale={**SMALL, "optimizer": "adamw", "lr": 5e-5, "batch_size": 32, "beta": 0.3},
        smoke={"rounds": 2, "prompts_per_round": 96},
        smoke_real={**TrainingSettings.by_size.smoke_real, "prompts_per_round": 2},
    )
    final_lr_fraction: float = 1.0
    rounds: Annotated[int, Ge(1)] = 3
    prompts_per_round: Annotated[int, Ge(1)] = 700
    samples_per_prompt: Annotated[int, Ge(2, hint="one sample leaves nothing to compare")] = 4
    buffer: Literal["current", "rolling", "full"] = "current"
    window: Annotated[int, Ge(1)] = 2
    # Chosen by measurement: with own pairs only, gold fell from the first round on (docs/design/004).
    corpus_fraction: Annotated[float, Ge(0), Lt(1)] = 0.75
    updates_per_pair: Annotated[float, Gt(0)] = 1.0
    reference_share: Annotated[float, Gt(0), Le(1)] | None = None
    consistency: Literal["none", "cream"] = "none"

    @classmethod
    def prepared(cls, values: Mapping[str, Any], problems: list[str]) -> Mapping[str, Any] | None:
        # `rolling3` is shorthand for two settings, e.g. for a sweep over `buffer` that lists several windows.
        match = re.fullmatch(r"rolling_?([1-9]\d*)", str(values.get("buffer")))
        if match is None:
            return values
        window = int(match.group(1))
        if values.get("window", cls.window) not in (cls.window, window):
            problems.append(
                f"algorithm.buffer={values['buffer']} keeps {window} rounds, but algorithm.window={values['window']}; "
                "set only one of them"
            )
        return {**values, "buffer": "rolling", "window": window}

    @property
    def trl_refusal(self) -> str:
        return "algorithm=dpo_iterative: TRL has no trainer in rounds; use engine=native, or algorithm=dpo"

    def sampled(self, evaluation: Evaluation, batch_rows: int) -> list[tuple[int, int]]:
        return [*super().sampled(evaluation, batch_rows), (self.prompts_per_round, self.samples_per_prompt)]

    def rules(self) -> tuple[Rule, ...]:
        return (*super().rules(), only_after_rounds(self))

    def contradictions(self, config: Config) -> list[str]:
        problems = super().contradictions(config)
        if config.reward.confidence_weight:
            problems.append(
                "reward.confidence_weight needs a running mean of rewards; use algorithm=ppo or algorithm=grpo"
            )
        if config.reward.monitor.action == "stop" and self.rounds < 2:
            problems.append(
                "reward.monitor.action=stop never acts: the first round is the baseline; set algorithm.rounds=2 or "
                "higher"
            )
        return problems

"""The table of preference losses: what `algorithm.loss` names, and what each loss has to be given.

Algorithms ask an objective what it needs and never for its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from rlhf_lab.losses import preference
from rlhf_lab.losses.preference import PairLogps, PreferenceLoss


class PairTokens(NamedTuple):
    """Tokens of both replies of each pair, EOS included. Each (B,)."""

    chosen: Tensor
    rejected: Tensor


@dataclass(frozen=True)
class PairInputs:
    """Everything a loss may be given for a batch of pairs; None for what the chosen loss does not need.

    Attributes:
        policy: under the model that is trained.
        tokens: reply lengths.
        ref: under the frozen reference.
        previous: under the policy as the round began.
        z_ref: estimate of KL(policy ‖ reference), nats, scalar or (B,).
    """

    policy: PairLogps
    tokens: PairTokens
    ref: PairLogps | None = None
    previous: PairLogps | None = None
    z_ref: Tensor | None = None

    @property
    def chosen_nll(self) -> Tensor:
        """−log π(chosen) per token, (B,)."""
        return -self.policy.chosen / self.tokens.chosen

    def per_token(self) -> PairInputs:
        """The same with log-probabilities averaged over each reply's tokens."""

        def average(logps: PairLogps) -> PairLogps:
            return PairLogps(logps.chosen / self.tokens.chosen, logps.rejected / self.tokens.rejected)

        return self._map_logps(average)

    def of_codebooks(self, codebooks: int) -> PairInputs:
        """The codebooks of a pair as pairs of their own, (B·codebooks,), from log-probabilities (B, codebooks)."""
        apart = self._map_logps(lambda logps: PairLogps(logps.chosen.flatten(), logps.rejected.flatten()))
        lengths = (length_B.repeat_interleave(codebooks) / codebooks for length_B in self.tokens)
        return replace(apart, tokens=PairTokens(*lengths))

    def reversed(self) -> PairInputs:
        """The same pairs with the opposite label."""
        with_swapped_logps = self._map_logps(lambda logps: PairLogps(logps.rejected, logps.chosen))
        return replace(with_swapped_logps, tokens=PairTokens(self.tokens.rejected, self.tokens.chosen))

    def _map_logps(self, change: Callable[[PairLogps], PairLogps]) -> PairInputs:
        """The same with `change` applied to the log-probabilities under every model that is there."""
        return replace(
            self,
            policy=change(self.policy),
            ref=None if self.ref is None else change(self.ref),
            previous=None if self.previous is None else change(self.previous),
        )


@dataclass(frozen=True)
class Objective:
    """A preference loss and what it needs.

    Attributes:
        title: its name in tables.
        loss: its keyword arguments are settings of the same names.
        inputs: attributes of `PairInputs` that are its positional arguments.
        per_token: log-probabilities are averaged over the reply's tokens instead of summed.
        dpo_optimum: its optimum is DPO's, π_ref·exp(r/β), whose ranking `idealised_ranking` describes.
    """

    title: str
    loss: Callable[..., PreferenceLoss]
    inputs: tuple[str, ...] = ("policy", "ref")
    per_token: bool = False
    dpo_optimum: bool = False

    def needs(self, name: str) -> bool:
        """Whether the loss reads an attribute of `PairInputs`: `ref`, `previous`, `z_ref`."""
        return name in self.inputs

    def __call__(
        self, pairs: PairInputs, coefficients: Mapping[str, float], consistency_B: Tensor | None = None
    ) -> PreferenceLoss:
        """Loss of each pair; with `consistency_B` = C in [0, 1], C·L(pair) + (1 − C)·L(reversed pair).

        The mixture is CREAM's (arXiv:2410.12735, algorithm 1): labels that two rankings disagree on pull both ways. The
        margin stays that of the pair as it is labelled.
        """
        labelled = self._loss_of(pairs, coefficients)
        if consistency_B is None:
            return labelled
        swapped = self._loss_of(pairs.reversed(), coefficients)
        mixed_B = consistency_B * labelled.per_pair_B + (1 - consistency_B) * swapped.per_pair_B
        return PreferenceLoss(mixed_B, labelled.margin_B)

    def _loss_of(self, pairs: PairInputs, coefficients: Mapping[str, float]) -> PreferenceLoss:
        if self.per_token:
            pairs = pairs.per_token()
        arguments = [getattr(pairs, name) for name in self.inputs]
        return self.loss(*arguments, **coefficients)


PREFERENCE_LOSSES: dict[str, Objective] = {
    "sigmoid": Objective("DPO", preference.dpo, dpo_optimum=True),
    "robust": Objective("robust DPO", preference.robust, dpo_optimum=True),
    "ipo": Objective("IPO", preference.ipo, per_token=True),
    "hinge": Objective("hinge DPO", preference.hinge),
    "apo_zero": Objective("APO-zero", preference.apo_zero),
    "apo_down": Objective("APO-down", preference.apo_down),
    "kto": Objective("KTO", preference.kto, ("policy", "ref", "z_ref")),
    "simpo": Objective("SimPO", preference.simpo, ("policy",), per_token=True),
    "orpo": Objective("ORPO", preference.orpo, ("policy",), per_token=True),
    "cpo": Objective("CPO", preference.cpo, ("policy", "chosen_nll")),
    "inpo": Objective("INPO", preference.inpo, ("policy", "ref", "previous")),
}
"""`algorithm.loss` → objective. The settings each one reads: `LOSS_SETTINGS` in algorithms/preference/settings.py."""

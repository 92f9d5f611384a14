"""Table of preference losses: `algorithm.loss` → loss function and the inputs it needs.

Algorithms ask an objective for its inputs. They never test its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from rlhf_lab.losses import preference
from rlhf_lab.losses.preference import PairLogps, PreferenceLoss


class PairTokens(NamedTuple):
    """Tokens of both responses of each pair, EOS included. Each (B,)."""

    chosen: Tensor
    rejected: Tensor


@dataclass(frozen=True)
class PairInputs:
    """All inputs of preference losses for a batch of pairs. Inputs that the configured loss does not need are None.

    Attributes:
        policy: log-probabilities under the trained model.
        tokens: response lengths.
        ref: log-probabilities under the frozen reference.
        previous: log-probabilities under the policy at the start of the round.
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
        """Return the same pairs with log-probabilities averaged over the tokens of each response."""

        def average(logps: PairLogps) -> PairLogps:
            return PairLogps(logps.chosen / self.tokens.chosen, logps.rejected / self.tokens.rejected)

        return self._map_logps(average)

    def of_codebooks(self, codebooks: int) -> PairInputs:
        """Return each codebook of a pair as a separate pair, (B·codebooks,), from log-probabilities (B, codebooks)."""
        separate = self._map_logps(lambda logps: PairLogps(logps.chosen.flatten(), logps.rejected.flatten()))
        # Every codebook has an equal part of the response's tokens.
        lengths = (length_B.repeat_interleave(codebooks) / codebooks for length_B in self.tokens)
        return replace(separate, tokens=PairTokens(*lengths))

    def reversed(self) -> PairInputs:
        """Return the same pairs with the opposite label."""
        with_swapped_logps = self._map_logps(lambda logps: PairLogps(logps.rejected, logps.chosen))
        return replace(with_swapped_logps, tokens=PairTokens(self.tokens.rejected, self.tokens.chosen))

    def _map_logps(self, change: Callable[[PairLogps], PairLogps]) -> PairInputs:
        """Return the same pairs with `change` applied to the log-probabilities under every model present."""
        return replace(
            self,
            policy=change(self.policy),
            ref=None if self.ref is None else change(self.ref),
            previous=None if self.previous is None else change(self.previous),
        )


@dataclass(frozen=True)
class Objective:
    """A preference loss and its inputs.

    Attributes:
        title: name in tables.
        loss: loss function; its keyword arguments are settings with the same names.
        inputs: attributes of `PairInputs` that are passed as positional arguments.
        per_token: True if log-probabilities are averaged over the response's tokens instead of summed.
        dpo_optimum: True if the optimum is that of DPO, π_ref·exp(r/β), whose ranking `idealised_ranking` describes.
    """

    title: str
    loss: Callable[..., PreferenceLoss]
    inputs: tuple[str, ...] = ("policy", "ref")
    per_token: bool = False
    dpo_optimum: bool = False

    def needs(self, name: str) -> bool:
        """Return True if the loss reads this attribute of `PairInputs`: `ref`, `previous` or `z_ref`."""
        return name in self.inputs

    def __call__(
        self, pairs: PairInputs, coefficients: Mapping[str, float], consistency_B: Tensor | None = None
    ) -> PreferenceLoss:
        """Return the loss of each pair; with `consistency_B` = C in [0, 1]: C·L(pair) + (1 − C)·L(reversed pair).

        The mixture is CREAM's (arXiv:2410.12735, algorithm 1): if two rankings disagree on a label, the loss pulls in
        both directions. The margin is always that of the pair as labelled.
        """
        labelled = self._loss_of(pairs, coefficients)
        if consistency_B is None:
            return labelled
        # Swapping log-probabilities and lengths is the same as the opposite label.
        swapped = self._loss_of(pairs.reversed(), coefficients)
        mixed_B = consistency_B * labelled.per_pair_B + (1 - consistency_B) * swapped.per_pair_B
        return PreferenceLoss(mixed_B, labelled.margin_B)

    def _loss_of(self, pairs: PairInputs, coefficients: Mapping[str, float]) -> PreferenceLoss:
        # Averaging here instead of in the losses keeps each loss as its paper writes it.
        if self.per_token:
            pairs = pairs.per_token()
        arguments = [getattr(pairs, name) for name in self.inputs]
        return self.loss(*arguments, **coefficients)


# `dpo_optimum` is only set for DPO and robust DPO: the optima of the other losses are different.
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

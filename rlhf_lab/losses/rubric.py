"""Loss of a reward model that predicts grades."""

from __future__ import annotations

from torch import Tensor


def squared_error(outputs_BA: Tensor, targets_BA: Tensor) -> Tensor:
    """Mean squared error over a response's A outputs, per response (B,) (HelpSteer2, arXiv:2406.08673, section 3.1).

    Targets are fractions of the scale, 0…1: an error of one point on the scale 1…5 costs 1/16.
    """
    return (outputs_BA - targets_BA).square().mean(dim=1)

"""Loss of process and outcome reward models: pure functions from logits to one loss per judged position."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid


def step_loss(logits_N: Tensor, labels_N: Tensor) -> Tensor:
    """−y log σ(z) − (1 − y) log σ(−z), per step (N,), nats.

    Binary cross-entropy of a process reward model (arXiv:2305.20050; arXiv:2312.08935, eq. 2). A soft label y in [0, 1]
    is the probability that the step is right. The loss is then minimal at σ(z) = y, where it equals the entropy of y.
    """
    # logsigmoid of both signs instead of log(1 − σ), which is −∞ for large logits
    return -labels_N * logsigmoid(logits_N) - (1 - labels_N) * logsigmoid(-logits_N)

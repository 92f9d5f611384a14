"""All checks of a model, its tokenizer and its training, in order."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rlhf_lab.core.machine import main_memory
from rlhf_lab.doctor.findings import CheckResult, examine
from rlhf_lab.doctor.forward import FORWARD
from rlhf_lab.doctor.subject import ExaminedModel
from rlhf_lab.doctor.tokens import TOKENS
from rlhf_lab.doctor.training import TRAINING

PARAMETER_BYTES = 4  # float32


def examine_model(subject: ExaminedModel) -> Iterator[CheckResult]:
    """Yield the results for tokens, forward pass and training. Checks that do not fit into memory are skipped."""
    yield from examine("tokens", TOKENS, subject)
    # Free memory is measured again for each group, because earlier checks may keep copies of the model.
    yield from examine("forward pass", FORWARD, subject, capacity=free_memory(subject))
    yield from examine("training", TRAINING, subject, capacity=free_memory(subject))


def free_memory(subject: ExaminedModel) -> float:
    """Return how many float32 copies of the model fit into the free memory of its device."""
    free = float("inf")
    if torch.device(subject.device).type == "cuda":
        free = torch.cuda.mem_get_info()[0]
    elif memory := main_memory():
        free = memory.free
    return free / (PARAMETER_BYTES * subject.parameters)

"""Everything that is checked on a model, its tokenizer and its training, in order."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rlhf_lab.core.machine import main_memory
from rlhf_lab.doctor.findings import Finding, examine
from rlhf_lab.doctor.forward import FORWARD
from rlhf_lab.doctor.subject import Subject
from rlhf_lab.doctor.tokens import TOKENS
from rlhf_lab.doctor.training import TRAINING

PARAMETER_BYTES = 4  # float32


def examine_model(subject: Subject) -> Iterator[Finding]:
    """Findings about tokens, the forward pass and training. Checks without room in memory are skipped."""
    yield from examine("tokens", TOKENS, subject)
    yield from examine("forward pass", FORWARD, subject, room=room(subject))
    yield from examine("training", TRAINING, subject, room=room(subject))


def room(subject: Subject) -> float:
    """How many float32 copies of the model fit into the free memory of its device."""
    free = float("inf")
    if torch.device(subject.device).type == "cuda":
        free = torch.cuda.mem_get_info()[0]
    elif memory := main_memory():
        free = memory.free
    return free / (PARAMETER_BYTES * subject.parameters)

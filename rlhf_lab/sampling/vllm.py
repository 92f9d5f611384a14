"""vLLM samples inside TRL's trainers (`engine=trl`); what the lab samples beside them goes through its own sampler."""

from __future__ import annotations

from rlhf_lab.models.encoding import Encoder
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Vllm


def build(settings: Vllm, encoder: Encoder) -> LocalSampler:
    return LocalSampler(settings.local(), encoder.stop_ids)

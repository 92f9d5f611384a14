"""Model family of codec language models (`model=codec`), as the core needs it. Imports no torch."""

from __future__ import annotations

from rlhf_lab.core.capabilities import Capability
from rlhf_lab.models.families import Family

CODEC = Family(
    model_type="rlhf_lab_codec",
    module="rlhf_lab.packs.speech.policy.codec_lm",
    new_policy="rlhf_lab.packs.speech.policy.start:new_policy",
    decoder="rlhf_lab.packs.speech.policy.decoder:CodecDecoder",
    responses=Capability.AUDIO,
    says="the codes of audio",
    reads=("min_frames",),
    without_trl="pads prompts on the left, and a codec model counts its columns from the first token",
    without_vllm="vLLM does not support the codec models of rlhf_lab",
)

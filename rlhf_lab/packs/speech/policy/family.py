"""What the lab has to know of models of a codec's streams (`model=codec`). Imports no torch."""

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
    without_trl="pads prompts on the left, and a codec's model counts its columns from the first token",
    without_vllm="vLLM does not know the lab's model of audio codes",
)

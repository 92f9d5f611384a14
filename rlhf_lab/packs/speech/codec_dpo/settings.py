"""Settings of DPO in a worker process. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from rlhf_lab.config.registry import kind_of, register
from rlhf_lab.core.capabilities import Capability, Requirements
from rlhf_lab.core.ranges import BySize, Ge, Gt
from rlhf_lab.packs.speech.parler.settings import ParlerTTS
from rlhf_lab.training.settings import StageSettings
from rlhf_lab.training.stage_spec import Evidence, Inputs, ModelCopies, Outputs, Resources, RewardUse

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@register("algorithm", "codec_dpo")
@dataclass(frozen=True)
class CodecDPO(StageSettings):
    """Rounds of DPO on a codec language model that runs in a worker process (`packs/speech/parler/protocol.py`).

    `model=codec` serves `needs.policy`, a codec model of rlhf_lab, and `model=parler` serves a Parler-TTS model. Each
    round samples clips of training prompts, scores their audio with the reward, pairs the best clip of a prompt with
    the worst, and trains on the pairs. The reference is the policy at the start of the round. A clip that a gate of the
    reward refuses, such as `reward.terms.intelligibility.floor`, is never preferred to another clip. An interrupted
    stage resumes after its last complete round.

    Args:
        rounds: number of rounds; each samples new prompts and new clips.
        prompts_per_round: number of training prompts of a round.
        samples_per_prompt: number of clips per prompt; the best and the worst by reward become a pair.
        beta: β of DPO.
        lr: learning rate of AdamW, whose state is kept between rounds.
        epochs: passes over the pairs of a round.
        pairs_per_step: number of pairs in an optimizer step.
        logps: log-probability of a clip: `sum` over its codes and its end, or their `mean`. If the reward depends on
            the duration, `sum` may train the opposite, because the log-ratio of a long clip has more terms.
        temperature: sampling temperature in training and evaluation.
        max_grad_norm: maximum gradient norm; larger gradients are clipped.
        max_frames: maximum number of frames of a clip.
    """

    requires: ClassVar[Requirements] = (Capability.AUDIO, Capability.SINGLE_TURN)
    inputs = Inputs(sections=("model", "evaluation", "reward"), optional=("policy", "reward"))
    outputs = Outputs(model=False)
    reward_use = RewardUse(trains_policy=True, scores=True)
    resources = Resources(distributed=False, in_worker=True)
    evidence = Evidence(answer="against_reference", compares_policies=False)
    by_size = BySize(
        tuned_by_model=("lr", "max_frames"),
        small_scale={"lr": 1e-3, "max_frames": 64},
        smoke={"rounds": 2, "prompts_per_round": 24, "samples_per_prompt": 4},
    )
    rounds: Annotated[int, Ge(1)] = 3
    prompts_per_round: Annotated[int, Ge(1)] = 64
    samples_per_prompt: Annotated[int, Ge(2, hint="the best and the worst clip make a pair")] = 4
    beta: Annotated[float, Gt(0)] = 0.1
    lr: Annotated[float, Gt(0)] = 1e-4
    epochs: Annotated[int, Ge(1)] = 1
    pairs_per_step: Annotated[int, Ge(1)] = 4
    logps: Literal["sum", "mean"] = "sum"
    temperature: Annotated[float, Gt(0)] = 1.0
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    max_frames: Annotated[int, Ge(1)] = 860

    def model_copies(self, *, adapter: bool) -> list[ModelCopies]:
        return []  # the model is in the process of the worker

    def contradictions(self, config: Config) -> list[str]:
        model, kind = config.model, kind_of("model", config.model)
        problems = []
        if not isinstance(model, ParlerTTS) and not config.needs.get("policy"):
            problems.append(
                f"needs.policy is not set, but algorithm=codec_dpo with model={kind} starts from it; name a codec "
                "policy such as needs.policy=tts_sft, or use model=parler model.path=DIR"
            )
        if model.stored("policy") == "nf4":
            problems.append("model.weights=nf4: the workers of algorithm=codec_dpo use float32 or bfloat16")
        return problems

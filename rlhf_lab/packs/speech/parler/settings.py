"""Settings of `model=parler`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from rlhf_lab.config.registry import kind_of, register
from rlhf_lab.core.ranges import Gt, NotEmpty
from rlhf_lab.models.settings import LoRA, Tuned, Weights

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config

PATH_HINT = "set model.path=DIR or a hub id such as model.path=parler-tts/parler-tts-mini-v1"


@register("model", "parler")
@dataclass(frozen=True)
class ParlerTTS(Weights):
    """A Parler-TTS model in a worker process with pinned packages (`python -m rlhf_lab parler setup`).

    Only `algorithm=codec_dpo` trains it.

    Args:
        path: hub id or directory of the model.
        description_tokenizer: hub id or directory of the tokenizer of descriptions, for models that only include the
            tokenizer of prompts.
        timeout_s: maximum duration of one request to the worker in seconds.
        lora: settings of an adapter, which is trained instead of all parameters.
        tuned: algorithm → setting → value. It replaces the algorithm's default value, which does not suit models of
            this size, unless you set the setting.
    """

    small_scale: ClassVar[bool] = False
    unkeyed: ClassVar[tuple[str, ...]] = ("timeout_s",)
    path: Annotated[str, NotEmpty(hint=PATH_HINT)] = ""
    description_tokenizer: str | None = None
    timeout_s: Annotated[float, Gt(0)] = 1800.0
    lora: LoRA = field(default_factory=LoRA)
    tuned: Tuned = field(default_factory=dict)

    def leaves_out(self, role: str, config: Config) -> bool:
        # training starts from `path`, whatever policy a recipe names for models of the lab
        return role == "policy" and bool(config.algorithm.resources.in_worker)

    def contradictions(self, config: Config) -> list[str]:
        if "model" not in config.algorithm.inputs.sections or config.algorithm.resources.in_worker:
            return []
        kind = kind_of("algorithm", config.algorithm)
        return [f"model=parler runs in a worker process, which algorithm={kind} does not use; use algorithm=codec_dpo"]

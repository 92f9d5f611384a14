"""Settings of every sampler (`rollout=…`). Imports no torch; see `rlhf_lab/config/registry.py`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from rlhf_lab.config.registry import register
from rlhf_lab.core.errors import require


@register("rollout", "local")
@dataclass(frozen=True)
class Local:
    """The lab's own in-process sampler.

    Args:
        temperature: of the sampled distribution; 0 is greedy. Log-probabilities are of this distribution.
        max_new_tokens: longest reply, or turn of an episode, in tokens, EOS included.
        max_prompt_tokens: longer prompts lose their beginning, and are counted.
        batch_rows: replies decoded together.
        top_k: sample among the k likeliest tokens only; 0 is off.
        top_p: sample among the likeliest tokens that together have this probability; 1 is off. Training takes the
            log-probabilities of the same truncated distribution.
        allowed_tokens: texts of the only tokens that may be sampled, besides those that end a reply; empty allows all.
        stop: texts that end a reply, or a turn, beside EOS; they are cut off its text.
        max_episode_tokens: tokens that an episode of several turns may add to its prompt, those of the environment
            included; 0 is twice `max_new_tokens` for each turn.
        dtype: arithmetic of the sampler; `model` is the policy's own. bf16 samples from a slightly different
            distribution than the fp32 policy: its log-probabilities are then recomputed before any ratio.
    """

    tuned_by_model: ClassVar[tuple[str, ...]] = ("max_new_tokens", "max_prompt_tokens")
    at_small_scale: ClassVar[dict[str, int]] = {"max_new_tokens": 80, "max_prompt_tokens": 48}
    smoke_real: ClassVar[dict[str, int]] = {"max_new_tokens": 32, "max_prompt_tokens": 96}
    temperature: float = 1.0
    max_new_tokens: int = 256
    max_prompt_tokens: int = 256
    batch_rows: int = 512
    top_k: int = 0
    top_p: float = 1.0
    allowed_tokens: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    max_episode_tokens: int = 0
    dtype: Literal["model", "float32", "bfloat16"] = "model"

    def __post_init__(self) -> None:
        require(
            (self.temperature >= 0, f"temperature={self.temperature} is negative; 0 is greedy"),
            (self.max_new_tokens >= 1, f"max_new_tokens={self.max_new_tokens} must be at least 1"),
            (self.max_prompt_tokens >= 1, f"max_prompt_tokens={self.max_prompt_tokens} must be at least 1"),
            (self.batch_rows >= 1, f"batch_rows={self.batch_rows} must be at least 1"),
            (self.top_k >= 0, f"top_k={self.top_k} is negative; 0 keeps all tokens"),
            (0 < self.top_p <= 1, f"top_p={self.top_p} is outside (0, 1]; 1 keeps all tokens"),
            (all(self.stop), "stop has an empty text, which would end every reply at once"),
            (self.max_episode_tokens >= 0, f"max_episode_tokens={self.max_episode_tokens} is negative; 0 is automatic"),
        )

    def most_tokens(self, max_turns: int) -> int:
        """Tokens that an episode of so many turns may add to its prompt."""
        if max_turns == 1:
            return self.max_new_tokens
        return self.max_episode_tokens or 2 * self.max_new_tokens * max_turns


@register("rollout", "vllm")
@dataclass(frozen=True)
class Vllm(Local):
    """vLLM samples what `engine=trl` trains on (algorithm=grpo and rloo). Needs vLLM and a GPU.

    Everything else that samples, such as the evaluation, takes the lab's own sampler with the settings of `local`.

    Args:
        mode: `colocate` runs vLLM in this process and on its GPU; `server` asks one started with `trl vllm-serve`.
        gpu_memory_utilization: share of the GPU's memory that a colocated vLLM takes.
        host, port: of the server.
    """

    mode: Literal["colocate", "server"] = "colocate"
    gpu_memory_utilization: float = 0.3
    host: str = "127.0.0.1"
    port: int = 8000

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.gpu_memory_utilization
        require((0 < share < 1, f"gpu_memory_utilization={share} is outside (0, 1)"))

    def local(self) -> Local:
        """The settings of the lab's own sampler among these."""
        return Local(**{f.name: getattr(self, f.name) for f in fields(Local)})

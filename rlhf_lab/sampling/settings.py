"""Settings of every sampler (`rollout=…`). Imports no torch; see `rlhf_lab/config/registry.py`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import Ge, Gt, Le, Lt
from rlhf_lab.models.families import families

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@register("rollout", "local")
@dataclass(frozen=True)
class Local(Section):
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

    inherited: ClassVar[bool] = True
    tuned_by_model: ClassVar[tuple[str, ...]] = ("max_new_tokens", "max_prompt_tokens")
    at_small_scale: ClassVar[dict[str, int]] = {"max_new_tokens": 80, "max_prompt_tokens": 48}
    smoke_real: ClassVar[dict[str, int]] = {"max_new_tokens": 32, "max_prompt_tokens": 96}
    temperature: Annotated[float, Ge(0, hint="0 is greedy")] = 1.0
    max_new_tokens: Annotated[int, Ge(1)] = 256
    max_prompt_tokens: Annotated[int, Ge(1)] = 256
    batch_rows: Annotated[int, Ge(1)] = 512
    top_k: Annotated[int, Ge(0, hint="0 keeps all tokens")] = 0
    top_p: Annotated[float, Gt(0), Le(1, hint="1 keeps all tokens")] = 1.0
    allowed_tokens: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    max_episode_tokens: Annotated[int, Ge(0, hint="0 is automatic")] = 0
    dtype: Literal["model", "float32", "bfloat16"] = "model"

    def parts(self, config: Config) -> list[tuple[str, Any]]:
        return [("rollout", self)] if "rollout" in config.algorithm.uses else []

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (all(self.stop), "stop has an empty text, which would end every reply at once"),
        )

    def most_tokens(self, max_turns: int) -> int:
        """Tokens that an episode of so many turns may add to its prompt."""
        if max_turns == 1:
            return self.max_new_tokens
        return self.max_episode_tokens or 2 * self.max_new_tokens * max_turns


@register("rollout", "vllm", "rlhf_lab.sampling.vllm.sampler")
@dataclass(frozen=True)
class Vllm(Local):
    """vLLM samples: all that a stage of engine=native samples, in servers beside it; or what `engine=trl` trains on.

    With engine=trl (algorithm=grpo and rloo, on a GPU) everything else that samples, such as the evaluation, takes the
    lab's own sampler with the settings of `local`.

    Args:
        mode: `spawn` starts a server in the environment that `vllm setup` makes, and ends it; `colocate` does, and the
            server gives the memory of the GPU back while the stage trains (with engine=trl vLLM runs in the trainer's
            process); `server` asks servers that are there: those of `urls`, or with engine=trl the one of `host` and
            `port`, started with `trl vllm-serve`.
        urls: of the servers, such as http://127.0.0.1:8000; rows are divided between them.
        gpu_memory_utilization: share of the GPU's memory that a vLLM takes which the lab has started.
        host, port: of TRL's server.
        tensor_parallel: GPUs that the model of a started server is divided between.
        context_tokens: longest prompt with its reply that a started server holds; 0 is 4096 or what the first rows
            need, and at most the model's positions.
        weights_folder: where weights are written for the servers, which must be able to read it; empty is the system's
            folder of temporary files.
        timeout_s: seconds that a server may take to start, and to answer a request.
        adapters: with `model.lora`, `swapped` sends the base once and then the adapter alone, `merged` the whole model
            each time. `auto` swaps, if the servers take it, on a GPU and where trainer or server store weights in less
            than float32, which rounds a merged adapter away; on a CPU vLLM takes twice as long for a token with one.
    """

    # where servers are, and what they hold, decides no number
    unkeyed: ClassVar[tuple[str, ...]] = ("urls", "tensor_parallel", "context_tokens", "weights_folder", "timeout_s")
    keyed_if_set: ClassVar[tuple[str, ...]] = ("adapters",)
    mode: Literal["colocate", "server", "spawn"] = "colocate"
    gpu_memory_utilization: Annotated[float, Gt(0), Lt(1)] = 0.3
    host: str = "127.0.0.1"
    port: int = 8000
    urls: tuple[str, ...] = ()
    tensor_parallel: Annotated[int, Ge(1)] = 1
    context_tokens: Annotated[int, Ge(0, hint="0 is automatic")] = 0
    weights_folder: str = ""
    timeout_s: Annotated[float, Gt(0)] = 1800.0
    adapters: Literal["auto", "swapped", "merged"] = "auto"

    def rules(self) -> tuple[Rule, ...]:
        spelled = [_spelled(url) for url in self.urls if _is_url(url)]
        return (
            *super().rules(),
            *(
                (_is_url(url), f"urls: {url} is no address of a server such as http://127.0.0.1:8000")
                for url in self.urls
            ),
            (len(set(spelled)) == len(spelled), "urls names a server twice"),
        )

    def contradictions(self, config: Config) -> list[str]:
        if config.engine != "native":
            return []
        problems = []
        staleness = getattr(config.algorithm, "staleness", 0)
        if self.mode == "colocate" and staleness:
            problems.append(
                f"algorithm.staleness={staleness} samples while the stage trains, and the server of "
                "rollout.mode=colocate sleeps then; write rollout.mode=spawn or rollout.mode=server"
            )
        if self.mode == "server" and not self.urls:
            problems.append("rollout.mode=server names no server; write rollout.urls=[http://127.0.0.1:8000]")
        if self.mode != "server" and self.urls:
            problems.append(f"rollout.urls={list(self.urls)} is read by rollout.mode=server alone")
        family = families().get(getattr(config.model, "family", ""))
        if family is not None:
            problems.append(f"model.family={config.model.family}: {family.without_vllm}; use rollout=local")
        return problems

    @property
    def starts_server(self) -> bool:
        """Whether the lab starts a server on the machine that trains."""
        return self.mode != "server"

    def local(self) -> Local:
        """The settings of the lab's own sampler among these."""
        return Local(**{f.name: getattr(self, f.name) for f in fields(Local)})


def _spelled(url: str) -> tuple[str | None, int]:
    """Host and port of an address, however it is written."""
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return host, parts.port or 80


def _is_url(url: str) -> bool:
    """Whether this is the address of a server: plain HTTP, a host and nothing behind its port."""
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018 - reading it refuses what is no port
    except ValueError:
        return False
    return parts.scheme == "http" and bool(parts.hostname) and parts.path in ("", "/") and not parts.query

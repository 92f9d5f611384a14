"""Settings of every sampler (`rollout=…`). Imports no torch; see `rlhf_lab/config/registry.py`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from rlhf_lab.config.registry import register
from rlhf_lab.config.section import Section
from rlhf_lab.core.errors import Rule
from rlhf_lab.core.ranges import BySize, Ge, Gt, Le, Lt
from rlhf_lab.models.families import families

if TYPE_CHECKING:
    from rlhf_lab.config.root import Config


@register("rollout", "local")
@dataclass(frozen=True)
class Local(Section):
    """The built-in sampler, which runs in the training process.

    Args:
        temperature: temperature of the sampled distribution; 0 is greedy. Log-probabilities are of this distribution.
        max_new_tokens: maximum number of tokens of a response, or of a turn of an episode, EOS included.
        max_prompt_tokens: maximum number of prompt tokens; longer prompts lose their start, and are counted.
        batch_rows: maximum number of responses that are decoded together.
        top_k: sample from the k most likely tokens only; 0 is off.
        top_p: sample from the most likely tokens that together have this probability; 1 is off. Training uses the
            log-probabilities of the same truncated distribution.
        allowed_tokens: texts of the only tokens that may be sampled, besides those that end a response; empty allows
            all tokens.
        stop: texts that end a response, or a turn, in addition to EOS; they are removed from its text.
        max_episode_tokens: maximum number of tokens that an episode of several turns may add to its prompt, including
            the environment's tokens; 0 is twice `max_new_tokens` for each turn.
        dtype: dtype of the sampler's computation; `model` is that of the policy. bfloat16 samples from a slightly
            different distribution than a float32 policy, so log-probabilities are recomputed before any ratio.
    """

    inherited: ClassVar[bool] = True
    by_size = BySize(
        tuned_by_model=("max_new_tokens", "max_prompt_tokens"),
        small_scale={"max_new_tokens": 80, "max_prompt_tokens": 48},
        smoke_real={"max_new_tokens": 32, "max_prompt_tokens": 96},
    )
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
        return [("rollout", self)] if "rollout" in config.algorithm.inputs.sections else []

    def rules(self) -> tuple[Rule, ...]:
        return (
            *super().rules(),
            (all(self.stop), "stop contains an empty text, which would end every response at once; remove it"),
        )

    def max_tokens_left(self, max_turns: int) -> int:
        """Return the maximum number of tokens that an episode of `max_turns` turns may add to its prompt."""
        if max_turns == 1:
            return self.max_new_tokens
        # the default leaves as many tokens for the environment as for the policy
        return self.max_episode_tokens or 2 * self.max_new_tokens * max_turns


@register("rollout", "vllm", "rlhf_lab.sampling.vllm.sampler")
@dataclass(frozen=True)
class Vllm(Local):
    """The vLLM sampler: servers that run in parallel with a stage of engine=native, or vLLM within `engine=trl`.

    With engine=native the servers sample everything that the stage samples. With engine=trl (algorithm=grpo and rloo,
    on a GPU) they sample only what TRL trains on; all other sampling, such as the evaluation, uses the built-in
    sampler with the settings of `local`.

    Args:
        mode: `spawn` starts a server in the environment that `vllm setup` creates, and stops it at the end. `colocate`
            does the same, and the server frees its GPU memory while the stage trains (with engine=trl vLLM runs in the
            trainer's process). `server` uses running servers: those of `urls`, or with engine=trl the one at `host`
            and `port`, started with `trl vllm-serve`.
        urls: addresses of the servers, such as http://127.0.0.1:8000; rows are distributed over them.
        gpu_memory_utilization: fraction of the GPU's memory used by a vLLM server that rlhf_lab has started.
        host, port: address of TRL's server.
        tensor_parallel: number of GPUs over which the model of a started server is sharded.
        context_tokens: maximum number of tokens of a prompt with its response on a started server; 0 is 4096 or what
            the first rows need, limited by the model's positions.
        weights_folder: directory to which weights are written for the servers, which must be able to read it; empty is
            the system's temporary directory.
        timeout_s: seconds that a server may take to start, and to answer a request.
        adapters: method of sending a policy with `model.lora`. `swapped` sends the base once and afterwards only the
            adapter; `merged` sends the full model each time. `auto` swaps if the servers support it and either they
            run on a GPU, or trainer or server store weights in less than float32, where a merged adapter would be lost
            in rounding. On a CPU vLLM takes twice as long for a token with an adapter.
    """

    # the location and the capacity of servers change no result, so they are not part of the run key
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
                (_is_url(url), f"urls: {url!r} is not a server address; write one such as http://127.0.0.1:8000")
                for url in self.urls
            ),
            (len(set(spelled)) == len(spelled), "urls names the same server twice; remove one of the addresses"),
        )

    def contradictions(self, config: Config) -> list[str]:
        if config.engine != "native":
            return []
        problems = []
        staleness = getattr(config.algorithm, "staleness", 0)
        # asynchronous sampling needs a server that is awake during training
        if self.mode == "colocate" and staleness:
            problems.append(
                f"algorithm.staleness={staleness} samples while the stage trains, but the server of "
                "rollout.mode=colocate sleeps during training; set rollout.mode=spawn or rollout.mode=server"
            )
        if self.mode == "server" and not self.urls:
            problems.append(
                "rollout.mode=server needs the address of a server; set rollout.urls=[http://127.0.0.1:8000]"
            )
        if self.mode != "server" and self.urls:
            problems.append(
                f"rollout.urls={list(self.urls)} is used only with rollout.mode=server; remove it or set that mode"
            )
        # vLLM does not know the architectures of packs
        family = families().get(getattr(config.model, "family", ""))
        if family is not None:
            problems.append(f"model.family={config.model.family}: {family.without_vllm}; use rollout=local")
        return problems

    @property
    def starts_server(self) -> bool:
        """True if rlhf_lab starts a server on the machine that trains."""
        return self.mode != "server"

    def local(self) -> Local:
        """Return the values of the settings that the built-in sampler also has."""
        values = {field.name: getattr(self, field.name) for field in fields(Local)}
        return Local(**values)


def _spelled(url: str) -> tuple[str | None, int]:
    """Return host and port of an address in a normalised form, to compare addresses."""
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname
    return host, parts.port or 80


def _is_url(url: str) -> bool:
    """Return True for a server address: plain HTTP, a host, and nothing after the port."""
    parts = urlsplit(url)
    try:
        parts.port  # noqa: B018 - reading it raises ValueError for an invalid port
    except ValueError:
        return False
    has_only_host = bool(parts.hostname) and parts.path in ("", "/") and not parts.query
    return parts.scheme == "http" and has_only_host

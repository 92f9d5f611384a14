"""A model on this machine, by the lab's own sampler. What an answer must look like is left to the instructions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.core.console import progress
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.tools import call_id, with_id
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.packs.judging.judges.backends.settings import LocalModel
from rlhf_lab.packs.judging.judges.call_ids import calls_before
from rlhf_lab.packs.judging.judges.caller import Caller
from rlhf_lab.packs.judging.judges.requests import Completer, Reply, Request, Usage
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.sampling.turns import RowTokens
from rlhf_lab.training.run import seed_for

TEMPERATURE, MAX_PROMPT_TOKENS, BATCH_ROWS = LocalModel.temperature, LocalModel.max_prompt_tokens, LocalModel.batch_rows


class LocalBackend:
    """A causal language model with its chat template, or with the plain transcript where it has none.

    An answer follows from the request and its draw alone: whichever other requests are asked with it, and in which
    batch it is sampled. Each process answers by itself what it is asked.

    Args:
        load: called before the first answer: the model, on any device, and its encoder.
        identity: everything that decides the answers but the requests.
        name: of the model, for the progress bar.
        section: of the config that has the settings, for messages.
        note: called with remarks for the person who reads the result.
    """

    def __init__(
        self,
        load: Callable[[], tuple[nn.Module, Encoder]],
        identity: Mapping[str, Any],
        *,
        temperature: float = TEMPERATURE,
        max_prompt_tokens: int = MAX_PROMPT_TOKENS,
        batch_rows: int = BATCH_ROWS,
        name: str = "the model",
        section: str = "judge",
        note: Callable[[str], None] = lambda text: None,
    ):
        self._load, self.identity = load, identity
        self.temperature, self.max_prompt_tokens, self.batch_rows = temperature, max_prompt_tokens, batch_rows
        self.name, self.section, self.note = name, section, note

    @cached_property
    def _loaded(self) -> tuple[nn.Module, Encoder]:
        return self._load()

    @property
    def model(self) -> nn.Module:
        return self._loaded[0]

    @property
    def encoder(self) -> Encoder:
        return self._loaded[1]

    @property
    def takes_tools(self) -> bool:
        """Whether its chat template does. Without one, tools and calls are turns of the transcript, which a model knows
        only if it was trained on them."""
        return self.encoder.takes_tools

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        """See `Completer.complete_many`. Raises ConfigError for tools that the chat template does not take."""
        self._check_tools(requests)
        cut_before = sum(self.encoder.counts.values())
        prompts = [self._prompt(request) for request in requests]
        cut = sum(self.encoder.counts.values()) - cut_before
        if cut:
            self.note(
                f"{cut} of {len(requests)} questions to the {self.section} are longer than "
                f"{self.section}.max_prompt_tokens={self.max_prompt_tokens} and lost their beginning, with the "
                "instructions"
            )
        replies: dict[int, Reply] = {}
        with progress(title or f"asking {self.name}", len(requests)) as ticker:
            for numbers in self._batches(requests, prompts):
                start = time.monotonic()
                rows = self._sample([requests[i] for i in numbers], [prompts[i] for i in numbers])
                latency_s = time.monotonic() - start
                for number, row in zip(numbers, rows, strict=True):
                    replies[number] = self._reply(requests[number], prompts[number], row, latency_s)
                ticker.advance(len(numbers))
        return [replies[number] for number in range(len(requests))]

    def _check_tools(self, requests: Sequence[Request]) -> None:
        chat = self.encoder.chat if any(request.tools for request in requests) else None
        if chat is not None and chat.call_format is None:
            raise ConfigError(
                f"the chat template of {self.name} does not take tools, or writes calls in a form that is not read; "
                "ask without tools, and say in the instructions how a call is written"
            )

    def _batches(self, requests: Sequence[Request], prompts: Sequence[list[int]]) -> list[list[int]]:
        """Numbers of requests that are sampled together: equal limits and stop texts, similar lengths."""
        alike: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            alike[request.max_tokens, request.stop].append(number)
        size = self.batch_rows
        batches = []
        for numbers in alike.values():
            by_length = sorted(numbers, key=lambda number: len(prompts[number]))
            batches += [by_length[begin : begin + size] for begin in range(0, len(by_length), size)]
        return batches

    def _sample(self, requests: Sequence[Request], prompts: Sequence[list[int]]) -> list[RowTokens]:
        settings = Local(
            temperature=self.temperature,
            max_new_tokens=requests[0].max_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
            batch_rows=self.batch_rows,
            stop=requests[0].stop,
        )
        sampler = LocalSampler(settings, self.encoder.stop_ids, decode=self.encoder.decode)
        seeds = [0] * len(requests)
        if self.temperature:
            seeds = [seed_for(request.draw, f"judge/{request.digest(self.identity)}") for request in requests]
        # a judge is often asked by the main process alone: the sampler must not wait for the others
        with ranks.alone():
            return [rows[0] for rows in sampler.sample(self.model, prompts, 1, seeds).rows_BG]

    def _reply(self, request: Request, prompt: Sequence[int], row: RowTokens, latency_s: float) -> Reply:
        if request.tools:
            message = self.encoder.message(row.token_ids, request.stop)
        else:
            message = Message(role="assistant", content=self.encoder.text(row.token_ids, request.stop))
        first = calls_before(request.messages)
        written = message.get("tool_calls", [])
        return Reply(
            text=message["content"],
            stop="end" if row.ended else "truncated",
            usage=Usage(input_tokens=len(prompt), output_tokens=len(row.token_ids)),
            tool_calls=tuple(with_id(call, call_id(number)) for number, call in enumerate(written, start=first)),
            latency_s=latency_s,
        )

    def _prompt(self, request: Request) -> list[int]:
        """Token ids of the conversation, with its instructions as the model's template takes them."""
        messages = [*request.messages]
        if self.encoder.chat is None:  # a plain transcript shows calls as the model writes them, which is without ids
            messages = [_without_ids(message) for message in messages]
        if request.system and self._takes_system:
            messages = [Message(role="system", content=request.system), *messages]
        elif request.system:
            first = messages[0]
            messages[0] = Message(role="user", content=f"{request.system}\n\n{first['content']}")
        return self.encoder.conversation(messages, request.tools, self.max_prompt_tokens)

    @cached_property
    def _takes_system(self) -> bool:
        """Whether the chat template takes instructions of their own (that of Gemma does not)."""
        messages = [Message(role="system", content="a"), Message(role="user", content="b")]
        try:
            self.encoder.prompt(render_prompt(messages))
        except DataError:
            return False
        return True


def _without_ids(message: Message) -> Message:
    """A message whose calls and results do not say which belongs to which: their order does."""
    bare = message.copy()
    bare.pop("tool_call_id", None)
    if calls := message.get("tool_calls"):
        bare["tool_calls"] = [{key: value for key, value in call.items() if key != "id"} for call in calls]
    return bare


def local_completer(
    model: nn.Module,
    encoder: Encoder,
    *,
    content: str,
    loading: Mapping[str, Any] | None = None,
    temperature: float = TEMPERATURE,
    max_prompt_tokens: int = MAX_PROMPT_TOKENS,
    batch_rows: int = BATCH_ROWS,
    section: str = "judge",
    note: Callable[[str], None] = lambda text: None,
) -> Completer:
    """A loaded model that answers requests, where it is. Weights are read at each call.

    Args:
        content: which model it is, such as `model_identity` of its folder: answers at a temperature are drawn by it.
        loading: settings that decide its answers beside its content, such as whether its chat template is used; JSON
            values.
        temperature, max_prompt_tokens, batch_rows: as of `judge=local`.
        section: of the config that has these settings, for messages.
    """
    identity = {
        "kind": "local",
        "content": content,
        **(loading or {}),
        "temperature": temperature,
        "max_prompt_tokens": max_prompt_tokens,
    }
    return LocalBackend(
        lambda: (model, encoder),
        identity,
        temperature=temperature,
        max_prompt_tokens=max_prompt_tokens,
        batch_rows=batch_rows,
        section=section,
        note=note,
    )


def build(settings: LocalModel, caller: Caller) -> LocalBackend:
    """The model is loaded before the first answer, so only where somebody asks."""

    def load() -> tuple[nn.Module, Encoder]:
        model = HuggingFace(path=settings.path)
        return load_policy(settings.path, model, device=caller.device), load_encoder(settings.path, model)

    return LocalBackend(
        load,
        # what the model's files hold: another model in the same folder is another judge
        {"kind": "local", **settings.identity(), "content": model_identity(settings.path)},
        temperature=settings.temperature,
        max_prompt_tokens=settings.max_prompt_tokens,
        batch_rows=settings.batch_rows,
        name=settings.path,
        note=caller.note,
    )

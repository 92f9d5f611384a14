"""A model on this machine, sampled by the built-in sampler. Only the instructions determine the form of an answer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.messages import Message
from rlhf_lab.core.progress import progress
from rlhf_lab.core.tools import call_id, with_id
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.encoding import Encoder
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.packs.judging.judges.backends.settings import LocalModel
from rlhf_lab.packs.judging.judges.context import JudgeContext
from rlhf_lab.packs.judging.judges.requests import Completer, Completion, CompletionRequest, Usage, calls_before
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.sampling.turns import RowTokens
from rlhf_lab.training.run import seed_for

LOSSES = {
    "turns": "their oldest turns were left out",
    "beginning": "their beginning, with the instructions, was cut off",
    "rejected": "their instructions do not fit, so they are not answered",
}
"""Part that a prompt loses if it is too long → the words of the note about it."""


@dataclass(frozen=True)
class _FittedPrompt:
    """Token ids of a prompt, and what it lost: "" or a key of LOSSES. A rejected prompt is complete."""

    ids: list[int]
    loss: str = ""


@dataclass(eq=False, kw_only=True)
class LocalBackend:
    """A causal language model with its chat template, or with the plain transcript if it has no template.

    An answer depends on the request and its draw only: not on other requests, and not on the batch it is sampled in.
    Each process answers its own requests.

    Args:
        load: returns the model, on any device, and its encoder; called before the first answer.
        identity: everything that determines the answers except the requests.
        temperature, max_prompt_tokens, batch_rows: see `judge=local`.
        name, section: name of the model, and section of the config with the settings, for messages.
        note: receives notes for the reader of the result.
        cuts_questions: True if a question that is too long loses its beginning. False rejects it, so that a model never
            answers without its instructions. In either case a conversation that is too long first loses its oldest
            turns, but not its instructions and the first messages (`CompletionRequest.kept`).
    """

    load: Callable[[], tuple[nn.Module, Encoder]]
    identity: Mapping[str, Any]
    temperature: float = LocalModel.temperature
    max_prompt_tokens: int = LocalModel.max_prompt_tokens
    batch_rows: int = LocalModel.batch_rows
    name: str = "the model"
    section: str = "judge"
    note: Callable[[str], None] = lambda text: None
    cuts_questions: bool = True

    @cached_property
    def _loaded(self) -> tuple[nn.Module, Encoder]:
        return self.load()

    @property
    def model(self) -> nn.Module:
        return self._loaded[0]

    @property
    def encoder(self) -> Encoder:
        return self._loaded[1]

    @property
    def takes_tools(self) -> bool:
        """True if the chat template accepts tools. Without a template, tools and calls are turns of the transcript,
        which a model understands only if it was trained on them."""
        return self.encoder.takes_tools

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        """See `Completer.complete_many`. Raises ConfigError if the chat template does not accept the tools."""
        self._check_tools(requests)
        fitted = [self._fit(request) for request in requests]
        self._note_losses(fitted)
        prompts = [prompt.ids for prompt in fitted]
        rejected = [number for number, prompt in enumerate(fitted) if prompt.loss == "rejected"]
        completions = {number: self._rejected(fitted[number]) for number in rejected}
        answered = [number for number in range(len(requests)) if number not in completions]
        with progress(title or f"sampling {self.name}", len(requests), len(rejected)) as ticker:
            for numbers in self._batches(answered, requests, prompts):
                batch = [requests[number] for number in numbers]
                start = time.monotonic()
                rows = self._sample(batch, [prompts[number] for number in numbers])
                latency_s = time.monotonic() - start
                for number, row in zip(numbers, rows, strict=True):
                    completions[number] = self._completion(requests[number], prompts[number], row, latency_s)
                ticker.advance(len(numbers))
        return [completions[number] for number in range(len(requests))]

    def _check_tools(self, requests: Sequence[CompletionRequest]) -> None:
        chat = self.encoder.chat if any(request.tools for request in requests) else None
        if chat is not None and chat.call_format is None:
            raise ConfigError(
                f"the chat template of {self.name} accepts no tools, or its form of calls cannot be parsed; send no "
                "tools, and describe in the instructions how to write a call"
            )

    def _batches(
        self, numbers: Sequence[int], requests: Sequence[CompletionRequest], prompts: Sequence[list[int]]
    ) -> list[list[int]]:
        """Return batches of the indices in `numbers`: equal token limits and stop strings, similar lengths."""
        equal: dict[tuple[int, tuple[str, ...]], list[int]] = defaultdict(list)
        for index in numbers:
            equal[requests[index].max_tokens, requests[index].stop].append(index)
        # sorting by length keeps the padding of a batch small
        size = self.batch_rows
        batches = []
        for members in equal.values():
            by_length = sorted(members, key=lambda number: len(prompts[number]))
            batches += [by_length[start : start + size] for start in range(0, len(by_length), size)]
        return batches

    def _sample(self, requests: Sequence[CompletionRequest], prompts: Sequence[list[int]]) -> list[RowTokens]:
        settings = Local(
            temperature=self.temperature,
            max_new_tokens=requests[0].max_tokens,
            max_prompt_tokens=self.max_prompt_tokens,
            batch_rows=self.batch_rows,
            stop=requests[0].stop,
        )
        sampler = LocalSampler(settings, self.encoder.stop_ids, decode=self.encoder.decode)
        seeds = [0] * len(requests)  # greedy sampling uses none
        if self.temperature:
            seeds = [seed_for(request.draw, f"judge/{request.digest(self.identity)}") for request in requests]
        # often only the main process sends requests to a judge, so the sampler must not wait for other processes
        with ranks.single_process():
            samples = sampler.sample(self.model, prompts, 1, seeds)
        return [row for (row,) in samples.rows_BG]

    def _completion(
        self, request: CompletionRequest, prompt: Sequence[int], row: RowTokens, latency_s: float
    ) -> Completion:
        if request.tools:
            message = self.encoder.message(row.token_ids, request.stop)
        else:
            message = Message(role="assistant", content=self.encoder.text(row.token_ids, request.stop))
        first = calls_before(request.messages)
        written = message.get("tool_calls", [])
        return Completion(
            text=message["content"],
            stop="end" if row.finished else "truncated",
            usage=Usage(input_tokens=len(prompt), output_tokens=len(row.token_ids)),
            tool_calls=tuple(with_id(call, call_id(number)) for number, call in enumerate(written, start=first)),
            latency_s=latency_s,
        )

    def _fit(self, request: CompletionRequest) -> _FittedPrompt:
        """Return the prompt of a request in at most `max_prompt_tokens` tokens."""
        limit = self.max_prompt_tokens
        messages = list(request.messages)
        ids = self._prompt(request, messages)
        if len(ids) <= limit:
            return _FittedPrompt(ids)
        turns = enumerate(messages)
        # turns of the model that may be left out
        spoken = [index for index, message in turns if message["role"] == "assistant" and index >= request.kept]
        # The latest turn is never left out: the model would repeat it.
        for latest in spoken[1:]:
            shorter = [*messages[: spoken[0]], *messages[latest:]]
            ids = self._prompt(request, shorter)
            if len(ids) <= limit:
                return _FittedPrompt(ids, "turns")
        if self.cuts_questions:
            return _FittedPrompt(self._prompt(request, messages, limit), "beginning")
        return _FittedPrompt(ids, "rejected")

    def _note_losses(self, prompts: Sequence[_FittedPrompt]) -> None:
        limit = f"{self.section}.max_prompt_tokens={self.max_prompt_tokens}"
        for loss, consequence in LOSSES.items():
            count = sum(prompt.loss == loss for prompt in prompts)
            if count:
                self.note(
                    f"{count} of {len(prompts)} questions to the {self.section} are longer than {limit}; {consequence}"
                )

    def _rejected(self, prompt: _FittedPrompt) -> Completion:
        return Completion(
            text=f"the instructions, the question and the latest turn have {len(prompt.ids)} tokens, more than "
            f"{self.section}.max_prompt_tokens={self.max_prompt_tokens}; use a model with more positions",
            stop="rejected",
        )

    def _prompt(
        self, request: CompletionRequest, messages: Sequence[Message], max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of a conversation, with its instructions in the form of the model's template."""
        messages = [*messages]
        if self.encoder.chat is None:  # a plain transcript shows calls as the model writes them: without ids
            messages = [_without_ids(message) for message in messages]
        if request.system and self._takes_system:
            messages = [Message(role="system", content=request.system), *messages]
        # without a system turn, the instructions precede the first user message
        elif request.system:
            first = messages[0]
            messages[0] = Message(role="user", content=f"{request.system}\n\n{first['content']}")
        return self.encoder.conversation(messages, request.tools, max_tokens)

    @cached_property
    def _takes_system(self) -> bool:
        """True if the chat template accepts a system message (Gemma's template does not)."""
        messages = [Message(role="system", content="a"), Message(role="user", content="b")]
        try:
            self.encoder.prompt(render_prompt(messages))
        except DataError:
            return False
        return True


def _without_ids(message: Message) -> Message:
    bare = message.copy()
    bare.pop("tool_call_id", None)
    calls = [call.copy() for call in message.get("tool_calls") or ()]
    for call in calls:
        call.pop("id", None)
    if calls:
        bare["tool_calls"] = calls
    return bare


def local_completer(
    model: nn.Module, encoder: Encoder, *, content: str, loading: Mapping[str, Any] | None = None, **options: Any
) -> Completer:
    """Return a completer for a loaded model, on its current device. It uses the weights as they are at each call.

    Args:
        content: identity of the model, such as `model_identity` of its directory. It seeds sampling at a temperature.
        loading: settings that determine the answers besides the content, such as whether the chat template is used;
            JSON values.
        options: further arguments of `LocalBackend`.
    """
    backend = LocalBackend(load=lambda: (model, encoder), identity={}, **options)
    limits = {"temperature": backend.temperature, "max_prompt_tokens": backend.max_prompt_tokens}
    backend.identity = {"kind": "local", "content": content, **(loading or {}), **limits}
    return backend


def build(settings: LocalModel, caller: JudgeContext) -> LocalBackend:
    """Return the backend. The model is loaded before the first answer, so only if there is a request."""

    def load() -> tuple[nn.Module, Encoder]:
        model = HuggingFace(path=settings.path)
        return load_policy(settings.path, model, device=caller.device), load_encoder(settings.path, model)

    return LocalBackend(
        load=load,
        # content of the model's files: another model in the same directory is another judge
        identity={"kind": "local", **settings.identity(), "content": model_identity(settings.path)},
        temperature=settings.temperature,
        max_prompt_tokens=settings.max_prompt_tokens,
        batch_rows=settings.batch_rows,
        name=settings.path,
        note=caller.note,
    )

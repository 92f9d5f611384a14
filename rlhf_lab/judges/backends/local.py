"""A model on this machine, by the lab's own sampler. What an answer must look like is left to the instructions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rlhf_lab.core.console import progress
from rlhf_lab.core.errors import DataError
from rlhf_lab.core.messages import Message
from rlhf_lab.data.transcript import render_prompt
from rlhf_lab.judges.backends.settings import LocalModel
from rlhf_lab.judges.caller import Caller
from rlhf_lab.judges.requests import Reply, Request, Usage
from rlhf_lab.models.build import load_encoder, load_policy
from rlhf_lab.models.model_files import model_identity
from rlhf_lab.models.settings import HuggingFace
from rlhf_lab.sampling.local import LocalSampler
from rlhf_lab.sampling.settings import Local
from rlhf_lab.sampling.turns import RowTokens
from rlhf_lab.training.run import seed_for


class LocalBackend:
    """A causal language model with its chat template, or with the plain transcript where it has none.

    An answer follows from the request and its draw alone: whichever other requests are asked with it, and in which
    batch it is sampled.
    """

    def __init__(self, settings: LocalModel, caller: Caller):
        self.settings, self.caller = settings, caller
        model = HuggingFace(path=settings.path)
        self.encoder = load_encoder(settings.path, model)
        self.model = load_policy(settings.path, model, device=caller.device)
        self._takes_system = self._knows_system()

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The settings, and what the model's files hold: another model in the same folder is another judge."""
        return {"kind": "local", **self.settings.identity(), "content": model_identity(self.settings.path)}

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        """See `Completer.complete_many`."""
        cut_before = sum(self.encoder.counts.values())
        prompts = [self.encoder.prompt(self._prompt(request), self.settings.max_prompt_tokens) for request in requests]
        cut = sum(self.encoder.counts.values()) - cut_before
        if cut:
            self.caller.note(
                f"{cut} of {len(requests)} questions to the judge are longer than judge.max_prompt_tokens="
                f"{self.settings.max_prompt_tokens} and lost their beginning, with the instructions"
            )
        replies: dict[int, Reply] = {}
        with progress(title or f"asking {self.settings.path}", len(requests)) as ticker:
            for numbers in self._batches(requests, prompts):
                rows = self._sample([requests[i] for i in numbers], [prompts[i] for i in numbers])
                for number, row in zip(numbers, rows, strict=True):
                    replies[number] = self._reply(prompts[number], row)
                ticker.advance(len(numbers))
        return [replies[number] for number in range(len(requests))]

    def _batches(self, requests: Sequence[Request], prompts: Sequence[list[int]]) -> list[list[int]]:
        """Numbers of requests that are sampled together: equal limits, similar lengths."""
        alike: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, request in enumerate(requests):
            # at a temperature, requests are drawn one by one: each from a seed of its own
            alone = number if self.settings.temperature else -1
            alike[request.max_tokens, alone].append(number)
        size = self.settings.batch_rows
        batches = []
        for numbers in alike.values():
            by_length = sorted(numbers, key=lambda number: len(prompts[number]))
            batches += [by_length[begin : begin + size] for begin in range(0, len(by_length), size)]
        return batches

    def _sample(self, requests: Sequence[Request], prompts: Sequence[list[int]]) -> list[RowTokens]:
        settings = Local(
            temperature=self.settings.temperature,
            max_new_tokens=requests[0].max_tokens,
            max_prompt_tokens=self.settings.max_prompt_tokens,
            batch_rows=self.settings.batch_rows,
        )
        sampler = LocalSampler(settings, self.encoder.stop_ids)
        seed = seed_for(requests[0].draw, f"judge/{requests[0].digest(self.identity)}") if settings.temperature else 0
        return [rows[0] for rows in sampler.sample(self.model, prompts, 1, seed).rows_BG]

    def _reply(self, prompt: Sequence[int], row: RowTokens) -> Reply:
        text = self.encoder.text(row.token_ids)
        usage = Usage(input_tokens=len(prompt), output_tokens=len(row.token_ids))
        return Reply(text, "end" if row.ended else "truncated", usage)

    def _prompt(self, request: Request) -> str:
        messages = [*request.messages]
        if request.system and self._takes_system:
            messages = [Message(role="system", content=request.system), *messages]
        elif request.system:
            first = messages[0]
            messages[0] = Message(role="user", content=f"{request.system}\n\n{first['content']}")
        return render_prompt(messages)

    def _knows_system(self) -> bool:
        """Whether the chat template takes instructions of their own (that of Gemma does not)."""
        messages = [Message(role="system", content="a"), Message(role="user", content="b")]
        try:
            self.encoder.prompt(render_prompt(messages))
        except DataError:
            return False
        return True


def build(settings: LocalModel, caller: Caller) -> LocalBackend:
    return LocalBackend(settings, caller)

"""A service with the store, the price and the account that its requests go by."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field

from rlhf_lab.core.console import console
from rlhf_lab.packs.judging.judges.address import url_of
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.keys import without_key
from rlhf_lab.packs.judging.judges.pacing import Limits
from rlhf_lab.packs.judging.judges.pricing import Price, body_bytes, most_input_tokens
from rlhf_lab.packs.judging.judges.requests import Reply, Request, Usage, with_texts, writable
from rlhf_lab.packs.judging.judges.service import Answer, Backend
from rlhf_lab.packs.judging.judges.store import Question, Store

MAX_TOKENS = 10**9
"""Of one answer; a service that reports more, or fewer than none, does not count tokens."""


@dataclass(frozen=True)
class Channel:
    """Attributes:
    account: what is spent counts as its.
    pause_s: seconds before the second attempt where the service names none; doubled for each further one.
    warned: what was wrong with the counts of the service, where that was printed.
    """

    backend: Backend
    settings: Service
    store: Store
    price: Price
    limits: Limits
    account: str
    pause_s: float
    warned: list[str] = field(default_factory=list)

    def question(self, request: Request) -> Question:
        """A request with what sending it takes."""
        body = self.backend.body(request)
        most_input = most_input_tokens(body, schema=request.schema is not None, tools=bool(request.tools))
        return Question(
            digest=request.digest(self.backend.identity),
            request=request,
            identity=self.backend.identity,
            bytes=body_bytes(body),
            reserve_usd=self.price.at_most(most_input, request.max_tokens, batch=self.settings.batches),
            price=self.price.source,
        )

    def reply(self, question: Question, answer: Answer, *, batch: bool = False, latency_s: float = 0.0) -> Reply:
        """An answer with its cost. Where the service counts nothing that can be true, it costs the most that it can."""
        usage = answer.usage
        if usage is not None and not _can_be_true(usage):
            self._warn(f"reports {usage}", "the most that the request can cost")
            usage = None
        counted = usage is not None or self.price.free
        usage = usage or Usage()
        cost = self.price.cost(usage, batch=batch) if counted else question.reserve_usd
        # sums of the same prices may differ by what doubles round off
        if cost > question.reserve_usd * (1 + 1e-9):
            reported = f"reports {usage}, ${cost:.6f}, where at most ${question.reserve_usd:.6f} was reserved"
            self._warn(reported, "what was reserved")
            cost = question.reserve_usd
        calls = tuple(with_texts(call, self._kept) for call in answer.tool_calls)
        blocks = tuple(with_texts(block, self._kept) for block in answer.blocks)
        text = self._kept(answer.text)
        return Reply(text, answer.stop, usage, cost, tool_calls=calls, blocks=blocks, latency_s=latency_s)

    def _warn(self, what: str, instead: str) -> None:
        """Say once that a service counts what it cannot have worked on."""
        if not self.warned:
            self.warned.append(what)
            console.print(
                f"warning: {self.settings.model} at {url_of(self.settings)} {what}; counted as {instead}, here and "
                "in further answers. Compare the ledger with the bill of the service"
            )

    def _kept(self, text: str) -> str:
        """A text of the service as it may be kept: without the key, and as SQLite and files in UTF-8 can hold it."""
        return writable(without_key(text, self.backend.key))


def _can_be_true(usage: Usage) -> bool:
    return all(0 <= tokens <= MAX_TOKENS for tokens in astuple(usage))

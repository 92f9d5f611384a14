"""A service with the store, the price and the account that its requests go by."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_lab.judges.backends.settings import Service
from rlhf_lab.judges.keys import without_key
from rlhf_lab.judges.pacing import Limits
from rlhf_lab.judges.pricing import Price, body_bytes, most_input_tokens
from rlhf_lab.judges.requests import Reply, Request, Usage, with_texts, writable
from rlhf_lab.judges.service import Answer, Backend
from rlhf_lab.judges.store import Question, Store


@dataclass(frozen=True)
class Channel:
    """Attributes:
    account: what is spent counts as its.
    pause_s: seconds before the second attempt where the service names none; doubled for each further one.
    """

    backend: Backend
    settings: Service
    store: Store
    price: Price
    limits: Limits
    account: str
    pause_s: float

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
        """An answer with its cost. Where the service counts nothing, it costs the most that it can."""
        counted = answer.usage is not None or self.price.free
        usage = answer.usage or Usage()
        cost = self.price.cost(usage, batch=batch) if counted else question.reserve_usd
        calls = tuple(with_texts(call, self._kept) for call in answer.tool_calls)
        blocks = tuple(with_texts(block, self._kept) for block in answer.blocks)
        text = self._kept(answer.text)
        return Reply(text, answer.stop, usage, cost, tool_calls=calls, blocks=blocks, latency_s=latency_s)

    def _kept(self, text: str) -> str:
        """A text of the service as it may be kept: without the key, and as SQLite and files in UTF-8 can hold it."""
        return writable(without_key(text, self.backend.key))

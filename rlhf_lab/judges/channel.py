"""A service with the store, the price and the account that its requests go by."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_lab.judges.backends.settings import Service
from rlhf_lab.judges.keys import without_key
from rlhf_lab.judges.pacing import Limits
from rlhf_lab.judges.pricing import Price, body_bytes, most_input_tokens
from rlhf_lab.judges.requests import Reply, Request, Usage
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
        most_input = most_input_tokens(body, schema=request.schema is not None)
        return Question(
            digest=request.digest(self.backend.identity),
            request=request,
            identity=self.backend.identity,
            bytes=body_bytes(body),
            reserve_usd=self.price.at_most(most_input, request.max_tokens, batch=self.settings.batches),
            price=self.price.source,
        )

    def reply(self, question: Question, answer: Answer, *, batch: bool = False) -> Reply:
        """An answer with its cost. Where the service counts nothing, it costs the most that it can."""
        counted = answer.usage is not None or self.price.free
        usage = answer.usage or Usage()
        cost = self.price.cost(usage, batch=batch) if counted else question.reserve_usd
        text = without_key(answer.text, self.backend.key)
        # JSON may hold half a surrogate pair, which neither SQLite nor a file in UTF-8 can
        return Reply(text.encode("utf-8", "replace").decode(), answer.stop, usage, cost)

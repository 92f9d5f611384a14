"""A service together with the store, price, rate limits and account of its requests."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field

from rlhf_lab.core.console import console
from rlhf_lab.core.text import with_texts
from rlhf_lab.packs.judging.judges.access import url_of, without_key
from rlhf_lab.packs.judging.judges.backends.sdk import SdkBackend
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.ledger import PendingRequest
from rlhf_lab.packs.judging.judges.pacing import RateLimits
from rlhf_lab.packs.judging.judges.pricing import Price, body_bytes, max_input_tokens
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest, Usage
from rlhf_lab.packs.judging.judges.service import ServiceAnswer
from rlhf_lab.packs.judging.judges.store import Store

MAX_TOKENS = 10**9
"""Maximum number of tokens of one answer. A service that reports more, or a negative number, does not count tokens."""
MAX_BYTES_PER_TOKEN = 16
"""Maximum number of bytes per reported token. Texts have 2 to 6, so a service that reports fewer tokens than this
implies does not count them."""


@dataclass(frozen=True)
class Channel:
    """A service with the store, price, rate limits and account of its requests.

    Attributes:
        pause_s: seconds before the second attempt if the service names no pause; doubled for each further attempt.
        warned: warnings that were printed about the service's token counts.
    """

    backend: SdkBackend
    settings: Service
    store: Store
    price: Price
    limits: RateLimits
    account: str
    pause_s: float
    warned: list[str] = field(default_factory=list)

    def question(self, request: CompletionRequest) -> PendingRequest:
        """Return a request with its digest, its size and its maximum cost."""
        body = self.backend.body(request)
        max_input = max_input_tokens(body, schema=request.schema is not None, tools=bool(request.tools))
        return PendingRequest(
            digest=request.digest(self.backend.identity),
            request=request,
            identity=self.backend.identity,
            bytes=body_bytes(body),
            reserve_usd=self.price.at_most(max_input, request.max_tokens, batch=self.settings.batches),
            price=self.price.source,
        )

    def completion(
        self, question: PendingRequest, answer: ServiceAnswer, *, batch: bool = False, latency_s: float = 0.0
    ) -> Completion:
        """Return an answer with its cost.

        If the reported token counts are missing or implausible, the answer costs the request's maximum. Otherwise
        spending would be undercounted when a service, or a proxy before it, reports no tokens.
        """
        usage = answer.usage
        is_paid = answer.charged and not self.price.free
        is_wrong = usage is not None and not all(0 <= tokens <= MAX_TOKENS for tokens in astuple(usage))
        if is_wrong or (is_paid and (usage is None or _is_too_low(usage, question.request, answer))):
            self._warn(f"reports {usage or 'no tokens'}", "the maximum cost of the request")
            usage = None
        cost = question.reserve_usd if usage is None and is_paid else self.price.cost(usage or Usage(), batch=batch)
        # sums of the same prices may differ by rounding errors
        if cost > question.reserve_usd * (1 + 1e-9):
            reported = f"reports {usage}, ${cost:.6f}, although at most ${question.reserve_usd:.6f} was reserved"
            self._warn(reported, "the reserved amount")
            cost = question.reserve_usd
        # a model may repeat a key that it has seen; it must not reach the store
        calls, blocks, text = with_texts((answer.tool_calls, answer.blocks, answer.text), self._without_key)
        return Completion(
            text, answer.stop, usage or Usage(), cost, tool_calls=calls, blocks=blocks, latency_s=latency_s
        )

    def _warn(self, what: str, instead: str) -> None:
        if not self.warned:
            self.warned.append(what)
            console.print(
                f"warning: {self.settings.model} at {url_of(self.settings)} {what}. This answer and later ones are "
                f"counted as {instead}. Compare the ledger with the service's bill"
            )

    def _without_key(self, text: str) -> str:
        return without_key(text, self.backend.key)


def _is_too_low(usage: Usage, request: CompletionRequest, answer: ServiceAnswer) -> bool:
    texts = [request.system, *(message["content"] for message in request.messages)]
    # the text of a refusal may come from the service, not from the model
    written = "" if answer.stop == "refused" else answer.text
    pairs = ((usage.read_tokens, "".join(texts)), (usage.output_tokens, written))
    return any(tokens * MAX_BYTES_PER_TOKEN < len(text.encode("utf-8", "replace")) for tokens, text in pairs)

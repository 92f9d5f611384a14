"""Requests as batches, at half the price: written down, sent, looked at until they end, read in any order.

A batch whose creation was interrupted (the process was killed, the answer to the POST never came) is looked for at the
service before anything is sent again. A batch that has one of the requests is waited for whoever sent it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rlhf_lab.core.console import console
from rlhf_lab.packs.judging.judges.channel import Channel
from rlhf_lab.packs.judging.judges.pacing import backoff_s
from rlhf_lab.packs.judging.judges.requests import Reply
from rlhf_lab.packs.judging.judges.service import Answer, BatchItem, ServiceError
from rlhf_lab.packs.judging.judges.store import LONGEST_SENDING_S, Batch, OverBudget, Question, item_name

LOOKS_FOR_INTERRUPTED = 2
"""Looks for a batch whose creation was interrupted: one that is just being taken in may not be listed at the first."""
ROUNDS = 3
"""Batches in a row that may come back without an answer to any of the requests."""
NOT_FOUND = 404
MOST_BYTES = 100_000_000
"""Of one batch; the services take 200 MB (OpenAI) and 256 MB (Anthropic)."""

Keep = Callable[[str, Reply], None]
Seen = TypeVar("Seen")


class BatchRuns:
    """The batches of one call.

    Args:
        keep: called with the digest and the reply of each answer.
        create: whether to send new batches; those that are under way are waited for in any case.
    """

    def __init__(self, channel: Channel, keep: Keep, *, create: bool):
        self.channel, self.keep, self.create = channel, keep, create
        self.store, self.backend, self.settings = channel.store, channel.backend, channel.settings
        self._read: dict[str, Reply] = {}  # by digest: answers that this call has read, with their cost

    def run(self, questions: Sequence[Question]) -> list[Question]:
        """Answers by batches; returns the questions that are left for single requests.

        Raises ServiceError where the service is away or refuses a request, OverBudget where a batch is not covered.
        """
        left = {question.digest: question for question in questions}
        fruitless = 0
        while left:
            over_budget = self._send_new(left) if self.create else None
            open_batches = self.store.open_batches(left)
            if over_budget is not None and not open_batches:
                if not over_budget.may_pass:
                    raise over_budget
                time.sleep(min(1.0, self.settings.poll_s))
                continue
            refusals = [refused for batch in open_batches if (refused := self._finish(batch)) is not None]
            answered = self.store.replies(left)
            for digest, reply in answered.items():
                del left[digest]
                self.keep(digest, self._read.get(digest, reply))
            if refusals:
                raise refusals[0]
            if not self.create:
                break
            fruitless = 0 if answered else fruitless + 1
            if fruitless == ROUNDS:
                raise ServiceError(f"{len(left)} requests came back from {ROUNDS} batches without an answer", "refused")
        return list(left.values())

    # --- sending

    def _send_new(self, left: Mapping[str, Question]) -> OverBudget | None:
        """Send what is in no batch yet; returns what stopped it where the budget does not cover all of it now.

        What is under way may cost less than is reserved for it, and then there is more for the rest.
        """
        covered = {digest for batch in self.store.open_batches(left) for digest in batch.digests.values()}
        for part in self._parts([question for digest, question in left.items() if digest not in covered]):
            try:
                name, attempts = self.store.begin_batch(part, self.channel.account, self.settings.budget_usd)
            except OverBudget as error:
                return error
            if attempts:  # else others have asked or answered them meanwhile
                items = [BatchItem(item_name(name, attempt.id), attempt.question.request) for attempt in attempts]
                try:
                    self._send(name, items)
                finally:
                    self.store.give_up_sending(name)
        return None

    def _send(self, name: str, items: Sequence[BatchItem]) -> None:
        failures = 0
        while True:
            try:
                remote = self.backend.create_batch(name, items)
            except ServiceError as error:
                failures += 1
                if error.fate == "lost" and self._find(name, time.time(), len(items)):
                    return
                if not error.passing or failures > self.settings.retries:
                    self.store.end_batch(name, "failed", error.message)
                    raise
                time.sleep(error.retry_after_s or backoff_s(failures, self.channel.pause_s))
            else:
                self.store.batch_sent(name, remote)
                return

    def _parts(self, questions: Sequence[Question]) -> list[list[Question]]:
        """Questions in batches that the service takes."""
        parts: list[list[Question]] = []
        size = 0
        for question in questions:
            if not parts or len(parts[-1]) == self.settings.batch_requests or size + question.bytes > MOST_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(question)
            size += question.bytes
        return parts

    # --- one that is under way

    def _finish(self, batch: Batch) -> ServiceError | None:
        """Wait until a batch has ended and keep its results; returns the error of a request that it refused."""
        if self.store.is_being_sent(batch):
            age_s = time.time() - batch.began
            console.print(
                f"  waiting for another process, which has been sending batch {batch.name} for {age_s:.0f} s; after "
                f"{LONGEST_SENDING_S:.0f} s it is looked for at the service"
            )
        while self.store.is_being_sent(batch):
            time.sleep(min(1.0, self.settings.poll_s))
            found = [other for other in self.store.open_batches(batch.digests.values()) if other.name == batch.name]
            if not found:
                return None
            batch = found[0]
        remote = batch.remote or self._find(batch.name, batch.began, len(batch.digests))
        if not remote:
            self.store.end_batch(batch.name, "failed", "its creation was interrupted, and the service does not have it")
            return None
        failed = self._wait(remote, len(batch.digests))
        if failed:
            self.store.end_batch(batch.name, "failed", failed)
            return ServiceError(f"the service refused a batch: {failed}", "refused")
        refused = self._keep_results(batch, remote)
        self.store.end_batch(batch.name, "done")
        return refused

    def _wait(self, remote: str, items: int) -> str:
        """Look at a batch until it has ended; why the service refused it as a whole, or ""."""
        shown = time.monotonic()
        while True:
            try:
                status = self._patiently(lambda: self.backend.batch_status(remote))
            except ServiceError as error:
                if error.status == NOT_FOUND:
                    error.message = (
                        f"batch {remote}, which has {items} requests, is not there for this key ({error.message}); use "
                        "the key that it was sent with, or pay once more with another judge.version"
                    )
                raise
            if status.ended:
                return status.failed
            if time.monotonic() - shown > max(60.0, self.settings.poll_s):
                shown = time.monotonic()
                console.print(f"  batch {remote}: {status.done} of {items} are done")
            time.sleep(self.settings.poll_s)

    def _patiently(self, look: Callable[[], Seen]) -> Seen:
        """A look at the service, repeated while it is away. Raises the last error."""
        failures = 0
        while True:
            try:
                return look()
            except ServiceError as error:
                failures += 1
                if not error.passing or failures > self.settings.retries:
                    raise
                time.sleep(error.retry_after_s or backoff_s(failures, self.channel.pause_s))

    def _keep_results(self, batch: Batch, remote: str) -> ServiceError | None:
        """Store the results that are there; read again from the start when reading broke off."""
        refused: list[ServiceError] = []

        def read() -> None:
            refused.clear()
            for item, result in self.backend.batch_results(remote):
                if item not in batch.digests:
                    continue
                if isinstance(result, Answer):
                    question = self.store.question(item)  # it may be one that another command asked
                    reply = self.channel.reply(question, result, batch=True)
                    if self.store.item_answered(item, question, reply, result.model):
                        self._read[question.digest] = reply
                else:
                    self.store.item_failed(item, result.message, result.status)
                    if not result.passing:
                        refused.append(result)

        self._patiently(read)
        return refused[0] if refused else None

    # --- one whose creation was interrupted

    def _find(self, name: str, began: float, items: int) -> str:
        """The service's name of a batch that may have been created; "" where it was not. Written down when found."""
        for look in range(LOOKS_FOR_INTERRUPTED):
            if look:
                time.sleep(min(5.0, self.settings.poll_s))
            candidates = self._patiently(lambda: self.backend.find_batches(name, began, items))
            known = self.store.known_batches()
            for candidate in candidates:
                if candidate.remote in known:
                    continue
                if candidate.certain or self._is_ours(candidate.remote, name, items):
                    self.store.batch_sent(name, candidate.remote)
                    return candidate.remote
        return ""

    def _is_ours(self, remote: str, name: str, items: int) -> bool:
        """Whether the items of a batch carry our name, which shows when it has ended."""
        console.print(f"  waiting for batch {remote}, which may be one whose creation was interrupted")
        if self._wait(remote, items):
            return False
        first = self._patiently(lambda: next(iter(self.backend.batch_results(remote)), None))
        return first is not None and first[0].startswith(f"{name}-")

"""Requests as batches, at half the price: recorded, sent, polled until they finish, and read in any order.

The creation of a batch may be interrupted: the process was killed, or the answer to the POST never arrived. Such a
batch is searched for at the service before anything is sent again. A call waits for every batch that contains one of
its requests, whichever process sent it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rlhf_lab.core.console import console
from rlhf_lab.packs.judging.judges.channel import Channel
from rlhf_lab.packs.judging.judges.ledger import OpenBatch, OverBudget, PendingRequest, item_name
from rlhf_lab.packs.judging.judges.pacing import wait_s
from rlhf_lab.packs.judging.judges.requests import Completion, CompletionRequest
from rlhf_lab.packs.judging.judges.service import ServiceAnswer, ServiceError
from rlhf_lab.packs.judging.judges.store import LONGEST_SENDING_S

LOOKS_FOR_INTERRUPTED = 2
"""Number of searches for a batch whose creation was interrupted: a new batch may be missing from the first list."""
ROUNDS = 3
"""Maximum number of consecutive rounds of batches without an answer to any request."""
NOT_FOUND = 404  # HTTP status for a batch that does not exist for the key
MOST_BYTES = 100_000_000
"""Maximum size of one batch; the services accept 200 MB (OpenAI) and 256 MB (Anthropic)."""

Keep = Callable[[str, Completion], None]
Seen = TypeVar("Seen")


class BatchRuns:
    """The batches of one call, which waits for open batches even if `create` is False. `keep` receives the answers."""

    def __init__(self, channel: Channel, keep: Keep, *, create: bool):
        self.channel = channel
        self.keep = keep
        self.create = create
        self.store = channel.store
        self.backend = channel.backend
        self.settings = channel.settings
        self._read: dict[str, Completion] = {}  # digest → answer read by this call, with its cost (stored ones have 0)

    def run(self, questions: Sequence[PendingRequest]) -> list[PendingRequest]:
        """Answer questions through batches. Return those left for single requests. Raises ServiceError, OverBudget."""
        left = {question.digest: question for question in questions}
        fruitless = 0
        while left:
            over_budget = self._send_new(left) if self.create else None
            open_batches = self.store.open_batches(left)
            # nothing to wait for but other requests of the account, which may cost less than they reserved
            if over_budget is not None and not open_batches:
                if not over_budget.may_pass:
                    raise over_budget
                time.sleep(min(1.0, self.settings.poll_s))
                continue
            refusals = [refused for batch in open_batches if (refused := self._finish(batch)) is not None]
            answered = self.store.completions(left)
            for digest, completion in answered.items():
                del left[digest]
                self.keep(digest, self._read.get(digest, completion))
            if refusals:
                raise refusals[0]
            if not self.create:
                break
            # failed items are sent in another batch, but not forever
            fruitless = 0 if answered else fruitless + 1
            if fruitless == ROUNDS:
                raise ServiceError(f"{len(left)} requests came back from {ROUNDS} batches without an answer", "refused")
        return list(left.values())

    # --- sending

    def _send_new(self, left: Mapping[str, PendingRequest]) -> OverBudget | None:
        """Send the questions that are in no batch yet. Return an error if the budget does not cover all, else None."""
        covered = {digest for batch in self.store.open_batches(left) for digest in batch.digests.values()}
        uncovered = [question for digest, question in left.items() if digest not in covered]
        for part in self._parts(uncovered):
            try:
                name, attempts = self.store.start_batch(part, self.channel.account, self.settings.budget_usd)
            except OverBudget as error:
                return error
            if attempts:  # otherwise other processes have sent or answered the questions meanwhile
                items = {item_name(name, attempt.id): attempt.question.request for attempt in attempts}
                try:
                    self._send(name, items)
                finally:
                    # also after an error: the next process then searches for the batch
                    self.store.give_up_sending(name)
        return None

    def _send(self, name: str, items: Mapping[str, CompletionRequest]) -> None:
        failures = 0
        while True:
            try:
                remote = self.backend.create_batch(name, items)
            except ServiceError as error:
                failures += 1
                # the batch may exist although its answer was lost; sending it again would pay twice
                if error.fate == "lost" and self._find(name, time.time(), len(items)):
                    return
                try:
                    time.sleep(wait_s(error, failures, self.settings.retries, self.channel.pause_s))
                except ServiceError:
                    self.store.end_batch(name, "failed", error.message)
                    raise
            else:
                self.store.batch_sent(name, remote)
                return

    def _parts(self, questions: Sequence[PendingRequest]) -> list[list[PendingRequest]]:
        parts: list[list[PendingRequest]] = []
        size = 0
        for question in questions:
            if not parts or len(parts[-1]) == self.settings.batch_requests or size + question.bytes > MOST_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(question)
            size += question.bytes
        return parts

    # --- batches in flight

    def _finish(self, batch: OpenBatch) -> ServiceError | None:
        """Wait until a batch has finished and store its results. Return the error of a rejected request, or None."""
        if self.store.is_being_sent(batch):
            age_s = time.time() - batch.began
            console.inform(
                f"  waiting for another process, which has been sending batch {batch.name} for {age_s:.0f} s; after "
                f"{LONGEST_SENDING_S:.0f} s this process searches for the batch at the service"
            )
        while self.store.is_being_sent(batch):
            time.sleep(min(1.0, self.settings.poll_s))
            # read again, because the other process adds the service's name of the batch
            open_batches = {other.name: other for other in self.store.open_batches(batch.digests.values())}
            if batch.name not in open_batches:  # the other process has finished the batch
                return None
            batch = open_batches[batch.name]
        remote = batch.remote or self._find(batch.name, batch.began, len(batch.digests))
        if not remote:
            why = "its creation was interrupted, and the service has no such batch"
            self.store.end_batch(batch.name, "failed", why)
            return None
        failed = self._wait(remote, len(batch.digests))
        if failed:
            self.store.end_batch(batch.name, "failed", failed)
            return ServiceError(f"the service rejected a batch: {failed}", "refused")
        refused = self._keep_results(batch, remote)
        self.store.end_batch(batch.name, "done")
        return refused

    def _wait(self, remote: str, items: int) -> str:
        """Poll a batch until it has finished. Return the reason why the service rejected the entire batch, or ""."""
        shown = time.monotonic()
        while True:
            try:
                status = self._patiently(lambda: self.backend.batch_status(remote))
            except ServiceError as error:
                if error.status == NOT_FOUND:
                    error.message = (
                        f"batch {remote} with {items} requests does not exist for this key ({error.message}); use the "
                        "key that sent it, or set another judge.version to pay for the requests again"
                    )
                raise
            if status.finished:
                return status.failed
            if time.monotonic() - shown > max(60.0, self.settings.poll_s):
                shown = time.monotonic()
                console.inform(f"  batch {remote}: {status.done} of {items} are done")
            time.sleep(self.settings.poll_s)

    def _patiently(self, poll: Callable[[], Seen]) -> Seen:
        """Repeat a request to the service while it is unavailable. Raises the last error."""
        failures = 0
        while True:
            try:
                return poll()
            except ServiceError as error:
                failures += 1
                time.sleep(wait_s(error, failures, self.settings.retries, self.channel.pause_s))

    def _keep_results(self, batch: OpenBatch, remote: str) -> ServiceError | None:
        """Store the results of a batch. Reading restarts from the beginning if it is interrupted."""
        refused: list[ServiceError] = []

        def read() -> None:
            # reading may restart, so results of an interrupted attempt are dropped
            refused.clear()
            for item, result in self.backend.batch_results(remote):
                if item not in batch.digests:
                    continue
                if isinstance(result, ServiceAnswer):
                    question = self.store.question(item)  # another command may have sent it
                    completion = self.channel.completion(question, result, batch=True)
                    if self.store.item_answered(item, question, completion, result.model):
                        self._read[question.digest] = completion
                else:
                    self.store.item_failed(item, result.message, result.status)
                    if not result.passing:
                        refused.append(result)

        self._patiently(read)
        return refused[0] if refused else None

    # --- batches whose creation was interrupted

    def _find(self, name: str, began: float, items: int) -> str:
        """Return the service's name of a batch that may have been created, and record it; "" if there is none."""
        for poll in range(LOOKS_FOR_INTERRUPTED):
            if poll:  # a service may list a new batch only after some seconds
                time.sleep(min(5.0, self.settings.poll_s))
            candidates = self._patiently(lambda: self.backend.find_batches(name, began, items))
            known = self.store.known_batches()
            for remote in (remote for remote in candidates if remote not in known):
                if candidates[remote] or self._is_ours(remote, name, items):
                    self.store.batch_sent(name, remote)
                    return remote
        return ""

    def _is_ours(self, remote: str, name: str, items: int) -> bool:
        """Wait until a batch at the service has finished. Return True if its items are named after the batch `name`."""
        console.inform(f"  waiting for batch {remote}, which may be the one whose creation was interrupted")
        if self._wait(remote, items):
            return False
        first = self._patiently(lambda: next(iter(self.backend.batch_results(remote)), None))
        return first is not None and first[0].startswith(f"{name}-")

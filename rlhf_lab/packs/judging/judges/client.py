"""Client of a judge service: reads answers from the store, sends the missing requests, stores each answer at once.

Only this module retries attempts; the SDKs are told not to.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from rlhf_lab.core.console import console
from rlhf_lab.core.errors import BudgetExceeded, ConfigError, JudgeUnavailable, LabError
from rlhf_lab.core.http_retry import LONGEST_WAIT_S
from rlhf_lab.core.progress import progress
from rlhf_lab.packs.judging.judges.access import missing_model, url_of
from rlhf_lab.packs.judging.judges.backends.sdk import SdkBackend
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.batches import BatchRuns
from rlhf_lab.packs.judging.judges.channel import Channel
from rlhf_lab.packs.judging.judges.context import JudgeContext
from rlhf_lab.packs.judging.judges.ledger import AlreadyRequested, Ledger, LedgerAttempt, OverBudget, PendingRequest
from rlhf_lab.packs.judging.judges.pacing import Pacer, RateLimits, Stopped, wait_s
from rlhf_lab.packs.judging.judges.pricing import price_of
from rlhf_lab.packs.judging.judges.requests import Completer, Completion, CompletionRequest, Usage
from rlhf_lab.packs.judging.judges.service import ServiceError
from rlhf_lab.packs.judging.judges.store import IN_MEMORY, Store

ATTEMPTS_WAITED_FOR = 10
"""Number of request timeouts after which no process can still be waiting for an answer."""
SAID_AFTER_S = 5.0
"""Seconds of waiting for another process before a message is printed."""
LOOK_S = 0.1
"""Seconds between two checks whether another process has answered or budget has become free."""
TOKENS_PER_BYTE = 0.3
"""Default number of input tokens per byte, for English text and JSON; used until a rate has been measured."""
ANSWER_SHARE = 0.5
"""Default length of an answer as a fraction of `max_tokens`; used until a rate has been measured."""
SHOWN = 80
"""Maximum number of characters of a request in an error message."""
BAD_REQUEST = (400, 413, 422)
"""HTTP statuses that reject one request and say nothing about other requests."""


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of some requests (`--dry-run`).

    Attributes:
        requests, stored, to_ask: number of distinct requests, of those answered already, and of those to send.
        input_tokens, output_tokens: estimated tokens of the requests to send.
        about_usd: estimated cost, at the token rates measured for this model or else at those of English text.
        max_cost_usd: upper bound of the cost.
        price: source of the price.
        charged: True if the service charges anything.
        measured: True if the token rates were measured.
    """

    requests: int
    stored: int
    to_ask: int
    input_tokens: int = 0
    output_tokens: int = 0
    about_usd: float = 0.0
    max_cost_usd: float = 0.0
    price: str = ""
    charged: bool = False
    measured: bool = False

    def __str__(self) -> str:
        start = f"{self.requests} requests, {self.stored} answered already, {self.to_ask} to send"
        if not self.price:
            return f"{start}; nothing is sent"
        tokens = f"about {self.input_tokens:,} tokens in and {self.output_tokens:,} out"
        if not self.charged:
            return f"{start}: {tokens}; nothing is charged ({self.price})"
        rates = "token rates measured in the store" if self.measured else "token rates of English text, not measured"
        return (
            f"{start}: {tokens}, about ${self.about_usd:.4f}, at most ${self.max_cost_usd:.4f} ({self.price}; {rates})"
        )


def estimate(completer: Completer, requests: Sequence[CompletionRequest]) -> CostEstimate:
    """Return the estimated cost of `complete_many`."""
    if isinstance(completer, JudgeClient):
        return completer.estimate(requests)
    distinct = len({request.digest(completer.identity) for request in requests})
    return CostEstimate(distinct, 0, distinct)


def takes_tools(completer: Completer) -> bool:
    """Return True if the completer's model accepts tools (`CompletionRequest.tools`). Otherwise an agent describes its
    tools in the prompt.
    """
    return bool(getattr(completer, "takes_tools", False))


class JudgeClient:
    """`Completer` that sends requests to a service.

    Args:
        pause_s: seconds before the second attempt if the service names no pause; doubled for each further attempt.
    """

    def __init__(self, backend: SdkBackend, settings: Service, caller: JudgeContext, *, pause_s: float = 1.0):
        # check before the store is created
        if problem := missing_model(settings, may_ask=not caller.only_counts):
            raise ConfigError(problem)
        price = price_of(settings)
        path = Path(settings.store).expanduser() if settings.store else caller.outputs / "judges.sqlite"
        # a dry run must not create files
        if caller.only_counts and not path.exists():
            path = IN_MEMORY
        max_s = ATTEMPTS_WAITED_FOR * settings.request_timeout_s
        # paid completions must survive a power cut; free ones may skip the disk flushes
        store = Store(path, durable=not price.free, max_attempt_s=max_s)
        limits = RateLimits(settings.requests_per_minute, settings.tokens_per_minute)
        self.channel = Channel(backend, settings, store, price, limits, caller.account, pause_s)

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.channel.backend.identity

    @property
    def takes_tools(self) -> bool:
        return True

    @property
    def ledger(self) -> Ledger:
        """Spending of the context's account."""
        return self.channel.store.ledger(self.channel.account)

    def complete_many(self, requests: Sequence[CompletionRequest], *, title: str = "") -> list[Completion]:
        """See `Completer.complete_many`. After Ctrl-C or SIGTERM it waits for requests in flight and stores them."""
        channel = self.channel
        questions = [channel.question(request) for request in requests]
        distinct = {question.digest: question for question in questions}
        completions = channel.store.completions(distinct)
        missing = [question for digest, question in distinct.items() if digest not in completions]
        if missing:
            call = _Call(channel, missing, len(distinct), title or f"requests to {channel.settings.model}")
            try:
                completions |= call.run()
            except JudgeUnavailable as error:
                # answers are paid for, so the caller gets those that arrived before the error
                completions |= call.completions
                error.answers = _in_order(questions, completions)
                raise
        return _in_order(questions, completions)

    def estimate(self, requests: Sequence[CompletionRequest]) -> CostEstimate:
        """Return the estimated cost of `complete_many`. Sends nothing."""
        channel = self.channel
        questions = {question.digest: question for question in map(channel.question, requests)}
        stored = channel.store.completions(questions)
        to_ask = [question for digest, question in questions.items() if digest not in stored]
        rates = channel.store.token_rates(channel.settings.model)
        input_tokens = output_tokens = 0
        about = 0.0
        for question in to_ask:
            per_byte, output = rates or (TOKENS_PER_BYTE, ANSWER_SHARE * question.request.max_tokens)
            # the estimate ignores prompt caching
            usage = Usage(round(per_byte * question.bytes), 0, 0, min(round(output), question.request.max_tokens))
            input_tokens += usage.input_tokens
            output_tokens += usage.output_tokens
            about += channel.price.cost(usage, batch=channel.settings.batches)
        at_most = sum(question.reserve_usd for question in to_ask)
        return CostEstimate(
            requests=len(questions),
            stored=len(stored),
            to_ask=len(to_ask),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            about_usd=min(about, at_most),
            max_cost_usd=at_most,
            price=channel.price.source,
            charged=not channel.price.free,
            measured=rates is not None,
        )


def _in_order(questions: Sequence[PendingRequest], completions: Mapping[str, Completion]) -> list[Any]:
    """Return the completion of each question, None for one without. The first of equal questions carries the cost."""
    seen: set[str] = set()
    answers: list[Completion | None] = []
    for question in questions:
        completion = completions.get(question.digest)
        if completion is not None and question.digest in seen:
            completion = replace(completion, cost_usd=0.0, stored=True, stored_cost_usd=completion.paid_cost_usd)
        answers.append(completion)
        seen.add(question.digest)
    return answers


class _Call:
    """One `complete_many` call: the missing requests and the threads that send them."""

    def __init__(self, channel: Channel, missing: Sequence[PendingRequest], total: int, title: str):
        self.channel = channel
        self.missing = missing
        self.total = total
        self.title = title
        self.store = channel.store
        self.settings = channel.settings
        self.account = channel.account
        self.completions: dict[str, Completion] = {}
        self.pacer = Pacer(channel.limits)
        self._under_way = 0
        self._has_said = False
        self._lock = threading.Lock()

    def run(self) -> dict[str, Completion]:
        """Return the completions of all missing requests, by digest. Raises JudgeUnavailable or BudgetExceeded."""
        self.store.lose_abandoned()
        done = self.total - len(self.missing)
        spent = 0.0
        with progress(self.title, self.total, done) as ticker:

            def keep(digest: str, completion: Completion) -> None:
                nonlocal spent
                self.completions[digest] = completion
                spent += completion.cost_usd
                ticker.advance(1, note="" if self.channel.price.free else f"${spent:.4f}")

            try:
                # batches that an earlier process left open are read first, even if this call creates none
                runs = BatchRuns(self.channel, keep, create=self.settings.batches)
                left = runs.run(self.missing)
                if left:
                    self._ask_all(left, keep)
            except OverBudget:
                self._over_budget()
            except ServiceError as error:
                raise JudgeUnavailable(self._unavailable(error)) from None
        return self.completions

    def _ask_all(self, questions: Sequence[PendingRequest], keep: Any) -> None:
        """Send requests in threads. After the first failure, requests in flight still finish; then it is raised."""
        waiting: queue.SimpleQueue[PendingRequest] = queue.SimpleQueue()
        for question in questions:
            waiting.put(question)
        answered: queue.SimpleQueue[tuple[str, Completion] | BaseException] = queue.SimpleQueue()
        workers = min(self.settings.parallel, len(questions))

        def work() -> None:
            while True:
                try:
                    question = waiting.get_nowait()
                    answered.put((question.digest, self._ask(question)))
                except (queue.Empty, Stopped):
                    return
                # the main thread raises the error; other threads must not start new requests
                except BaseException as error:
                    self.pacer.stop()
                    answered.put(error)
                    return

        failure: BaseException | None = None
        with ThreadPoolExecutor(workers, thread_name_prefix="judge") as pool:
            running = [pool.submit(work) for _ in range(workers)]
            try:
                # the main thread polls, so that it can handle signals and update the progress bar
                while not (all(thread.done() for thread in running) and answered.empty()):
                    try:
                        outcome = answered.get(timeout=LOOK_S)
                    except queue.Empty:
                        continue
                    if isinstance(outcome, BaseException):
                        failure = failure or outcome
                    else:
                        keep(*outcome)
            except BaseException:
                self.pacer.stop()
                if self._under_way:
                    console.inform(f"  stopping: waiting for {self._under_way} answers in flight, which will be stored")
                raise
        # leaving the pool waited for all threads, so these are the answers that arrived during the shutdown
        while not answered.empty():
            outcome = answered.get()
            if not isinstance(outcome, BaseException):
                keep(*outcome)
        if failure is not None:
            raise failure

    def _ask(self, question: PendingRequest) -> Completion:
        """Return the answer to one question, with retries. Raises ServiceError, OverBudget or Stopped."""
        tokens = question.bytes // 3 + question.request.max_tokens  # an estimate: about three bytes per input token
        failures = 0
        while True:
            ticket = self.pacer.admit(tokens)
            try:
                attempt = self._start(question, ticket)
                if attempt is None:
                    continue
                if isinstance(attempt, Completion):
                    self.pacer.release(ticket)
                    return attempt
                completion = self._send(attempt)
                self.pacer.passed(ticket)
                return completion
            except ServiceError as error:
                if error.status in BAD_REQUEST and question.request.may_be_rejected:
                    self.pacer.release(ticket)
                    return Completion(error.message, "rejected")
                # requests that failed for a temporary reason are repeated
                failures += 1
                self._wait_after(error, failures, ticket)
            except BaseException:
                self.pacer.release(ticket)
                raise

    def _start(self, question: PendingRequest, ticket: int) -> LedgerAttempt | Completion | None:
        """Return `Store.start`, or None after waiting for another process or budget: the caller then tries again."""
        try:
            begun = self.store.start(question, self.account, self.settings.budget_usd)
        except AlreadyRequested:
            self._wait_for_others(question, ticket)
            return None
        except OverBudget as error:
            if not error.may_pass:
                raise
            self.pacer.release(ticket)
            self.pacer.sleep(LOOK_S)
            return None
        if isinstance(begun, LedgerAttempt):
            with self._lock:
                self._under_way += 1
        return begun

    def _wait_for_others(self, question: PendingRequest, ticket: int) -> None:
        """Wait until another process has answered a question or has abandoned it."""
        self.pacer.release(ticket)
        max_s = self.store.max_attempt_s
        start = time.monotonic()
        while time.monotonic() < start + max_s:
            self.pacer.sleep(LOOK_S)
            with self._lock:
                says = not self._has_said and time.monotonic() > start + SAID_AFTER_S
                self._has_said |= says
            if says:
                console.inform(
                    f"  another process is sending the same request: waiting at most {max_s:.0f} s for its answer"
                )
            self.store.lose_abandoned()
            if not self.store.is_requested(question.digest):
                return
        raise ServiceError(f"another process has been sending the same request for {max_s:.0f} s", "unsent")

    def _send(self, attempt: LedgerAttempt) -> Completion:
        channel = self.channel
        question = attempt.question
        start = time.monotonic()
        try:
            answer = channel.backend.send(question.request, attempt.idempotency_key)
            completion = channel.completion(question, answer, latency_s=time.monotonic() - start)
            self.store.store_completion(attempt, completion, answer.model, repeated=answer.repeated)
            return completion
        except ServiceError as error:
            if error.fate == "lost":
                self.store.mark_lost(attempt, error.message, error.status)
            else:
                self.store.failed(attempt, error.message, error.status)
            if error.status in BAD_REQUEST:
                words = question.request.messages[-1]["content"].split()
                error.message = f"{error.message}; the request begins {' '.join(words)[:SHOWN]!r}"
            raise
        except LabError:  # the store failed; an attempt that it could not finish remains `sent` there
            raise
        except BaseException as error:
            self.store.mark_lost(attempt, type(error).__name__)
            raise
        finally:
            with self._lock:
                self._under_way -= 1

    def _wait_after(self, error: ServiceError, failures: int, ticket: int) -> None:
        """Wait before the next attempt; if the service is overloaded, all threads wait. Raises the last error."""
        try:
            wait = wait_s(error, failures, self.settings.retries, self.channel.pause_s)
        except ServiceError:
            self.pacer.release(ticket)
            raise
        if error.overloaded:
            self.pacer.hold(wait)
        else:
            self.pacer.release(ticket)
            self.pacer.sleep(wait)

    def _kept(self) -> str:
        stored = self.store.completions(question.digest for question in self.missing)
        done = self.total - len(self.missing) + len(stored)
        return (
            f"{done} of {self.total} requests are answered and stored in {self.store.path}; the same command resumes "
            "there and does not pay for them again"
        )

    def _unavailable(self, error: ServiceError) -> str:
        service = f"{self.settings.model} at {url_of(self.settings)}"
        if error.retry_after_s is not None and error.retry_after_s > LONGEST_WAIT_S:
            return f"{service} asks to wait {error.retry_after_s:.0f} s: {error.message}. {self._kept()}"
        verb = "gives no usable answer" if error.fate == "lost" else "rejects a request"
        if error.passing:
            verb = f"does not answer ({self.settings.retries + 1} attempts)"
        return f"{service} {verb}: {error.message}. {self._kept()}"

    def _over_budget(self) -> NoReturn:
        ledger = self.store.ledger(self.account)
        parts = [f"${ledger.spent_usd:.4f} spent by {self.account}"]
        if ledger.open_usd:
            parts.append(f"${ledger.open_usd:.4f} reserved for requests in flight")
        if ledger.lost:
            parts.append(f"up to ${ledger.lost_usd:.4f} for {ledger.lost} requests whose answer never arrived")
        largest = max(question.reserve_usd for question in self.missing)
        raise BudgetExceeded(
            f"judge.budget_usd={self.settings.budget_usd:g} does not cover the next request, which can cost up to "
            f"${largest:.4f}: {', '.join(parts)}. {self._kept()}. Raise judge.budget_usd to continue"
        ) from None

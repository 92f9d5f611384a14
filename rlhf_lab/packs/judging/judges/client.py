"""Asks a service: looks answers up in the store, sends what is missing, keeps every answer as it comes.

This is the only place that repeats an attempt; the SDKs are told not to.
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

from rlhf_lab.core.console import console, progress
from rlhf_lab.core.errors import BudgetExceeded, ConfigError, JudgeUnavailable, LabError
from rlhf_lab.packs.judging.judges.address import url_of
from rlhf_lab.packs.judging.judges.backends.settings import Service
from rlhf_lab.packs.judging.judges.batches import BatchRuns
from rlhf_lab.packs.judging.judges.caller import Caller
from rlhf_lab.packs.judging.judges.channel import Channel
from rlhf_lab.packs.judging.judges.model_name import missing_model
from rlhf_lab.packs.judging.judges.pacing import Limits, Pacer, Stopped, backoff_s
from rlhf_lab.packs.judging.judges.pricing import price_of
from rlhf_lab.packs.judging.judges.requests import Completer, Reply, Request, Usage
from rlhf_lab.packs.judging.judges.service import Backend, ServiceError
from rlhf_lab.packs.judging.judges.store import IN_MEMORY, Asked, Attempt, Ledger, OverBudget, Question, Store

LONGEST_WAIT_S = 600.0
"""A service that asks to wait longer is not waited for: the command goes on from there later."""
ATTEMPTS_WAITED_FOR = 10
"""Timeouts of a request after which nobody can be waiting for its answer any more."""
SAID_AFTER_S = 5.0
"""Seconds of waiting for another process, after which it is said."""
LOOK_S = 0.1
"""Seconds between two looks at whether another process has answered, or budget has become free."""
TOKENS_PER_BYTE = 0.3
"""Of English text and JSON, where nothing has been measured."""
ANSWER_SHARE = 0.5
"""Of `max_tokens`, where nothing has been measured."""
SHOWN = 80
"""Characters of a request that an error shows."""
BAD_REQUEST = (400, 413, 422)
"""Statuses that mean this request and no other."""


@dataclass(frozen=True)
class Estimate:
    """What asking some requests takes (`--dry-run`).

    Attributes:
        requests: distinct ones.
        stored: of these, answered already.
        to_ask: of these, to be sent.
        input_tokens, output_tokens: about, of what is to be sent.
        about_usd: at the rates of tokens that were measured with this model, else those of English text.
        at_most_usd: reserved for it; it cannot cost more.
        price: source of the price.
        charged: whether anything is.
        measured: whether the rates were measured.
    """

    requests: int
    stored: int
    to_ask: int
    input_tokens: int = 0
    output_tokens: int = 0
    about_usd: float = 0.0
    at_most_usd: float = 0.0
    price: str = ""
    charged: bool = False
    measured: bool = False

    def __str__(self) -> str:
        start = f"{self.requests} requests, {self.stored} answered already, {self.to_ask} to ask"
        if not self.price:
            return f"{start}; nothing is sent"
        tokens = f"about {self.input_tokens:,} tokens in and {self.output_tokens:,} out"
        if not self.charged:
            return f"{start}: {tokens}; nothing is charged ({self.price})"
        rates = "tokens as measured in the store" if self.measured else "tokens as of English text, not yet measured"
        return (
            f"{start}: {tokens}, about ${self.about_usd:.4f}, at most ${self.at_most_usd:.4f} ({self.price}; {rates})"
        )


def estimate(completer: Completer, requests: Sequence[Request]) -> Estimate:
    """What `complete_many` would take."""
    if isinstance(completer, Client):
        return completer.estimate(requests)
    distinct = len({request.digest(completer.identity) for request in requests})
    return Estimate(distinct, 0, distinct)


def takes_tools(completer: Completer) -> bool:
    """Whether its models know tools (`Request.tools`); to others an agent describes them in its instructions."""
    return bool(getattr(completer, "takes_tools", False))


class Client:
    """`Completer` over a service.

    Args:
        store: None is the one that the settings name.
        pause_s: seconds before the second attempt where the service names none; doubled for each further one.
    """

    def __init__(
        self, backend: Backend, settings: Service, caller: Caller, *, store: Store | None = None, pause_s: float = 1.0
    ):
        if problem := missing_model(settings, may_ask=not caller.only_counts):
            raise ConfigError(problem)
        price = price_of(settings)
        path = Path(settings.store).expanduser() if settings.store else caller.outputs / "judges.sqlite"
        if caller.only_counts and not path.exists():
            path = IN_MEMORY
        longest_s = ATTEMPTS_WAITED_FOR * settings.request_timeout_s
        # what was paid for must survive a power cut
        store = store or Store(path, durable=not price.free, longest_attempt_s=longest_s)
        limits = Limits(settings.requests_per_minute, settings.tokens_per_minute)
        self.channel = Channel(backend, settings, store, price, limits, caller.account, pause_s)

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.channel.backend.identity

    @property
    def takes_tools(self) -> bool:
        return True

    @property
    def ledger(self) -> Ledger:
        """What the account of the caller has spent."""
        return self.channel.store.ledger(self.channel.account)

    def complete_many(self, requests: Sequence[Request], *, title: str = "") -> list[Reply]:
        """See `Completer.complete_many`. A stop (Ctrl-C, SIGTERM) waits for what is under way, and keeps it."""
        channel = self.channel
        questions = [channel.question(request) for request in requests]
        distinct = {question.digest: question for question in questions}
        replies = channel.store.replies(distinct)
        missing = [question for digest, question in distinct.items() if digest not in replies]
        if missing:
            call = _Call(channel, missing, len(distinct), title or f"asking {channel.settings.model}")
            replies |= call.run()
        seen: set[str] = set()
        answers = []
        for question in questions:  # the same question twice in one call is paid for once
            reply = replies[question.digest]
            answers.append(reply if question.digest not in seen else _stored(reply))
            seen.add(question.digest)
        return answers

    def estimate(self, requests: Sequence[Request]) -> Estimate:
        """What `complete_many` would take. Sends nothing."""
        channel = self.channel
        questions = {question.digest: question for question in map(channel.question, requests)}
        stored = channel.store.replies(questions)
        to_ask = [question for digest, question in questions.items() if digest not in stored]
        rates = channel.store.token_rates(channel.settings.model)
        input_tokens = output_tokens = 0
        about = at_most = 0.0
        for question in to_ask:
            per_byte, output = rates or (TOKENS_PER_BYTE, ANSWER_SHARE * question.request.max_tokens)
            usage = Usage(round(per_byte * question.bytes), 0, 0, min(round(output), question.request.max_tokens))
            input_tokens += usage.input_tokens
            output_tokens += usage.output_tokens
            about += channel.price.cost(usage, batch=channel.settings.batches)
            at_most += question.reserve_usd
        return Estimate(
            requests=len(questions),
            stored=len(stored),
            to_ask=len(to_ask),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            about_usd=min(about, at_most),
            at_most_usd=at_most,
            price=channel.price.source,
            charged=not channel.price.free,
            measured=rates is not None,
        )


def _stored(reply: Reply) -> Reply:
    return replace(reply, cost_usd=0.0, stored=True, stored_cost_usd=reply.asked_cost_usd)


def _beginning(request: Request) -> str:
    """The first words of a request's last message."""
    return " ".join(request.messages[-1]["content"].split())[:SHOWN]


class _Call:
    """One `complete_many`: what is still to be asked, and the threads that ask it."""

    def __init__(self, channel: Channel, missing: Sequence[Question], total: int, title: str):
        self.channel, self.missing, self.total, self.title = channel, missing, total, title
        self.store, self.settings, self.account = channel.store, channel.settings, channel.account
        self.replies: dict[str, Reply] = {}
        self.pacer = Pacer(channel.limits)
        self._under_way = 0
        self._has_said = False
        self._lock = threading.Lock()

    def run(self) -> dict[str, Reply]:
        """Replies to everything that is missing, by digest. Raises JudgeUnavailable or BudgetExceeded."""
        self.store.lose_abandoned()
        done = self.total - len(self.missing)
        spent = 0.0
        with progress(self.title, self.total, done) as ticker:

            def keep(digest: str, reply: Reply) -> None:
                nonlocal spent
                self.replies[digest] = reply
                spent += reply.cost_usd
                ticker.advance(1, note="" if self.channel.price.free else f"${spent:.4f}")

            try:
                runs = BatchRuns(self.channel, keep, create=self.settings.batches)
                left = runs.run(self.missing)
                if left:
                    self._ask_all(left, keep)
            except OverBudget:
                self._over_budget()
            except ServiceError as error:
                raise JudgeUnavailable(self._unavailable(error)) from None
        return self.replies

    def _ask_all(self, questions: Sequence[Question], keep: Any) -> None:
        """Ask with threads; the first failure ends it when what is under way has been answered."""
        waiting: queue.SimpleQueue[Question] = queue.SimpleQueue()
        for question in questions:
            waiting.put(question)
        answered: queue.SimpleQueue[tuple[str, Reply] | BaseException] = queue.SimpleQueue()
        workers = min(self.settings.parallel, len(questions))

        def work() -> None:
            while True:
                try:
                    question = waiting.get_nowait()
                    answered.put((question.digest, self._ask(question)))
                except queue.Empty:
                    return
                except Stopped:
                    return
                except BaseException as error:
                    self.pacer.stop()
                    answered.put(error)
                    return

        failure: BaseException | None = None
        with ThreadPoolExecutor(workers, thread_name_prefix="judge") as pool:
            running = [pool.submit(work) for _ in range(workers)]
            try:
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
                    console.print(f"  stopping: {self._under_way} answers are on their way and will be kept")
                raise
        while not answered.empty():
            outcome = answered.get()
            if not isinstance(outcome, BaseException):
                keep(*outcome)
        if failure is not None:
            raise failure

    def _ask(self, question: Question) -> Reply:
        """The answer to one question, after as many attempts as it takes. Raises ServiceError, OverBudget, Stopped."""
        tokens = question.bytes // 3 + question.request.max_tokens  # about; what a service counts is known later
        failures = 0
        while True:
            ticket = self.pacer.admit(tokens)
            try:
                attempt = self._begin(question, ticket)
                if attempt is None:
                    continue
                if isinstance(attempt, Reply):
                    self.pacer.release(ticket)
                    return attempt
                reply = self._send(attempt)
                self.pacer.passed(ticket)
                return reply
            except ServiceError as error:
                if error.status in BAD_REQUEST and question.request.may_be_rejected:
                    self.pacer.release(ticket)
                    return Reply(error.message, "rejected")
                failures += 1
                self._wait_after(error, failures, ticket)
            except BaseException:
                self.pacer.release(ticket)
                raise

    def _begin(self, question: Question, ticket: int) -> Attempt | Reply | None:
        """An attempt to send, or the reply that is there by now; None after a wait for others."""
        try:
            begun = self.store.begin(question, self.account, self.settings.budget_usd)
        except Asked:
            self._wait_for_others(question, ticket)
            return None
        except OverBudget as error:
            if not error.may_pass:
                raise
            self.pacer.release(ticket)
            self.pacer.sleep(LOOK_S)
            return None
        if isinstance(begun, Attempt):
            with self._lock:
                self._under_way += 1
        return begun

    def _finished_one(self) -> None:
        with self._lock:
            self._under_way -= 1

    def _wait_for_others(self, question: Question, ticket: int) -> None:
        """Wait until another process has answered a question, or has given it up."""
        self.pacer.release(ticket)
        longest = self.store.longest_attempt_s
        start = time.monotonic()
        while time.monotonic() < start + longest:
            self.pacer.sleep(LOOK_S)
            if time.monotonic() > start + SAID_AFTER_S:
                self._say_waiting(longest)
            self.store.lose_abandoned()
            if not self.store.is_asked(question.digest):
                return
        raise ServiceError(f"another process has been asking the same for {longest:.0f} s without an end", "unsent")

    def _say_waiting(self, longest_s: float) -> None:
        """Say once that another process is waited for."""
        with self._lock:
            said, self._has_said = self._has_said, True
        if not said:
            console.print(f"  another process is asking the same: waiting for its answers, {longest_s:.0f} s at most")

    def _send(self, attempt: Attempt) -> Reply:
        """One attempt, and what became of it in the ledger."""
        channel, question = self.channel, attempt.question
        start = time.monotonic()
        try:
            answer = channel.backend.send(question.request, attempt.idempotency_key)
            reply = channel.reply(question, answer, latency_s=time.monotonic() - start)
            self.store.answered(attempt, reply, answer.model, repeated=answer.repeated)
            return reply
        except ServiceError as error:
            if error.fate == "lost":
                self.store.lost(attempt, error.message, error.status)
            else:
                self.store.failed(attempt, error.message, error.status)
            if error.status in BAD_REQUEST:
                error.message = f"{error.message}; the request begins {_beginning(question.request)!r}"
            raise
        except LabError:  # the store: what it could not write stays under way there
            raise
        except BaseException as error:
            self.store.lost(attempt, type(error).__name__)
            raise
        finally:
            self._finished_one()

    def _wait_after(self, error: ServiceError, failures: int, ticket: int) -> None:
        """Wait before the next attempt, all threads where the service is overloaded. Raises the last error."""
        wait = error.retry_after_s
        if wait is None:
            wait = backoff_s(failures, self.channel.pause_s)
        if not error.passing or failures > self.settings.retries or wait > LONGEST_WAIT_S:
            self.pacer.release(ticket)
            raise error
        if error.overloaded:
            self.pacer.hold(wait)
        else:
            self.pacer.release(ticket)
            self.pacer.sleep(wait)

    def _kept(self) -> str:
        """How much there is, and how to go on."""
        stored = self.store.replies(question.digest for question in self.missing)
        done = self.total - len(self.missing) + len(stored)
        return (
            f"{done} of {self.total} requests are answered and kept in {self.store.path}; the same command goes on "
            "from there and pays for none of them again"
        )

    def _unavailable(self, error: ServiceError) -> str:
        service = f"{self.settings.model} at {url_of(self.settings)}"
        if error.retry_after_s is not None and error.retry_after_s > LONGEST_WAIT_S:
            return f"{service} asks to wait {error.retry_after_s:.0f} s: {error.message}. {self._kept()}"
        attempts = f" ({self.settings.retries + 1} attempts)" if error.passing else ""
        verb = "does not answer" if error.passing else "refuses a request"
        return f"{service} {verb}{attempts}: {error.message}. {self._kept()}"

    def _over_budget(self) -> NoReturn:
        ledger = self.store.ledger(self.account)
        parts = [f"${ledger.spent_usd:.4f} spent by {self.account}"]
        if ledger.open_usd:
            parts.append(f"${ledger.open_usd:.4f} reserved for what is under way")
        if ledger.lost:
            parts.append(f"up to ${ledger.lost_usd:.4f} for {ledger.lost} requests whose answer never came")
        most = max(question.reserve_usd for question in self.missing)
        raise BudgetExceeded(
            f"judge.budget_usd={self.settings.budget_usd:g} does not cover the next request, which can cost up to "
            f"${most:.4f}: {', '.join(parts)}. {self._kept()}. Raise judge.budget_usd to go on"
        ) from None

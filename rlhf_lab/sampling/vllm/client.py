"""HTTP client of one vLLM server: token ids in, token ids and log-probabilities out, and control of its weights.

Written for the endpoints of vLLM 0.32: `/inference/v1/generate` and those of its development mode.
"""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.files import parse_json
from rlhf_lab.core.http_client import Connection, Exchange, ExchangeLimits

MODEL = "policy"
"""Name of the model on a server; adapters on it have other names."""


class ServerFailed(LabError, RuntimeError):
    """A vLLM server ended, does not answer or rejected a request. The message names server, reason and fix."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of rows; see `sampling.settings.Local`.

    Attributes:
        stop_ids: tokens that end a turn and are part of it.
    """

    temperature: float
    stop_ids: tuple[int, ...]
    top_k: int = 0
    top_p: float = 1.0
    allowed: tuple[int, ...] = ()

    def values(self, max_tokens: int, seed: int) -> dict[str, Any]:
        """Return vLLM's sampling parameters of one row."""
        values: dict[str, Any] = {
            "n": 1,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_tokens": max_tokens,
            "logprobs": 0,  # only the log-probability of the sampled token
            "detokenize": False,
            # the model's config may name another end token, but only those of the encoder end a turn
            "ignore_eos": True,
            "stop_token_ids": list(self.stop_ids),
        }
        if self.temperature:
            values["seed"] = seed
        if self.allowed:
            values["allowed_token_ids"] = list(self.allowed)
        return values


@dataclass(frozen=True)
class SampledTurn:
    """A turn that a server sampled.

    Attributes:
        logps: log-probability of each token under the sampled distribution, nats; NaN if the server sent none.
        versions: versions of the weights that sampled the tokens.
        model: MODEL, or the name of the adapter with which the tokens were sampled.
    """

    token_ids: list[int]
    logps: list[float]
    versions: tuple[str, ...]
    model: str


class VllmClient:
    """Client of one server; it may be used from several threads.

    Args:
        timeout_s: maximum seconds of a request, from its start to the last byte of the answer.
    """

    def __init__(self, url: str, timeout_s: float):
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        self.host = parts.hostname or ""
        self.port = parts.port or 80
        self.timeout_s = timeout_s
        self._limits = ExchangeLimits(timeout_s)
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._aborts = 0  # number of calls of `abort`

    def is_healthy(self) -> bool:
        try:
            self._request("GET", "/health", None)
        except ServerFailed:
            return False
        return True

    def generate(self, model: str, prompt: Sequence[int], sampling: dict[str, Any]) -> SampledTurn:
        """Sample one row. The same request gives the same row, so it is safe to repeat it.

        Args:
            model: MODEL, or the name of an adapter.
        """
        body = {"model": model, "token_ids": list(prompt), "sampling_params": sampling}
        answer = self.post("/inference/v1/generate", body)
        try:
            (choice,) = answer["choices"]
            content = choice["logprobs"]["content"]
            # null if the server has no value, see `SampledTurn.logps`
            logps = [math.nan if item["logprob"] is None else float(item["logprob"]) for item in content]
            versions = tuple(span["version"] for span in choice["weight_versions"] or ())
            turn = SampledTurn(list(choice["token_ids"]), logps, versions, str(answer["model"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self.failed(f"sent a response that is not in the format of vLLM 0.32 ({error!r})") from error
        if not turn.token_ids or len(turn.logps) != len(turn.token_ids):
            counts = f"{len(turn.token_ids)} tokens and {len(turn.logps)} log-probabilities"
            raise self.failed(f"sent {counts}; both numbers must be equal and positive")
        return turn

    def call_workers(self, method: str, *arguments: str) -> list[Any]:
        """Call a method of every worker of the server (plugin/lab_worker.py). Returns one result per worker."""
        answer = self.post("/collective_rpc", {"method": method, "args": list(arguments)})
        return list(answer["results"])

    def adapters(self) -> list[str]:
        models = parse_json(self._request("GET", "/v1/models", None))["data"]
        return [model["id"] for model in models if model["id"] != MODEL]

    def add_adapter(self, name: str, directory: Path) -> None:
        """Make the server load an adapter, in peft's format, under a new name."""
        body = {"lora_name": name, "lora_path": str(directory)}
        self._request("POST", "/v1/load_lora_adapter", json.dumps(body).encode())  # the answer is text, not JSON

    def remove_adapter(self, name: str) -> None:
        body = json.dumps({"lora_name": name}).encode()
        self._request("POST", "/v1/unload_lora_adapter", body)

    def sleep(self, level: int) -> None:
        """Make the server free its GPU memory. It then samples nothing until `wake_up`.

        Args:
            level: 1 keeps the weights in host memory, 2 discards them.
        """
        self.post(f"/sleep?level={level}")

    def is_sleeping(self) -> bool:
        return bool(parse_json(self._request("GET", "/is_sleeping", None))["is_sleeping"])

    def wake_up(self) -> None:
        self.post("/wake_up")

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a POST request. Returns the answer's JSON, or None without a body. Raises ServerFailed."""
        encoded = None if body is None else json.dumps(body).encode()
        content = self._request("POST", path, encoded)
        return parse_json(content) if content else None

    def abort(self) -> None:
        """Close all connections: pending requests fail at once, and the server drops them."""
        with self._lock:
            self._aborts += 1
            connections = [*self._busy, *self._idle]
            self._idle.clear()
        for connection in connections:
            sock = connection.sock  # read once, because another thread may set it to None meanwhile
            if sock is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)  # `close` would not wake a thread that reads from the socket

    def failed(self, what: str) -> ServerFailed:
        return ServerFailed(
            f"the vLLM server at {self.url} {what}. Check what it printed last, restart it and repeat the command: "
            "the stage resumes from its last checkpoint"
        )

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
            aborts = self._aborts
        if connection is not None:
            try:
                return self._exchange(connection, method, path, body)
            except (OSError, HTTPException) as error:
                if aborts != self._aborts:
                    raise self.failed("had not answered when its requests were aborted") from error
                # The server closes idle connections, so try again on a new one: all requests are safe to repeat.
        connection = Connection(self.host, self.port, exchange=Exchange(self._limits))
        try:
            return self._exchange(connection, method, path, body)
        except (OSError, HTTPException) as error:
            raise self.failed(f"does not answer {path} ({type(error).__name__}: {error})") from error

    def _exchange(self, connection: Connection, method: str, path: str, body: bytes | None) -> bytes:
        """Send one request on a connection, which is closed if it breaks. A request that timed out is not repeated."""
        with self._lock:
            self._busy.add(connection)
        connection.exchange = Exchange(self._limits)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        except TimeoutError as error:
            connection.close()
            raise self.failed(f"did not answer {path} within {self.timeout_s:g} s (rollout.timeout_s)") from error
        except (OSError, HTTPException):  # the caller decides whether to send it again
            connection.close()
            raise
        finally:
            with self._lock:
                self._busy.discard(connection)
        with self._lock:
            self._idle.append(connection)
        if response.status != 200:
            raise self.failed(f"rejected {path}: {_reason(response, content)}")
        return content


def _reason(response: HTTPResponse, content: bytes) -> str:
    try:
        error = parse_json(content)
        problem = error["error"]
        text = str(problem["message"] if isinstance(problem, dict) else problem)
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return f"{response.status} {' '.join(text.split())[:400]}"

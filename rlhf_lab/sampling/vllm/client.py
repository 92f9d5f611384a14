"""One vLLM server over HTTP: token ids in, token ids and log-probabilities out, and what controls its weights.

Written against the endpoints of vLLM 0.32: `/inference/v1/generate` and those of its development mode.
"""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rlhf_lab.core.errors import LabError
from rlhf_lab.core.files import parse_json

MODEL = "policy"
"""The name by which servers know their model; adapters on it have others."""


class ServerFailed(LabError, RuntimeError):
    """A vLLM server ended, does not answer or refused a request. Names it, and says why and what to do."""


@dataclass(frozen=True)
class Sampling:
    """How rows are sampled; see `sampling.settings.Local`.

    Attributes:
        stop_ids: tokens that end a turn, and belong to it.
    """

    temperature: float
    stop_ids: tuple[int, ...]
    top_k: int = 0
    top_p: float = 1.0
    allowed: tuple[int, ...] = ()

    def values(self, max_tokens: int, seed: int) -> dict[str, Any]:
        """vLLM's sampling parameters of one row."""
        values: dict[str, Any] = {
            "n": 1,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_tokens": max_tokens,
            "logprobs": 0,  # that of the sampled token, and no others
            "detokenize": False,
            # The model's config may name an end of its own: only the encoder's end a turn.
            "ignore_eos": True,
            "stop_token_ids": list(self.stop_ids),
        }
        if self.temperature:
            values["seed"] = seed
        if self.allowed:
            values["allowed_token_ids"] = list(self.allowed)
        return values


@dataclass(frozen=True)
class Turn:
    """What a server sampled.

    Attributes:
        logps: of each token under the sampled distribution, nats; NaN where the server could not say.
        versions: of the weights that drew the tokens.
        model: MODEL, or the name of the adapter with which they were drawn.
    """

    token_ids: list[int]
    logps: list[float]
    versions: tuple[str, ...]
    model: str


class Client:
    """Asks one server; safe to use from several threads.

    Args:
        url: such as http://127.0.0.1:8000.
        timeout_s: seconds that a request may take.
    """

    def __init__(self, url: str, timeout_s: float):
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._idle: list[HTTPConnection] = []
        self._busy: set[HTTPConnection] = set()
        self._aborts = 0

    def is_healthy(self) -> bool:
        """Whether the server answers now."""
        try:
            self._request("GET", "/health", None)
        except ServerFailed:
            return False
        return True

    def generate(self, model: str, prompt: Sequence[int], sampling: dict[str, Any]) -> Turn:
        """Sample one row. The same request gives the same row, so it is safe to repeat.

        Args:
            model: MODEL, or the name of an adapter.
        """
        body = {"model": model, "token_ids": list(prompt), "sampling_params": sampling}
        answer = self.post("/inference/v1/generate", body)
        try:
            (choice,) = answer["choices"]
            content = choice["logprobs"]["content"]
            logps = [math.nan if item["logprob"] is None else float(item["logprob"]) for item in content]
            versions = tuple(span["version"] for span in choice["weight_versions"] or ())
            turn = Turn(list(choice["token_ids"]), logps, versions, str(answer["model"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self.failed(f"sent what is no reply of vLLM 0.32 ({error!r})") from error
        if not turn.token_ids or len(turn.logps) != len(turn.token_ids):
            raise self.failed(f"sent {len(turn.token_ids)} tokens and {len(turn.logps)} log-probabilities")
        return turn

    def call_workers(self, method: str, *arguments: str) -> list[Any]:
        """Call a method of every worker of the server (plugin/lab_worker.py); a result for each."""
        answer = self.post("/collective_rpc", {"method": method, "args": list(arguments)})
        return list(answer["results"])

    def adapters(self) -> list[str]:
        """Names of the adapters that the server has."""
        models = parse_json(self._request("GET", "/v1/models", None))["data"]
        return [model["id"] for model in models if model["id"] != MODEL]

    def add_adapter(self, name: str, folder: Path) -> None:
        """Let the server load an adapter, in peft's format, under a new name."""
        body = {"lora_name": name, "lora_path": str(folder)}
        self._request("POST", "/v1/load_lora_adapter", json.dumps(body).encode())  # answered with text

    def remove_adapter(self, name: str) -> None:
        self._request("POST", "/v1/unload_lora_adapter", json.dumps({"lora_name": name}).encode())

    def sleep(self, level: int) -> None:
        """Let the server give the memory of its GPU back. It then answers no request for a reply.

        Args:
            level: 1 keeps the weights in host memory, 2 forgets them.
        """
        self.post(f"/sleep?level={level}")

    def is_sleeping(self) -> bool:
        return bool(parse_json(self._request("GET", "/is_sleeping", None))["is_sleeping"])

    def wake_up(self) -> None:
        self.post("/wake_up")

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST → the answer's JSON; None where it has none. Raises ServerFailed."""
        content = self._request("POST", path, None if body is None else json.dumps(body).encode())
        return parse_json(content) if content else None

    def abort(self) -> None:
        """Close all connections: requests that are being answered fail at once, and the server drops them."""
        with self._lock:
            self._aborts += 1
            connections = [*self._busy, *self._idle]
            self._idle.clear()
        for connection in connections:
            sock = connection.sock  # another thread may take it away meanwhile
            if sock is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)  # `close` would not wake a thread that reads from it

    def failed(self, what: str) -> ServerFailed:
        return ServerFailed(
            f"the vLLM server at {self.url} {what}. See what it printed last, start it again and repeat the command: "
            "the stage goes on from its last checkpoint"
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
                    raise self.failed("was not waited for") from error
                # The server closes connections that have been idle. Everything asked here may be asked twice.
        connection = HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            return self._exchange(connection, method, path, body)
        except (OSError, HTTPException) as error:
            raise self.failed(f"does not answer {path} ({type(error).__name__}: {error})") from error

    def _exchange(self, connection: HTTPConnection, method: str, path: str, body: bytes | None) -> bytes:
        """One request on a connection, which is closed if it breaks. What takes too long is not asked again."""
        with self._lock:
            self._busy.add(connection)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            response = connection.getresponse()
            content = response.read()
        except TimeoutError as error:
            connection.close()
            raise self.failed(f"did not answer {path} within {self.timeout_s:g} s (rollout.timeout_s)") from error
        except (OSError, HTTPException):
            connection.close()
            raise
        finally:
            with self._lock:
                self._busy.discard(connection)
        with self._lock:
            self._idle.append(connection)
        if response.status != 200:
            raise self.failed(f"refused {path}: {_reason(response, content)}")
        return content


def _reason(response: HTTPResponse, content: bytes) -> str:
    """What a server says of its refusal, in one line."""
    try:
        error = parse_json(content)
        text = str(error["error"]["message"] if isinstance(error["error"], dict) else error["error"])
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return f"{response.status} {' '.join(text.split())[:400]}"

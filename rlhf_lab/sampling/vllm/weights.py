"""Which servers there are, and which weights they have: a model is sent when it is another one than they have.

The trainer's main process writes the model into a folder in Hugging Face's format, and every worker of every server
reads it from there: one machine, or a file system that all of them share. An adapter is sent merged.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.models import lora
from rlhf_lab.models.model_files import positions
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.sampling.vllm import environment
from rlhf_lab.sampling.vllm.client import Client, ServerFailed
from rlhf_lab.sampling.vllm.server import Server, Serving

Rows = TypeVar("Rows")

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes of a number → the integers of that size."""
OF_A_COPY = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Of a config: what loading and saving a model change in it."""
LONGEST_GOODBYE_S = 10.0
"""Seconds to wait for rows that are given up: requests end at once, an environment that hangs does not."""
USUAL_CONTEXT = 4096
"""Tokens that a started server holds of a row, at least, where the model has as many positions."""


@dataclass(frozen=True)
class Loaded:
    """What the servers have, as every process is told.

    Attributes:
        urls: of the servers.
        version: that they name with every token which these weights draw.
        positions: longest prompt with its reply.
    """

    urls: tuple[str, ...]
    version: str
    positions: int


class Servers:
    """The servers of one `rollout`; every process of a stage has this object, and the main one acts.

    Args:
        start: starts a server for mode=spawn.
    """

    def __init__(self, settings: Vllm, start: Callable[..., Server] = Server):
        self.settings, self.start = settings, start
        self.clients: dict[str, Client] = {}
        self.sent_s: list[float] = []  # seconds of each time that weights were sent
        self._run = uuid.uuid4().hex[:8]
        self._loaded: Loaded | None = None
        self._fingerprint: Hashable = None
        self._server: Server | None = None
        self._architecture = ""
        self._lock = threading.Lock()
        self._background: Future[Any] | None = None  # rows that are sampled while the trainer does something else

    def update(self, model: nn.Module, longest: int) -> Loaded:
        """Make the servers have the weights of a model. All processes must call it.

        Args:
            model: with whole parameters.
            longest: tokens of the longest row that will be asked for.
        Raises:
            ServerFailed: a server does not answer or does not take the weights.
            ConfigError: a server was started for something else.
        """
        if self._background is not None:
            wait([self._background])  # its rows are of the weights that the servers have
            ranks.wait()
        loaded = ranks.on_main(lambda: self._update(model, longest))
        if longest > loaded.positions:
            raise ConfigError(
                f"a row may have {longest} tokens and the vLLM server holds {loaded.positions}; set "
                f"rollout.context_tokens={longest}, or start the server with --max-model-len {longest}"
            )
        return loaded

    def client(self, url: str) -> Client:
        with self._lock:
            if url not in self.clients:
                self.clients[url] = Client(url, self.settings.timeout_s)
            return self.clients[url]

    def begin(self, sample_rows: Callable[[], Rows]) -> Callable[[], Rows]:
        """Run this beside the trainer, one such at a time. Returns what waits for its result."""
        pool = ThreadPoolExecutor(1)
        self._background = under_way = pool.submit(sample_rows)
        pool.shutdown(wait=False)

        def result() -> Rows:
            try:
                return under_way.result()
            finally:
                if under_way.done():  # kept, it would keep the servers alive after an error
                    self._background = None

        return result

    def give_up(self) -> None:
        """End what runs beside the trainer, if anything does."""
        under_way, self._background = self._background, None
        deadline = time.monotonic() + LONGEST_GOODBYE_S
        while under_way is not None and not under_way.done() and time.monotonic() < deadline:
            self.abort()  # again, for it may have asked for more since
            wait([under_way], timeout=0.1)

    def abort(self) -> None:
        """Give up all requests of this process that are not answered yet."""
        with self._lock:
            clients = list(self.clients.values())
        for client in clients:
            client.abort()

    def explained(self, error: ServerFailed) -> ServerFailed:
        """The error, with what a server that the lab started printed last."""
        if self._server is None:
            return error
        state = "is running" if self._server.is_running else "has ended"
        return ServerFailed(f"{error}. The server {state}; it printed last:\n{self._server.last_lines()}")

    def _update(self, model: nn.Module, longest: int) -> Loaded:
        urls = self._urls(model, longest)
        fingerprint = (urls, fingerprint_of(model))
        if self._loaded is not None and self._fingerprint == fingerprint:
            return self._loaded
        self._loaded = None  # until all servers have taken the weights, what they have is not known
        version = f"{self._run}-{len(self.sent_s) + 1}"
        started = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="rlhf_lab_weights_", dir=self.settings.weights_folder or None))
        try:
            lora.merged(model).save_pretrained(folder)  # type: ignore[operator]
            with ThreadPoolExecutor(len(urls)) as pool:
                held = list(pool.map(lambda url: self._send(self.client(url), folder, version, model), urls))
        except ServerFailed as error:
            raise self.explained(error) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.sent_s.append(time.monotonic() - started)
        self._loaded = Loaded(urls, version, min(held))
        self._fingerprint = fingerprint
        return self._loaded

    def _send(self, client: Client, folder: Path, version: str, model: nn.Module) -> int:
        """Give one server new weights. Returns the longest row that it holds, in tokens."""
        described = client.call_workers("lab_describe")[0]
        _require_fit(client.url, described, self._dtype(model))
        # What is left of a run that was killed must not go on with other weights, nor stay in the cache of prompts.
        client.post("/pause?mode=abort")
        try:
            # a version that nobody asks for: if loading breaks off, no run takes what is there for its own
            client.post("/update_weight_version", {"new_version": f"{version}-loading"})
            client.call_workers("lab_load", str(folder))
            if not client.post("/reset_prefix_cache")["success"]:
                raise client.failed("did not forget the prompts that it computed with the weights before")
            client.post("/update_weight_version", {"new_version": version})
        finally:
            client.post("/resume")
        return int(described["positions"])

    def _dtype(self, model: nn.Module) -> str:
        name = self.settings.dtype
        return str(next(model.parameters()).dtype).removeprefix("torch.") if name == "model" else name

    def _urls(self, model: nn.Module, longest: int) -> tuple[str, ...]:
        """The servers, of which `spawn` starts one when it is first needed, and anew for another architecture."""
        if self.settings.mode == "server":
            return self.settings.urls
        architecture = _architecture(model, self._dtype(model))
        if self._server is None or not self._server.is_running or architecture != self._architecture:
            if self._server is not None:
                self._server.close()  # first: the next one needs its memory
            self._loaded = None  # the new one may have the address of the old one
            self._server = self._started(model, longest)
            self._architecture = architecture
        return (self._server.url,)

    def _started(self, model: nn.Module, longest: int) -> Server:
        settings = self.settings
        config: Any = model.config
        limit = positions(config.to_dict())
        wanted = settings.context_tokens or max(USUAL_CONTEXT, longest)
        device: environment.Device = "cuda" if next(model.parameters()).device.type == "cuda" else "cpu"
        folder = Path(tempfile.mkdtemp(prefix="rlhf_lab_config_"))
        try:
            config.save_pretrained(folder)
            serving = Serving(
                folder,
                self._dtype(model),
                device,
                min(limit, wanted) if limit else wanted,
                settings.tensor_parallel,
                settings.gpu_memory_utilization,
            )
            return self.start(serving, timeout_s=settings.timeout_s)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def fingerprint_of(model: nn.Module) -> Hashable:
    """Changes whenever a weight does: of every parameter its shape and the sum of its numbers' bit patterns.

    Parameters' version counters would cost nothing, but code that writes into `parameter.data` does not move them.
    """
    parameters = [parameter.detach() for parameter in model.parameters()]
    bits = [parameter.contiguous().view(BITS[parameter.element_size()]) for parameter in parameters]
    sums = [numbers.sum(dtype=torch.int64) for numbers in bits]
    shapes = tuple((tuple(parameter.shape), str(parameter.dtype)) for parameter in parameters)
    return shapes, tuple(torch.stack(sums).tolist())


def _architecture(model: nn.Module, dtype: str) -> str:
    """What a server is started for, as text."""
    config: Any = model.config
    values = {name: value for name, value in config.to_dict().items() if name not in OF_A_COPY}
    return json.dumps([type(model).__name__, values, dtype], sort_keys=True, default=str)


def _require_fit(url: str, described: dict[str, Any], dtype: str) -> None:
    """Raise ConfigError unless a server that somebody started is what the rollout needs."""
    problems = []
    if described["dtype"] != dtype:
        problems.append(
            f"the vLLM server at {url} computes in {described['dtype']} and rollout.dtype asks for {dtype}; start it "
            f"with --dtype {dtype}, or set rollout.dtype={described['dtype']}"
        )
    if described["logprobs"] != "processed_logprobs":
        problems.append(
            f"the vLLM server at {url} reports {described['logprobs']}, which are not of the distribution that it "
            "samples from; start it with --logprobs-mode processed_logprobs"
        )
    if problems:
        raise ConfigError(problems)


_shared: weakref.WeakValueDictionary[Vllm, Servers] = weakref.WeakValueDictionary()


def servers_of(settings: Vllm) -> Servers:
    """The servers of these settings: all samplers of a stage use the same, which end with the last of them."""
    servers = _shared.get(settings)
    if servers is None:
        servers = _shared[settings] = Servers(settings)
    return servers

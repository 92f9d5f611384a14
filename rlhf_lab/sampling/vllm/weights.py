"""The vLLM servers of a rollout and their weights: a model is sent whenever it differs from the one they have.

The trainer's main process writes the model into a directory in Hugging Face's format, and every worker of every server
reads it from there. They run on one machine or share a file system.

A model with an adapter is sent merged, or (`rollout.adapters`) as a base and an adapter. The base is sent once. The
adapter is sent whenever it has changed, each time under a new name, and rows request it by that name.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from rlhf_lab.core import ranks
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.scratch import scratch_dir
from rlhf_lab.models import lora
from rlhf_lab.models.model_files import positions
from rlhf_lab.models.weights import stored_as, stored_tensors
from rlhf_lab.sampling.settings import Vllm
from rlhf_lab.sampling.vllm import environment, fit
from rlhf_lab.sampling.vllm.client import MODEL, ServerFailed, VllmClient
from rlhf_lab.sampling.vllm.server import NO_ADAPTERS, Server, Serving, server_rank

Answer = TypeVar("Answer")
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Bytes per number → integer dtype of that size."""
OF_A_COPY = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Config keys that saving and loading a model change."""
LONGEST_GOODBYE_S = 10.0
"""Maximum seconds to wait for abandoned rows: requests end at once, but an environment may hang."""
USUAL_CONTEXT = 4096
"""Minimum number of tokens of a row on a started server, if the model has as many positions."""


@dataclass(frozen=True)
class Loaded:
    """State of the servers, as every process receives it.

    Attributes:
        version: version that the servers report for every token sampled with these weights.
        positions: maximum number of tokens of a prompt with its response.
        model: model name in requests: MODEL, or the name of an adapter on it.
    """

    urls: tuple[str, ...]
    version: str
    positions: int
    model: str = MODEL


class Servers:
    """The servers of one `rollout`. Every process of a stage has this object, and only the main process acts.

    Args:
        start: function that starts a server if `rollout.mode` requires one.
    """

    def __init__(self, settings: Vllm, start: Callable[..., Server] = Server):
        self.settings = settings
        self.start = start
        self.clients: dict[str, VllmClient] = {}
        self.sent_s: list[float] = []  # duration of each transfer of weights, seconds
        self._run = uuid.uuid4().hex[:8]
        self._names = 0  # names used for weights and adapters, including failed transfers
        self._loaded: Loaded | None = None
        self._fingerprint: Hashable = None  # fingerprint of the servers' model
        self._weights: Hashable = None  # fingerprint of the servers' weights
        self._adapter: Hashable = None  # fingerprint of the servers' adapter
        self._version = self._adapter_name = ""
        self._reasons: set[str] = set()
        self._server: Server | None = None
        self._sleeps = False
        self._architecture = ""  # architecture for which the server was started
        self._rank = 0
        self._lock = threading.Lock()
        self._background: Future[Any] | None = None  # sampling that runs in parallel with the trainer

    def update(self, model: nn.Module, max_length: int) -> Loaded:
        """Make the servers have the weights of a model. All processes must call it.

        Args:
            model: model with full (unsharded) parameters.
            max_length: tokens of the longest row that will be requested.
        Raises:
            ServerFailed: a server does not answer or rejects the weights.
            ConfigError: a server was started with other settings.
        """
        if self.settings.mode == "colocate" and torch.cuda.is_available():
            torch.cuda.empty_cache()  # the server cannot use memory that this process's allocator caches
        if self._background is not None:
            wait([self._background])  # its rows are sampled with the weights that the servers have now
            ranks.wait()
        loaded = ranks.on_main(lambda: self._update(model, max_length))
        if max_length > loaded.positions:
            raise ConfigError(
                f"a row may have {max_length} tokens, but the vLLM server supports {loaded.positions}; set "
                f"rollout.context_tokens={max_length}, or start the server with --max-model-len {max_length}"
            )
        return loaded

    def rest(self) -> None:
        """Let a server on the trainer's GPU free its memory until the next `update`.

        If only adapters are sent at an update, the server keeps the base in host memory. Otherwise it drops all
        weights, because they will be sent again anyway.
        """
        if self.settings.mode == "colocate" and self._server is not None and not self._sleeps:
            keeps_base = self._loaded is not None and self._loaded.model != MODEL
            self.client(self._server.url).sleep(1 if keeps_base else 2)
            self._sleeps = True
            if not keeps_base:
                self._loaded = self._weights = self._adapter = None

    def client(self, url: str) -> VllmClient:
        with self._lock:
            if url not in self.clients:
                self.clients[url] = VllmClient(url, self.settings.timeout_s)
            return self.clients[url]

    def start_sampling(self, sample_rows: Callable[[], Answer]) -> Callable[[], Answer]:
        """Run `sample_rows` in parallel with the trainer, one at a time. Returns a function that waits for it."""
        pool = ThreadPoolExecutor(1)
        self._background = in_flight = pool.submit(sample_rows)
        pool.shutdown(wait=False)

        def result() -> Answer:
            try:
                return in_flight.result()
            finally:
                if in_flight.done():  # after an error, a stored future would keep the servers alive
                    self._background = None

        return result

    def give_up(self) -> None:
        """Abort the sampling that runs in parallel with the trainer, if any."""
        in_flight, self._background = self._background, None
        deadline = time.monotonic() + LONGEST_GOODBYE_S
        while in_flight is not None and not in_flight.done() and time.monotonic() < deadline:
            self.abort()  # repeated, because the thread may have sent new requests since
            wait([in_flight], timeout=0.1)

    def abort(self) -> None:
        with self._lock:
            clients = list(self.clients.values())
        for client in clients:
            client.abort()

    def explained(self, error: ServerFailed) -> ServerFailed:
        """Return the error with the last output of the server, if rlhf_lab started it."""
        if self._server is None:
            return error
        state = "is running" if self._server.is_running else "has ended"
        return ServerFailed(f"{error}. The server {state}. Its last output:\n{self._server.last_lines()}")

    def _update(self, model: nn.Module, max_length: int) -> Loaded:
        products = lora.products_of(model)
        urls = self._urls(model, max_length, lora.rank_of(products))
        base, added = fingerprint_of(model, products)
        fingerprint = (urls, base, added)
        if self._sleeps:
            self._at_all(urls, VllmClient.wake_up)
            self._sleeps = False
        if self._loaded is not None and self._fingerprint == fingerprint:
            return self._loaded
        self._loaded = None  # the state of the servers is unknown until all of them have accepted the transfer
        try:

            def describe(client: VllmClient) -> tuple[str, Any]:
                return client.url, client.call_workers("lab_describe")[0]  # all workers describe the same server

            answers = self._at_all(urls, describe)
            described = dict(answers)
            fit.require(described, self._dtype(model), fit.as_text(model.config))
            is_swapped = self._is_swapped(described, model, products)
            # a swapped adapter is not part of the weights that are sent here
            weights = (urls, base, added if products and not is_swapped else None)
            if self._weights != weights:
                self._weights = self._adapter = None
                self._send_weights(urls, lora.without_products(model) if is_swapped else lora.merged(model))
                self._weights = weights
            if is_swapped and self._adapter != added:
                self._adapter = None
                self._send_adapter(urls, products)
                self._adapter = added
        except ServerFailed as error:
            raise self.explained(error) from error
        positions = min(int(of_server["positions"]) for of_server in described.values())
        self._loaded = Loaded(urls, self._version, positions, self._adapter_name if is_swapped else MODEL)
        self._fingerprint = fingerprint
        return self._loaded

    def _is_swapped(self, described: fit.Described, model: nn.Module, products: lora.Products) -> bool:
        """Return True if the adapter is sent without its base. The reason why it cannot be is printed once."""
        devices = {str(server["device"]) for server in described.values()}
        if not products or not any(self._swaps(model, device) for device in devices):
            return False
        reason = fit.why_merged(described, products)
        if reason and self.settings.adapters == "swapped":
            raise ConfigError(f"rollout.adapters=swapped: {reason}; set rollout.adapters=auto to send merged models")
        if reason and reason not in self._reasons:
            console.inform(f"  {reason}: the merged model is sent after every change")
            self._reasons.add(reason)
        return not reason

    def _swaps(self, model: nn.Module, device: str) -> bool:
        """Return True if the adapter of a model should be sent without its base to a server on this device."""
        if self.settings.adapters != "auto":
            return self.settings.adapters == "swapped"
        # in bfloat16 the sum of a weight and a small product rounds to the weight, so a merged adapter would be lost
        is_rounded = stored_as(model) != "float32" or self._dtype(model) != "float32"
        return is_rounded or device != "cpu"  # on a CPU vLLM is slow with adapters

    def _send_weights(self, urls: tuple[str, ...], model: Any) -> None:
        """Send the weights of a model without adapters to all servers. They replace all weights and adapters there."""
        self._version = self._next_name()

        def send(client: VllmClient, directory: Path) -> None:
            # Requests left by a killed run must not continue with new weights, nor fill the prompt cache.
            client.post("/pause?mode=abort")
            try:
                # A temporary version that no run requests: if loading fails, no run mistakes the weights for its own.
                client.post("/update_weight_version", {"new_version": f"{self._version}-loading"})
                client.call_workers("lab_load", str(directory))
                if not client.post("/reset_prefix_cache")["success"]:
                    raise client.failed("kept cached prompts that were computed with the previous weights")
                client.post("/update_weight_version", {"new_version": self._version})
            finally:
                client.post("/resume")

        self._send(urls, model.save_pretrained, send)

    def _send_adapter(self, urls: tuple[str, ...], products: lora.Products) -> None:
        """Send an adapter to all servers under a new name. It replaces the adapters that they have.

        vLLM caches prompts by adapter name, so no cache has to be reset, and rows of the base are not interrupted.
        """
        name = self._adapter_name = self._next_name()

        def send(client: VllmClient, directory: Path) -> None:
            for other in client.adapters():
                client.remove_adapter(other)
            client.add_adapter(name, directory)

        self._send(urls, partial(lora.save_products, products), send)

    def _send(
        self, urls: tuple[str, ...], write: Callable[[Path], None], send: Callable[[VllmClient, Path], None]
    ) -> None:
        """Write files into a directory that all servers can read, call `send` for each server, and remove it."""
        started = time.monotonic()
        parent = Path(self.settings.weights_folder) if self.settings.weights_folder else None
        directory = Path(tempfile.mkdtemp(prefix="weights-", dir=scratch_dir(parent)))
        try:
            write(directory)
            self._at_all(urls, lambda client: send(client, directory))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        self.sent_s.append(time.monotonic() - started)

    def _at_all(self, urls: tuple[str, ...], ask: Callable[[VllmClient], Answer]) -> list[Answer]:
        with ThreadPoolExecutor(len(urls)) as pool:
            return list(pool.map(lambda url: ask(self.client(url)), urls))

    def _next_name(self) -> str:
        self._names += 1
        return f"{self._run}-{self._names}"

    def _dtype(self, model: nn.Module) -> str:
        name = self.settings.dtype
        if name != "model":
            return name
        return str(next(model.parameters()).dtype).removeprefix("torch.")

    def _urls(self, model: nn.Module, max_length: int, rank: int) -> tuple[str, ...]:
        """Return the servers' addresses. Starts a server if needed; another architecture or rank restarts it."""
        if not self.settings.starts_server:
            return self.settings.urls
        if ranks.machines() > 1:
            raise ConfigError(
                f"rollout.mode={self.settings.mode} starts a server on one machine, on its loopback interface, but "
                f"this stage runs on {ranks.machines()} machines; start servers with vllm serve and set "
                "rollout.mode=server"
            )
        architecture = _architecture(model, self._dtype(model))
        rank = server_rank(rank) if self._swaps(model, _device(model)) else 0
        is_right = architecture == self._architecture and rank <= self._rank
        if self._server is None or not self._server.is_running or not is_right:
            if self._server is not None:
                self._server.close()  # before the new one starts, which needs its memory
            self._loaded = self._weights = None  # the new server may have the same address as the old one
            self._sleeps = False
            self._rank = max(rank, self._rank) if architecture == self._architecture else rank
            self._server = self._started(model, max_length, self._rank)
            self._architecture = architecture
        return (self._server.url,)

    def _started(self, model: nn.Module, max_length: int, rank: int) -> Server:
        settings = self.settings
        config: Any = model.config
        limit = positions(config.to_dict())
        requested = settings.context_tokens or max(USUAL_CONTEXT, max_length)
        directory = Path(tempfile.mkdtemp(prefix="config-", dir=scratch_dir()))
        try:
            config.save_pretrained(directory)
            serving = Serving(
                directory,
                self._dtype(model),
                _device(model),
                min(limit, requested) if limit else requested,
                settings.tensor_parallel,
                settings.gpu_memory_utilization,
                rank,
                sleeps=settings.mode == "colocate",
            )
            try:
                return self.start(serving, timeout_s=settings.timeout_s)
            except ServerFailed as error:
                if NO_ADAPTERS not in str(error):
                    raise
                # only vLLM knows which architectures support adapters, so try again without them
                return self.start(replace(serving, adapter_rank=0), timeout_s=settings.timeout_s)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _device(model: nn.Module) -> environment.Device:
    return "cuda" if next(model.parameters()).device.type == "cuda" else "cpu"


def fingerprint_of(model: nn.Module, products: lora.Products) -> tuple[Hashable, Hashable]:
    """Return fingerprints of the base weights and of the adapters' products; they change whenever a number does.

    Version counters of parameters would cost nothing, but code that writes into `parameter.data` does not change them.
    """
    parameters = [parameter for name, parameter in model.named_parameters() if not lora.is_of_adapter(name)]
    base = _sums([tensor for parameter in parameters for tensor in stored_tensors(parameter)])
    factors_of_products = [factor for factors in products.values() for factor in factors]
    return base, (*products, _sums(factors_of_products))


def _sums(tensors: Sequence[torch.Tensor]) -> Hashable:
    """Return the shape and dtype of every tensor, and the sum of the bit patterns of its numbers."""
    bits = [tensor.contiguous().view(BITS[tensor.element_size()]) for tensor in tensors]
    if not bits:
        return (), ()
    sums = torch.stack([numbers.sum(dtype=torch.int64) for numbers in bits]).tolist()  # one transfer to the host
    shapes = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors)
    return shapes, tuple(sums)


def _architecture(model: nn.Module, dtype: str) -> str:
    config: Any = model.config
    values = {name: value for name, value in config.to_dict().items() if name not in OF_A_COPY}
    return json.dumps([type(model).__name__, values, dtype], sort_keys=True, default=str)


_shared: weakref.WeakValueDictionary[Vllm, Servers] = weakref.WeakValueDictionary()


def servers_of(settings: Vllm) -> Servers:
    """Return the servers of these settings. All samplers of a stage share them; they stop with the last sampler."""
    servers = _shared.get(settings)
    if servers is None:
        servers = _shared[settings] = Servers(settings)
    return servers

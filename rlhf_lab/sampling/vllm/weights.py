"""Which servers there are, and which weights they have: a model is sent when it is another one than they have.

The trainer's main process writes the model into a folder in Hugging Face's format, and every worker of every server
reads it from there: one machine, or a file system that all of them share.

A model with an adapter is sent merged, or (`rollout.adapters`) as its base, which is sent once, and the adapter, which
is sent when it has changed under a name that no adapter had before; rows ask for the name.
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
from rlhf_lab.sampling.vllm.client import MODEL, Client, ServerFailed
from rlhf_lab.sampling.vllm.server import NO_ADAPTERS, Server, Serving, server_rank

Answer = TypeVar("Answer")
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
        model: that rows ask for: MODEL, or the name of an adapter on it.
    """

    urls: tuple[str, ...]
    version: str
    positions: int
    model: str = MODEL


class Servers:
    """The servers of one `rollout`; every process of a stage has this object, and the main one acts.

    Args:
        start: starts a server, where `rollout.mode` asks for one.
    """

    def __init__(self, settings: Vllm, start: Callable[..., Server] = Server):
        self.settings, self.start = settings, start
        self.clients: dict[str, Client] = {}
        self.sent_s: list[float] = []  # seconds of each time that weights were sent
        self._run = uuid.uuid4().hex[:8]
        self._names = 0  # given to weights and adapters, also to those that servers did not take
        self._loaded: Loaded | None = None
        self._fingerprint: Hashable = None  # of the model that they have
        self._weights: Hashable = None  # fingerprint of their weights, and below of their adapter
        self._adapter: Hashable = None
        self._version = self._adapter_name = ""
        self._reasons: set[str] = set()
        self._server: Server | None = None
        self._sleeps = False
        self._architecture = ""  # what it was started for
        self._rank = 0
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
        if self.settings.mode == "colocate" and torch.cuda.is_available():
            torch.cuda.empty_cache()  # what this process keeps of the GPU for later the server cannot have
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

    def rest(self) -> None:
        """Let a server that shares the trainer's GPU give its memory back until the next `update`.

        A base under adapters that are swapped stays in host memory; other weights will be sent again anyway.
        """
        if self.settings.mode == "colocate" and self._server is not None and not self._sleeps:
            keeps_base = self._loaded is not None and self._loaded.model != MODEL
            self.client(self._server.url).sleep(1 if keeps_base else 2)
            self._sleeps = True
            if not keeps_base:
                self._loaded = self._weights = self._adapter = None

    def client(self, url: str) -> Client:
        with self._lock:
            if url not in self.clients:
                self.clients[url] = Client(url, self.settings.timeout_s)
            return self.clients[url]

    def begin(self, sample_rows: Callable[[], Answer]) -> Callable[[], Answer]:
        """Run this beside the trainer, one such at a time. Returns what waits for its result."""
        pool = ThreadPoolExecutor(1)
        self._background = under_way = pool.submit(sample_rows)
        pool.shutdown(wait=False)

        def result() -> Answer:
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
        products = lora.products_of(model)
        urls = self._urls(model, longest, lora.rank_of(products))
        base, added = fingerprint_of(model, products)
        fingerprint = (urls, base, added)
        if self._sleeps:
            self._at_all(urls, Client.wake_up)
            self._sleeps = False
        if self._loaded is not None and self._fingerprint == fingerprint:
            return self._loaded
        self._loaded = None  # until all servers have taken what is sent, what they have is not known
        try:
            described = dict(self._at_all(urls, lambda client: (client.url, client.call_workers("lab_describe")[0])))
            fit.require(described, self._dtype(model), fit.as_text(model.config))
            is_swapped = self._is_swapped(described, model, products)
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
        held = min(int(of_server["positions"]) for of_server in described.values())
        self._loaded = Loaded(urls, self._version, held, self._adapter_name if is_swapped else MODEL)
        self._fingerprint = fingerprint
        return self._loaded

    def _is_swapped(self, described: fit.Described, model: nn.Module, products: lora.Products) -> bool:
        """Whether the adapter is sent by itself; where a server does not take it, the reason is said once."""
        devices = {str(server["device"]) for server in described.values()}
        if not products or not any(self._swaps(model, device) for device in devices):
            return False
        reason = fit.why_merged(described, products)
        if reason and self.settings.adapters == "swapped":
            raise ConfigError(f"rollout.adapters=swapped: {reason}; write rollout.adapters=auto to send merged models")
        if reason and reason not in self._reasons:
            console.print(f"  {reason}: the merged model is sent whenever it has changed", markup=False, soft_wrap=True)
            self._reasons.add(reason)
        return not reason

    def _swaps(self, model: nn.Module, device: str) -> bool:
        """Whether the adapter of a model is to be sent by itself to a server on this device."""
        if self.settings.adapters != "auto":
            return self.settings.adapters == "swapped"
        # the sum of a bfloat16 weight and a small product is the weight
        is_rounded = stored_as(model) != "float32" or self._dtype(model) != "float32"
        return is_rounded or device != "cpu"  # on a CPU vLLM is slow with adapters

    def _send_weights(self, urls: tuple[str, ...], model: Any) -> None:
        """Give all servers a plain model's weights, in place of those that they have and of all adapters."""
        self._version = self._next_name()

        def send(client: Client, folder: Path) -> None:
            # What is left of a run that was killed must not go on with other weights, nor stay in the cache of prompts.
            client.post("/pause?mode=abort")
            try:
                # a version that nobody asks for: if loading breaks off, no run takes what is there for its own
                client.post("/update_weight_version", {"new_version": f"{self._version}-loading"})
                client.call_workers("lab_load", str(folder))
                if not client.post("/reset_prefix_cache")["success"]:
                    raise client.failed("did not forget the prompts that it computed with the weights before")
                client.post("/update_weight_version", {"new_version": self._version})
            finally:
                client.post("/resume")

        self._send(urls, model.save_pretrained, send)

    def _send_adapter(self, urls: tuple[str, ...], products: lora.Products) -> None:
        """Give all servers an adapter under a name of its own, in place of those that they have.

        What they computed of a prompt is kept by name, so nothing has to be forgotten, and rows of the base go on.
        """
        name = self._adapter_name = self._next_name()

        def send(client: Client, folder: Path) -> None:
            for other in client.adapters():
                client.remove_adapter(other)
            client.add_adapter(name, folder)

        self._send(urls, partial(lora.save_products, products), send)

    def _send(self, urls: tuple[str, ...], write: Callable[[Path], None], send: Callable[[Client, Path], None]) -> None:
        """Write files into a folder that all servers read, and remove it."""
        started = time.monotonic()
        parent = Path(self.settings.weights_folder) if self.settings.weights_folder else None
        folder = Path(tempfile.mkdtemp(prefix="weights-", dir=scratch_dir(parent)))
        try:
            write(folder)
            self._at_all(urls, lambda client: send(client, folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.sent_s.append(time.monotonic() - started)

    def _at_all(self, urls: tuple[str, ...], ask: Callable[[Client], Answer]) -> list[Answer]:
        """What each server answers; they are asked at once."""
        with ThreadPoolExecutor(len(urls)) as pool:
            return list(pool.map(lambda url: ask(self.client(url)), urls))

    def _next_name(self) -> str:
        """A version of weights, or the name of an adapter, that there was not before."""
        self._names += 1
        return f"{self._run}-{self._names}"

    def _dtype(self, model: nn.Module) -> str:
        name = self.settings.dtype
        return str(next(model.parameters()).dtype).removeprefix("torch.") if name == "model" else name

    def _urls(self, model: nn.Module, longest: int, rank: int) -> tuple[str, ...]:
        """The servers. The lab starts one when it is needed, and anew for another architecture or rank."""
        if not self.settings.starts_server:
            return self.settings.urls
        if ranks.machines() > 1:
            raise ConfigError(
                f"rollout.mode={self.settings.mode} starts a server on one machine, on its loopback interface, and the "
                f"processes of this stage are on {ranks.machines()}; start servers there (vllm serve) and use "
                "rollout.mode=server"
            )
        architecture = _architecture(model, self._dtype(model))
        rank = server_rank(rank) if self._swaps(model, _device(model)) else 0
        is_right = architecture == self._architecture and rank <= self._rank
        if self._server is None or not self._server.is_running or not is_right:
            if self._server is not None:
                self._server.close()  # first: the next one needs its memory
            self._loaded = self._weights = None  # the new one may have the address of the old one
            self._sleeps = False
            self._rank = max(rank, self._rank) if architecture == self._architecture else rank
            self._server = self._started(model, longest, self._rank)
            self._architecture = architecture
        return (self._server.url,)

    def _started(self, model: nn.Module, longest: int, rank: int) -> Server:
        settings = self.settings
        config: Any = model.config
        limit = positions(config.to_dict())
        wanted = settings.context_tokens or max(USUAL_CONTEXT, longest)
        folder = Path(tempfile.mkdtemp(prefix="config-", dir=scratch_dir()))
        try:
            config.save_pretrained(folder)
            serving = Serving(
                folder,
                self._dtype(model),
                _device(model),
                min(limit, wanted) if limit else wanted,
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
                # which architectures vLLM can adapt is known to vLLM alone
                return self.start(replace(serving, adapter_rank=0), timeout_s=settings.timeout_s)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _device(model: nn.Module) -> environment.Device:
    """What a started server computes on: what the model is on."""
    return "cuda" if next(model.parameters()).device.type == "cuda" else "cpu"


def fingerprint_of(model: nn.Module, products: lora.Products) -> tuple[Hashable, Hashable]:
    """Of the weights that adapters lie on, and of what adapters add: change whenever a number does.

    Parameters' version counters would cost nothing, but code that writes into `parameter.data` does not move them.
    """
    parameters = [parameter for name, parameter in model.named_parameters() if not lora.is_of_adapter(name)]
    base = _sums([tensor for parameter in parameters for tensor in stored_tensors(parameter)])
    return base, (*products, _sums([factor for factors in products.values() for factor in factors]))


def _sums(tensors: Sequence[torch.Tensor]) -> Hashable:
    """Of every tensor its shape and the sum of its numbers' bit patterns."""
    bits = [tensor.contiguous().view(BITS[tensor.element_size()]) for tensor in tensors]
    sums = torch.stack([numbers.sum(dtype=torch.int64) for numbers in bits]).tolist() if bits else []
    shapes = tuple((tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors)
    return shapes, tuple(sums)


def _architecture(model: nn.Module, dtype: str) -> str:
    """What a server is started for, as text."""
    config: Any = model.config
    values = {name: value for name, value in config.to_dict().items() if name not in OF_A_COPY}
    return json.dumps([type(model).__name__, values, dtype], sort_keys=True, default=str)


_shared: weakref.WeakValueDictionary[Vllm, Servers] = weakref.WeakValueDictionary()


def servers_of(settings: Vllm) -> Servers:
    """The servers of these settings: all samplers of a stage use the same, which end with the last of them."""
    servers = _shared.get(settings)
    if servers is None:
        servers = _shared[settings] = Servers(settings)
    return servers

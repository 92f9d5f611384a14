"""A vLLM server that the lab starts on this machine, and ends with itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rlhf_lab.sampling.vllm import environment
from rlhf_lab.sampling.vllm.client import MODEL, Client, ServerFailed

PLUGIN = Path(__file__).with_name("plugin")
LAST_LINES = 12
"""Of what the server printed, in an error's message."""
MOST_PRINTED = 2**20
"""Bytes at the end of what a server printed that are looked through."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Of adapters, that vLLM can be started for."""
NO_ADAPTERS = "does not support LoRA"
"""Of what vLLM prints when it is started for adapters with an architecture that it cannot adapt."""
POLL_S = 0.5
END_S = 15.0
"""Seconds that a server has to end by itself."""


@dataclass(frozen=True)
class Serving:
    """What a server is started with.

    Attributes:
        model: folder with a config.json in Hugging Face's format; weights are not read from it.
        dtype: of weights and arithmetic, float32 or bfloat16.
        device: cpu or cuda.
        context_tokens: longest prompt with its reply.
        tensor_parallel: GPUs, or processes on a CPU, that a model is divided between.
        gpu_memory: share of a GPU's memory that the server takes.
        adapter_rank: largest rank of an adapter that the server takes, one of RANKS; 0 takes none.
        sleeps: whether the server can be asked to give the memory of its GPU back.
    """

    model: Path
    dtype: str
    device: environment.Device
    context_tokens: int
    tensor_parallel: int = 1
    gpu_memory: float = 0.3
    adapter_rank: int = 0
    sleeps: bool = False

    def arguments(self, host: str, port: int) -> list[str]:
        """The command line of vLLM's server."""
        values = {
            "model": self.model,
            "served-model-name": MODEL,
            "host": host,
            "port": port,
            "dtype": self.dtype,
            "load-format": "dummy",  # the trainer sends the weights
            "max-model-len": self.context_tokens,
            # The log-probabilities of the distribution that tokens are drawn from, as `Samples` has them.
            "logprobs-mode": "processed_logprobs",
            # Without it vLLM would take a temperature and a top-p from the model's generation_config.json.
            "generation-config": "vllm",
            "worker-extension-cls": "lab_worker.LabWorker",
            "tensor-parallel-size": self.tensor_parallel,
        }
        flags = ["--enable-scale-out", "--skip-tokenizer-init"]
        if self.device == "cpu":
            flags += ["--enforce-eager"]
            # Rows with seeds crash a server on a CPU that computes prompts in several parts.
            flags += ["--no-enable-chunked-prefill"]
            # With an adapter vLLM copies its matrices for every token of a batch on a CPU.
            values["max-num-batched-tokens"] = max(2048 if self.adapter_rank else 16384, self.context_tokens)
        else:
            values["gpu-memory-utilization"] = self.gpu_memory
            # on a CPU vLLM refuses this flag, and does nothing when it is asked to sleep
            flags += ["--enable-sleep-mode"] if self.sleeps else []
        if self.adapter_rank:
            flags += ["--enable-lora"]
            values |= {"max-lora-rank": self.adapter_rank, "max-loras": 1}
        if self.tensor_parallel == 1:
            values["distributed-executor-backend"] = "uni"
        return [word for name, value in values.items() for word in (f"--{name}", str(value))] + flags


class Server:
    """A server on the loopback interface, in the environment of `environment.py`, ready when this object is made.

    It ends with this object, with this process, and when it does not answer in time.

    Args:
        folder: of the environment; None is the one that `vllm setup` makes.
        timeout_s: seconds until it must answer.
        command: starts the server; None is vLLM's.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        folder: Path | None = None,
        timeout_s: float = 600.0,
        command: Sequence[str] | None = None,
    ):
        temporary = _temporary_folder()
        if command is None:
            command = _command(serving, folder, temporary.name)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  `_end` closes it
        self._process = subprocess.Popen(
            [*command, *serving.arguments("127.0.0.1", port)],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            env=_variables(serving, temporary.name),
            start_new_session=True,  # Ctrl-C reaches the lab alone, which then ends the server
        )
        self.close = weakref.finalize(self, _end, self._process, self._printed, temporary)
        started = time.monotonic()
        try:
            self._wait(timeout_s)
        except BaseException:
            self.close()
            raise
        self.start_s = time.monotonic() - started

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def last_lines(self) -> str:
        """What the server printed last; empty where it printed nothing."""
        # read at an offset: the server writes at the one that the file itself has
        descriptor = self._printed.fileno()
        size = os.fstat(descriptor).st_size
        printed = os.pread(descriptor, min(size, MOST_PRINTED), max(0, size - MOST_PRINTED))
        lines = printed.decode(errors="replace").splitlines()
        # vLLM prints a long trace for each of its processes: the lines that name an error say more than the last ones.
        errors = [line for line in lines if "Error: " in line]
        return "\n".join(dict.fromkeys([*errors[-3:], *lines[-LAST_LINES:]]))

    def _wait(self, timeout_s: float) -> None:
        client = Client(self.url, timeout_s=5)
        deadline = time.monotonic() + timeout_s
        while not client.is_healthy():
            if not self.is_running:
                raise ServerFailed(
                    f"vLLM ended as it started (status {self._process.returncode}):\n{self.last_lines()}"
                )
            if time.monotonic() > deadline:
                late = f"vLLM did not answer within {timeout_s:g} s (rollout.timeout_s)"
                raise ServerFailed(f"{late}. It printed last:\n{self.last_lines()}")
            time.sleep(POLL_S)
        client.abort()


def server_rank(rank: int) -> int:
    """The rank that a server is started for to take an adapter of `rank`; 0 where it can take none."""
    return next((most for most in RANKS if 0 < rank <= most), 0)


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def serve(serving: Serving, host: str, port: int, folder: Path | None) -> int:
    """Run a server in the foreground until it is ended. Returns its exit status."""
    with _temporary_folder() as temporary:
        command = [*_command(serving, folder, temporary), *serving.arguments(host, port)]
        try:
            return subprocess.run(command, env=_variables(serving, temporary), check=False).returncode
        except KeyboardInterrupt:
            return 0


def _command(serving: Serving, folder: Path | None, temporary: str) -> list[str]:
    """What starts vLLM in the environment in `folder`, without the server's arguments."""
    packages = environment.ENVIRONMENTS[serving.device].ready(folder)
    return [str(environment.python_of(packages)), str(PLUGIN / "lab_serve.py"), str(os.getpid()), temporary]


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for the sockets and files that vLLM leaves; its name is short, as paths of sockets must be."""
    return tempfile.TemporaryDirectory(prefix="vllm_", ignore_cleanup_errors=True)


def _variables(serving: Serving, temporary: str) -> dict[str, str]:
    """The server's environment variables. What it compiles is kept outside of `temporary`, where others find it."""
    compiled = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
    inherited = environment.process_environment(serving.device, PLUGIN)
    return {"TORCHINDUCTOR_CACHE_DIR": compiled, **inherited, "TMPDIR": temporary}


def _end(process: subprocess.Popen[bytes], printed: IO[bytes], temporary: tempfile.TemporaryDirectory[str]) -> None:
    """End the server and every process that it started, and remove what they left."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            print("vLLM did not end by itself and is killed", file=sys.stderr)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # the server leads a group of its own
    process.wait()
    printed.close()
    temporary.cleanup()

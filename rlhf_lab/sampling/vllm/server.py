"""A vLLM server that rlhf_lab starts on this machine and stops when its own process ends."""

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
from rlhf_lab.sampling.vllm.client import MODEL, ServerFailed, VllmClient

PLUGIN = Path(__file__).with_name("plugin")
LAST_LINES = 12
"""Number of the server's last lines that are part of an error message."""
MOST_PRINTED = 2**20
"""Number of bytes at the end of the server's output that are searched for errors."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Maximum adapter ranks with which vLLM can be started."""
NO_ADAPTERS = "does not support LoRA"
"""Part of vLLM's message when it is started for adapters with an architecture that does not support them."""
POLL_S = 0.5  # seconds between checks whether a new server answers
END_S = 15.0
"""Seconds after which a server that was asked to stop is killed."""


@dataclass(frozen=True)
class Serving:
    """Settings with which a server is started.

    Attributes:
        model: directory with a config.json in Hugging Face's format; weights are not read from it.
        dtype: dtype of weights and computation, float32 or bfloat16.
        context_tokens: maximum number of tokens of a prompt with its response.
        tensor_parallel: number of GPUs, or of processes on a CPU, over which the model is sharded.
        gpu_memory: fraction of the GPU's memory that the server uses.
        adapter_rank: maximum rank of an adapter, one of RANKS; 0 accepts no adapters.
        sleeps: True if the server can be asked to free its GPU memory.
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
        values = {
            "model": self.model,
            "served-model-name": MODEL,
            "host": host,
            "port": port,
            "dtype": self.dtype,
            "load-format": "dummy",  # the trainer sends the weights
            "max-model-len": self.context_tokens,
            # log-probabilities of the distribution from which tokens are sampled, as `Samples` expects them
            "logprobs-mode": "processed_logprobs",
            # without it vLLM would read a temperature and a top-p from the model's generation_config.json
            "generation-config": "vllm",
            "worker-extension-cls": "lab_worker.LabWorker",
            "tensor-parallel-size": self.tensor_parallel,
        }
        flags = ["--enable-scale-out", "--skip-tokenizer-init"]
        if self.device == "cpu":
            flags += ["--enforce-eager"]
            # On a CPU, rows with seeds crash a server that computes prompts in several chunks.
            flags += ["--no-enable-chunked-prefill"]
            # On a CPU with an adapter, vLLM copies the adapter's matrices for every token of a batch.
            values["max-num-batched-tokens"] = max(2048 if self.adapter_rank else 16384, self.context_tokens)
        else:
            values["gpu-memory-utilization"] = self.gpu_memory
            # on a CPU vLLM rejects this flag, and ignores a request to sleep
            flags += ["--enable-sleep-mode"] if self.sleeps else []
        if self.adapter_rank:
            flags += ["--enable-lora"]
            values |= {"max-lora-rank": self.adapter_rank, "max-loras": 1}
        if self.tensor_parallel == 1:
            values["distributed-executor-backend"] = "uni"
        options: list[str] = []
        for name, value in values.items():
            options += [f"--{name}", str(value)]
        return options + flags


class Server:
    """A server on the loopback interface, in the environment of `environment.py`. It is ready after construction.

    It stops when this object is deleted, when this process ends, and if it does not answer in time.

    Args:
        directory: directory of the environment; None is the one that `vllm setup` creates.
        timeout_s: maximum seconds until the server answers.
        command: command that starts the server; None is vLLM's.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        directory: Path | None = None,
        timeout_s: float = 600.0,
        command: Sequence[str] | None = None,
    ):
        temporary = _temporary_dir()
        if command is None:
            command = _command(serving, directory, temporary.name)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  `_end` closes it
        self._process = subprocess.Popen(
            [*command, *serving.arguments("127.0.0.1", port)],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            env=_variables(serving, temporary.name),
            start_new_session=True,  # Ctrl-C reaches only this process, which then stops the server
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
        """Return the server's last lines of output and its last errors; empty if it printed nothing."""
        # `pread` does not move the file offset, which the server shares and at which it writes
        descriptor = self._printed.fileno()
        size = os.fstat(descriptor).st_size
        start = max(0, size - MOST_PRINTED)
        printed = os.pread(descriptor, min(size, MOST_PRINTED), start)
        lines = printed.decode(errors="replace").splitlines()
        # vLLM prints a long trace for each of its processes: lines that name an error say more than the last ones
        errors = [line for line in lines if "Error: " in line]
        last = [*errors[-3:], *lines[-LAST_LINES:]]
        return "\n".join(dict.fromkeys(last))  # an error may also be among the last lines

    def _wait(self, timeout_s: float) -> None:
        client = VllmClient(self.url, timeout_s=5)
        deadline = time.monotonic() + timeout_s
        while not client.is_healthy():
            if not self.is_running:
                raise ServerFailed(
                    f"vLLM ended while starting (exit status {self._process.returncode}):\n{self.last_lines()}"
                )
            if time.monotonic() > deadline:
                late = f"vLLM did not answer within {timeout_s:g} s (rollout.timeout_s)"
                raise ServerFailed(f"{late}. Its last output:\n{self.last_lines()}")
            time.sleep(POLL_S)
        client.abort()


def server_rank(rank: int) -> int:
    """Return the rank with which a server is started to accept an adapter of `rank`; 0 if no rank is large enough."""
    return next((largest for largest in RANKS if 0 < rank <= largest), 0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def serve(serving: Serving, host: str, port: int, directory: Path | None) -> int:
    """Run a server in the foreground until it is stopped. Returns its exit status."""
    with _temporary_dir() as temporary:
        command = [*_command(serving, directory, temporary), *serving.arguments(host, port)]
        try:
            return subprocess.run(command, env=_variables(serving, temporary), check=False).returncode
        except KeyboardInterrupt:
            return 0


def _command(serving: Serving, directory: Path | None, temporary: str) -> list[str]:
    """Return the command that starts vLLM in the environment in `directory`, without the server's arguments."""
    packages = environment.ENVIRONMENTS[serving.device].ready(directory)
    python = environment.python_of(packages)
    # lab_serve.py stops the server when the process with this id ends
    return [str(python), str(PLUGIN / "lab_serve.py"), str(os.getpid()), temporary]


def _temporary_dir() -> tempfile.TemporaryDirectory[str]:
    """Create a directory for vLLM's sockets and files; its name is short because socket paths have a length limit."""
    return tempfile.TemporaryDirectory(prefix="vllm_", ignore_cleanup_errors=True)


def _variables(serving: Serving, temporary: str) -> dict[str, str]:
    """Return the server's environment variables. Compiled code is not stored in `temporary`: later servers reuse it."""
    compiled = f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"
    inherited = environment.process_environment(serving.device, PLUGIN)
    return {"TORCHINDUCTOR_CACHE_DIR": compiled, **inherited, "TMPDIR": temporary}


def _end(process: subprocess.Popen[bytes], printed: IO[bytes], temporary: tempfile.TemporaryDirectory[str]) -> None:
    """Stop the server and every process that it started, and remove their files."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            print("vLLM did not stop in time and is killed", file=sys.stderr)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # the server leads its own process group
    process.wait()
    printed.close()
    temporary.cleanup()

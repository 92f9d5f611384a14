"""Parler-TTS as the lab sees it: clips, log-probabilities that losses differentiate through, steps, audio, folders.

    with Parler(folder, max_frames=860) as parler:
        clips = parler.generate([Prompt("Hello there.", "A calm voice.")], clips=4, seed=0)
        logps = parler.logps(clips)              # a graph: its gradients are computed in the worker
        (-logps.clips_N.mean()).backward()
        parler.step(lr=1e-5)

The model lives in a process of its own, in the environment of `environment.py`. The process ends with this object, with
this process, and when an answer takes too long; what it said last is then part of the error.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_lab.core.errors import ConfigError, LabError, require
from rlhf_lab.core.files import replacing
from rlhf_lab.core.media import Audio
from rlhf_lab.packs.speech.parler.environment import PARLER, process_environment
from rlhf_lab.packs.speech.parler.protocol import Closed, Malformed, Message, receive, send

WORKER = (sys.executable, "-m", "rlhf_lab.packs.speech.parler.worker")
LAST_LINES = 12
"""Of the worker's standard error, in an error's message."""


class WorkerFailed(LabError, RuntimeError):
    """The worker refused a request, ended or did not answer. Says which request, why, and what it printed last."""


class Prompt(NamedTuple):
    """What is to be said, and how: the two inputs of Parler-TTS."""

    text: str
    description: str


@dataclass(frozen=True, eq=False)
class SpokenClip:
    """A clip that the model has said.

    Attributes:
        codes_TK: T frames of K codes, int64.
        is_ended: the model ended it; False if it was cut at the most frames.
        logps_TK: of each code when it was drawn, nats, at the temperature of sampling.
        end_logp: of ending, nats; 0 if it was cut.
    """

    prompt: Prompt
    codes_TK: NDArray[np.int64]
    is_ended: bool
    logps_TK: NDArray[np.floating]
    end_logp: float


@dataclass(frozen=True, eq=False)
class SpokenLogps:
    """Log-probabilities of N clips, nats, as tensors.

    Attributes:
        codes_FK: of each code, the frames of all clips behind each other.
        ends_N: of ending; 0 for a clip that was cut.
        clip_F: number of the clip of each frame.
        choices_N: that each clip consists of: its codes, and its end unless it was cut.
    """

    codes_FK: Tensor
    ends_N: Tensor
    clip_F: Tensor
    choices_N: Tensor

    @property
    def clips_N(self) -> Tensor:
        """Of each whole clip: the sum over its codes and its end."""
        return self._sums(self.codes_FK.sum(1)) + self.ends_N

    @property
    def means_N(self) -> Tensor:
        """Of each clip per choice."""
        return self.clips_N / self.choices_N

    @property
    def codebooks_NK(self) -> Tensor:
        """Of each clip and codebook; the end belongs to codebook 0."""
        columns = [self._sums(self.codes_FK[:, k]) for k in range(self.codes_FK.shape[1])]
        columns[0] = columns[0] + self.ends_N
        return torch.stack(columns, 1)

    def _sums(self, value_F: Tensor) -> Tensor:
        return self.ends_N.new_zeros(len(self.ends_N)).index_add(0, self.clip_F, value_F)


class Parler:
    """A model of Parler-TTS in a process of its own.

    Args:
        model: folder or hub id in Hugging Face's format; None starts the process without one (`make_tiny`, `load`).
        dtype: float32, float64 or bfloat16.
        device: of the worker, such as cpu or cuda.
        description_tokenizer: folder or hub id of the tokenizer of descriptions, for models whose own is for prompts.
        max_frames: the most frames of a clip that is generated.
        timeout_s: seconds that one request may take.
        folder: of the environment; None is the one that `parler setup` makes.
        command: starts the worker.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        description_tokenizer: str | None = None,
        max_frames: int = 860,
        timeout_s: float = 1800,
        folder: Path | None = None,
        command: Sequence[str] = WORKER,
    ):
        require(
            (dtype in ("float32", "float64", "bfloat16"), f"dtype={dtype} must be float32, float64 or bfloat16"),
            (max_frames > 0, f"max_frames={max_frames} must be 1 or more"),
            (timeout_s > 0, f"timeout_s={timeout_s} must be above 0: seconds that a request may take"),
        )
        self.dtype, self.device, self.description_tokenizer = dtype, device, description_tokenizer
        self.max_frames, self.timeout_s = max_frames, timeout_s
        self.codebooks, self.size, self.rate, self.trained = 0, 0, 0, 0
        variables = process_environment(PARLER.ready(folder))
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  `_end` closes it
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=variables,
            start_new_session=True,  # Ctrl-C reaches the lab alone; the worker ends when its pipe does
        )
        self._end = weakref.finalize(self, _end, self._process, self._printed)
        self._await("start")
        if model is not None:
            self.load(model)

    def __enter__(self) -> Parler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker. What was not saved is lost."""
        self._end()

    def make_tiny(self, folder: Path, *, seed: int = 0) -> None:
        """Write a small model with random weights, of 4 codebooks of 64 codes."""
        with replacing(Path(folder)) as temporary:
            self._ask("make_tiny", {"folder": str(temporary), "seed": seed})

    def load(self, model: str | Path) -> None:
        """Load a model, in place of the one that was loaded."""
        settings = {"dtype": self.dtype, "device": self.device, "description_tokenizer": self.description_tokenizer}
        values, _ = self._ask("load", {"folder": str(model), **settings})
        self.codebooks, self.size = values["codebooks"], values["size"]
        self.rate, self.trained = values["rate"], values["trained"]

    def save(self, folder: Path) -> None:
        """Write the model in Hugging Face's format, with its tokenizers; complete or absent."""
        with replacing(Path(folder)) as temporary:
            self._ask("save", {"folder": str(temporary)})

    def generate(
        self, prompts: Sequence[Prompt], *, clips: int = 1, seed: int = 0, temperature: float = 1.0
    ) -> list[SpokenClip]:
        """`clips` clips of each prompt, which follow each other, drawn column by column.

        The draws of a prompt depend on the seed and on its place among the prompts.
        """
        require(
            (clips > 0, f"clips={clips} must be 1 or more"),
            (temperature > 0, f"temperature={temperature} must be above 0"),
        )
        seeds = [int(np.random.SeedSequence([seed, place]).generate_state(1)[0]) for place in range(len(prompts))]
        arguments = {
            "prompts": list(prompts),
            "clips": clips,
            "max_frames": self.max_frames,
            "temperature": temperature,
            "seeds": seeds,
        }
        _, arrays = self._ask("generate", arguments)
        ends = np.cumsum(arrays["frames_N"])[:-1]
        codes, logps = np.split(arrays["codes_FK"], ends), np.split(arrays["logps_FK"], ends)
        drawn = []
        for number, (codes_TK, logps_TK) in enumerate(zip(codes, logps, strict=True)):
            is_ended, end_logp = bool(arrays["is_ended_N"][number]), float(arrays["end_logps_N"][number])
            drawn.append(SpokenClip(prompts[number // clips], codes_TK, is_ended, logps_TK, end_logp))
        return drawn

    def logps(self, clips: Sequence[SpokenClip], *, temperature: float = 1.0, with_graph: bool = True) -> SpokenLogps:
        """Log-probabilities of clips under the model as it is now.

        Clips of one prompt that follow each other are computed together.

        Args:
            with_graph: gradients can be computed, which the worker does when a loss calls `backward`. It keeps what
                that takes until then, or until the next step.
        """
        self._check(clips)
        anchor = torch.zeros((), requires_grad=with_graph)
        codes_FK, ends_N = _WorkerLogps.apply(anchor, self, clips, temperature, with_graph)
        frames_N = torch.tensor([len(clip.codes_TK) for clip in clips])
        clip_F = torch.arange(len(clips)).repeat_interleave(frames_N)
        choices_N = frames_N * self.codebooks + torch.tensor([clip.is_ended for clip in clips])
        return SpokenLogps(codes_FK, ends_N, clip_F, choices_N)

    def step(self, *, lr: float, weight_decay: float = 0.0, max_grad_norm: float = 1.0) -> dict[str, float]:
        """One step of AdamW on the gradients added up since the last.

        Returns the norm of the gradient before it is clipped: of each part of the model, and of `all`.
        """
        settings = {"lr": lr, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        norms, _ = self._ask("step", settings)
        return norms

    def decode(self, clips: Sequence[SpokenClip]) -> list[Audio]:
        """What clips sound like."""
        self._check(clips)
        _, arrays = self._ask("decode", {}, _as_arrays(clips))
        samples = np.split(arrays["samples"], np.cumsum(arrays["samples_N"])[:-1])
        return [Audio(samples_N, self.rate) for samples_N in samples]

    def _check(self, clips: Sequence[SpokenClip]) -> None:
        """Refuse what would fail in the worker without a name."""
        problems = []
        if not clips:
            problems.append("clips=[] must have at least one clip")
        for number, clip in enumerate(clips):
            shape, codes = clip.codes_TK.shape, clip.codes_TK
            if len(shape) != 2 or shape[1] != self.codebooks or not shape[0]:
                problems.append(f"clip {number} has codes of shape {shape}; expected (frames, {self.codebooks})")
            elif codes.min() < 0 or codes.max() >= self.size:
                problems.append(f"clip {number} has codes outside 0…{self.size - 1}")
        if problems:
            raise ConfigError(problems)

    def _ask(
        self, verb: str, arguments: dict[str, Any], arrays: dict[str, NDArray[Any]] | None = None
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise WorkerFailed(f"{verb}: the worker of Parler-TTS has ended; make a new Parler")
        try:
            send(self._process.stdin.fileno(), Message({"verb": verb, "arguments": arguments}, arrays or {}))
        except Closed:
            raise self._ended(verb, "has ended") from None
        return self._await(verb)

    def _await(self, verb: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        assert self._process.stdout is not None
        try:
            answer = receive(self._process.stdout.fileno(), timeout_s=self.timeout_s)
        except Closed:
            raise self._ended(verb, "has ended") from None
        except TimeoutError:
            raise self._ended(verb, f"did not answer within {self.timeout_s:g} s (timeout_s)") from None
        except Malformed as error:
            raise self._ended(verb, f"sent what is no answer: {error}") from None
        except BaseException:
            self.close()  # an answer that was read in part cannot be followed by another
            raise
        if refused := answer.header.get("error"):
            raise WorkerFailed(f"{verb}: the worker of Parler-TTS says {refused['kind']}\n{refused['trace']}")
        return dict(answer.header["values"]), dict(answer.arrays)

    def _ended(self, verb: str, what: str) -> WorkerFailed:
        """End the worker, and say what it printed last."""
        status = _stop(self._process, grace_s=1)
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").splitlines()[-LAST_LINES:]
        printed = "\n".join(lines) or "nothing"
        self.close()
        return WorkerFailed(f"{verb}: the worker of Parler-TTS {what} (status {status}). It printed last:\n{printed}")


class _WorkerLogps(torch.autograd.Function):
    """Log-probabilities that the worker computes, forward and backward. `anchor` is there to require a gradient."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, parler: Parler, clips: Sequence[SpokenClip], temperature: float, with_graph: bool
    ) -> tuple[Tensor, Tensor]:
        groups = [(prompt, len(list(group))) for prompt, group in groupby(clip.prompt for clip in clips)]
        arguments = {
            "prompts": [prompt for prompt, _ in groups],
            "clips_of_each": [count for _, count in groups],
            "temperature": temperature,
            "with_graph": with_graph,
        }
        values, arrays = parler._ask("logps", arguments, _as_arrays(clips))
        ctx.parler, ctx.graph = parler, values.get("graph")
        return torch.tensor(arrays["logps_FK"]), torch.tensor(arrays["end_logps_N"])

    @staticmethod
    def backward(ctx: Any, codes_FK: Tensor, ends_N: Tensor) -> tuple[None, ...]:
        gradients = {"logps_FK": codes_FK.numpy(), "end_logps_N": ends_N.numpy()}
        ctx.parler._ask("backward", {"graph": ctx.graph}, gradients)
        return None, None, None, None, None


def _as_arrays(clips: Sequence[SpokenClip]) -> dict[str, NDArray[Any]]:
    return {
        "codes_FK": np.concatenate([clip.codes_TK for clip in clips]).astype(np.int64),
        "frames_N": np.array([len(clip.codes_TK) for clip in clips], dtype=np.int64),
        "is_ended_N": np.array([clip.is_ended for clip in clips], dtype=bool),
    }


def _stop(process: subprocess.Popen[bytes], *, grace_s: float) -> int:
    """Wait for the process to end by itself for a moment, then kill it. Returns its status."""
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _end(process: subprocess.Popen[bytes], printed: IO[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()  # the worker ends when there is nothing left to read
    _stop(process, grace_s=5)
    printed.close()

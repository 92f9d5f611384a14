"""Client of a worker: sampling, differentiable log-probabilities, optimizer steps, decoding, saving.

    with Parler(model_dir, max_frames=860) as parler:
        clips = parler.generate([SpeechPrompt("Hello there.", "A calm voice.")], clips=4, seed=0)
        logps = parler.logps(clips)              # a graph: its gradients are computed in the worker
        (-logps.clips_N.mean()).backward()
        parler.step(lr=1e-5)

The process of the model stops when this object is closed, when this process exits, or when an answer takes too long.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlhf_lab.core.errors import ConfigError, LabError, require
from rlhf_lab.core.files import replacing
from rlhf_lab.core.media import Audio
from rlhf_lab.models.settings import LoRA
from rlhf_lab.packs.speech.parler.environment import PARLER, lab_environment, process_environment
from rlhf_lab.packs.speech.parler.protocol import Closed, Malformed, WorkerMessage, receive, send

WORKER = (sys.executable, "-m", "rlhf_lab.packs.speech.parler.worker")
"""Command that starts a worker; the kind of its model is appended as the last argument."""
LAST_LINES = 12
"""Number of lines of the worker's standard error that an error message quotes."""


class WorkerFailed(LabError, RuntimeError):
    """The worker rejected a request, exited or did not answer. Names the request, the cause and the last output."""


class SpeechPrompt(NamedTuple):
    """The two inputs of Parler-TTS: the text to speak, and a description of the voice."""

    text: str
    description: str


@dataclass(frozen=True, eq=False)
class SpokenClip:
    """A clip sampled from the model.

    Attributes:
        codes_TK: codec codes, T frames of K codebooks, int64.
        is_finished: True if the model ended the clip; False if it was cut at `max_frames`.
        logps_TK: log-probability of each code when it was sampled, in nats, at the sampling temperature.
        end_logp: log-probability of the end, in nats; 0 if the clip was cut.
    """

    prompt: SpeechPrompt
    codes_TK: NDArray[np.int64]
    is_finished: bool
    logps_TK: NDArray[np.floating]
    end_logp: float


@dataclass(frozen=True, eq=False)
class SpokenLogps:
    """Log-probabilities of N clips in nats, as tensors.

    Attributes:
        codes_FK: log-probability of each code; the frames of all clips are concatenated.
        ends_N: log-probability of the end of each clip; 0 for a clip that was cut.
        clip_F: index of the clip that each frame belongs to.
        choices_N: number of choices in each clip: its codes, plus its end unless it was cut.
    """

    codes_FK: Tensor
    ends_N: Tensor
    clip_F: Tensor
    choices_N: Tensor

    @property
    def clips_N(self) -> Tensor:
        """Log-probability of each clip: the sum over its codes and its end, (N,)."""
        return self._sums(self.codes_FK.sum(1)) + self.ends_N

    @property
    def means_N(self) -> Tensor:
        """Mean log-probability per choice (of a code or of the end) in each clip, (N,)."""
        return self.clips_N / self.choices_N

    @property
    def codebooks_NK(self) -> Tensor:
        """Log-probability of each clip per codebook, (N, K). The end counts for codebook 0, which decides it."""
        columns = [self._sums(self.codes_FK[:, k]) for k in range(self.codes_FK.shape[1])]
        columns[0] = columns[0] + self.ends_N
        return torch.stack(columns, 1)

    def _sums(self, value_F: Tensor) -> Tensor:
        return self.ends_N.new_zeros(len(self.ends_N)).index_add(0, self.clip_F, value_F)


class CodecWorker:
    """A codec language model that runs in a separate process.

    Args:
        model: directory or hub id in Hugging Face format. None starts the process without a model; use `load` then.
        title: name of the model in error messages.
        command: command that starts the worker.
        variables: environment variables of the worker.
        options: settings of this kind of model; see `ServedModel.load`.
        dtype: float32, float64 or bfloat16.
        device: device of the worker, such as cpu or cuda.
        max_frames: maximum number of frames of a generated clip.
        timeout_s: maximum duration of one request in seconds.

    Attributes:
        codebooks, size: number of codebooks, and of codes of each.
        rate: samples per second of decoded audio.
        parameters, trained: number of parameters, and of those that training changes.
        has_adapter: True if an adapter is trained.
    """

    def __init__(
        self,
        model: str | Path | None,
        *,
        title: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        options: Mapping[str, Any],
        dtype: str = "float32",
        device: str = "cpu",
        max_frames: int = 860,
        timeout_s: float = 1800,
    ):
        require(
            (dtype in ("float32", "float64", "bfloat16"), f"dtype={dtype} must be float32, float64 or bfloat16"),
            (max_frames > 0, f"max_frames={max_frames} must be 1 or more"),
            (timeout_s > 0, f"timeout_s={timeout_s} must be above 0: the maximum duration of a request in seconds"),
        )
        self.title, self.options, self.dtype, self.device = title, dict(options), dtype, device
        self.max_frames, self.timeout_s = max_frames, timeout_s
        self.codebooks, self.size, self.rate = 0, 0, 0
        self.parameters, self.trained = 0, 0
        self.has_adapter = False
        # a file instead of a pipe: a worker that prints much would block on a pipe that nobody reads
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  `_end` closes it
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=dict(variables),
            start_new_session=True,  # Ctrl-C reaches only this process; the worker exits when its pipe is closed
        )
        # the finalizer also stops the worker if the object is garbage-collected without `close`
        self._end = weakref.finalize(self, _end, self._process, self._printed)
        self._await("start")
        if model is not None:
            self.load(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker. Weights that were not saved are lost."""
        self._end()

    def load(self, model: str | Path) -> None:
        """Load a model. It replaces the model that was loaded before."""
        settings = {"dtype": self.dtype, "device": self.device, "options": self.options}
        values, _ = self._ask("load", {"directory": str(model), **settings})
        self.codebooks, self.size, self.rate = values["codebooks"], values["size"], values["rate"]
        self.parameters, self.trained = values["parameters"], values["trained"]
        self.has_adapter = False

    def add_adapter(self, settings: LoRA, *, seed: int) -> None:
        """Add an adapter to the model, which is then the only part that is trained."""
        values, _ = self._ask("add_adapter", {"settings": dataclasses.asdict(settings), "seed": seed})
        self.parameters, self.trained = values["parameters"], values["trained"]
        self.has_adapter = True

    def save(self, directory: Path, *, with_optimizer: bool = False, files: Mapping[str, str] | None = None) -> None:
        """Write the model and its tokenizers in Hugging Face format, atomically, with its adapter merged.

        Args:
            with_optimizer: True to write the state of the optimizer too, for `load_optimizer`.
            files: name → text of further files in the directory.
        """
        self._save("save", directory, with_optimizer, files)

    def save_adapter(
        self, directory: Path, *, with_optimizer: bool = False, files: Mapping[str, str] | None = None
    ) -> None:
        """Write the adapter in peft's format, atomically; the arguments are those of `save`."""
        self._save("save_adapter", directory, with_optimizer, files)

    def _save(self, verb: str, directory: Path, with_optimizer: bool, files: Mapping[str, str] | None) -> None:
        with replacing(Path(directory)) as temporary:
            self._ask(verb, {"directory": str(temporary), "with_optimizer": with_optimizer})
            for name, text in (files or {}).items():
                (temporary / name).write_text(text, encoding="utf-8")

    def load_adapter(self, directory: Path) -> None:
        """Read the weights of the adapter from a directory that `save_adapter` wrote."""
        self._ask("load_adapter", {"directory": str(directory)})

    def load_optimizer(self, directory: Path) -> None:
        """Read the state of the optimizer from a directory that `save` or `save_adapter` wrote with it."""
        self._ask("load_optimizer", {"directory": str(directory)})

    def generate(
        self, prompts: Sequence[SpeechPrompt], *, clips: int = 1, seed: int = 0, temperature: float = 1.0
    ) -> list[SpokenClip]:
        """Sample `clips` clips of each prompt, column by column. The clips of a prompt are adjacent in the result.

        The random draws of a prompt depend on the seed and on the index of the prompt.
        """
        require(
            (clips > 0, f"clips={clips} must be 1 or more"),
            (temperature > 0, f"temperature={temperature} must be above 0"),
        )
        sequences = [np.random.SeedSequence([seed, position]) for position in range(len(prompts))]
        seeds = [int(sequence.generate_state(1)[0]) for sequence in sequences]
        arguments = {
            "prompts": list(prompts),
            "clips": clips,
            "max_frames": self.max_frames,
            "temperature": temperature,
            "seeds": seeds,
        }
        _, arrays = self._ask("generate", arguments)
        # split the concatenated frames of all clips
        ends = np.cumsum(arrays["frames_N"])[:-1]
        codes, logps = np.split(arrays["codes_FK"], ends), np.split(arrays["logps_FK"], ends)
        selected = []
        for index, (codes_TK, logps_TK) in enumerate(zip(codes, logps, strict=True)):
            prompt = prompts[index // clips]
            is_finished = bool(arrays["is_ended_N"][index])
            end_logp = float(arrays["end_logps_N"][index])
            selected.append(SpokenClip(prompt, codes_TK, is_finished, logps_TK, end_logp))
        return selected

    def logps(self, clips: Sequence[SpokenClip], *, temperature: float = 1.0, with_graph: bool = True) -> SpokenLogps:
        """Return the log-probabilities of clips under the current weights.

        Adjacent clips of the same prompt are computed together.

        Args:
            with_graph: True to make the result differentiable. The worker computes the gradients when a loss calls
                `backward`. It keeps the autograd graph until then, or until the next step.
        """
        self._check(clips)
        # autograd calls `_WorkerLogps.backward` only if an input of the function requires a gradient
        anchor = torch.zeros((), requires_grad=with_graph)
        codes_FK, ends_N = _WorkerLogps.apply(anchor, self, clips, temperature, with_graph)
        frames_N = torch.tensor([len(clip.codes_TK) for clip in clips])
        clip_F = torch.arange(len(clips)).repeat_interleave(frames_N)
        choices_N = frames_N * self.codebooks + torch.tensor([clip.is_finished for clip in clips])
        return SpokenLogps(codes_FK, ends_N, clip_F, choices_N)

    def kl(self, clips: Sequence[SpokenClip], *, temperature: float = 1.0) -> NDArray[np.floating]:
        """Return KL(model ‖ model without its adapter) of each clip in nats, exact at every choice, (N,)."""
        self._check(clips)
        _, arrays = self._ask("kl", {**_by_prompt(clips), "temperature": temperature}, _as_arrays(clips))
        return arrays["kl_N"]

    def step(self, *, lr: float, weight_decay: float = 0.0, max_grad_norm: float = 1.0) -> dict[str, float]:
        """Take one step of AdamW on the gradients accumulated since the previous step.

        Returns gradient norms before clipping: one for each sub-module of the model, and one for `all` parameters.
        """
        settings = {"lr": lr, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}
        norms, _ = self._ask("step", settings)
        return norms

    def decode(self, clips: Sequence[SpokenClip]) -> list[Audio]:
        """Decode clips to audio."""
        self._check(clips)
        _, arrays = self._ask("decode", {}, _as_arrays(clips))
        samples = np.split(arrays["samples"], np.cumsum(arrays["samples_N"])[:-1])
        return [Audio(samples_N, self.rate) for samples_N in samples]

    def _check(self, clips: Sequence[SpokenClip]) -> None:
        """Raise ConfigError that names the invalid clips; the worker's own errors would not name them."""
        problems = []
        if not clips:
            problems.append("clips is empty; pass one or more clips")
        for index, clip in enumerate(clips):
            shape, codes = clip.codes_TK.shape, clip.codes_TK
            # shapes are checked first, because min and max need a non-empty array
            if len(shape) != 2 or shape[1] != self.codebooks or not shape[0]:
                problems.append(f"clip {index} has codes of shape {shape}; expected (frames, {self.codebooks})")
            elif codes.min() < 0 or codes.max() >= self.size:
                problems.append(f"clip {index} has codes outside 0…{self.size - 1}")
        if problems:
            raise ConfigError(problems)

    def _ask(
        self, verb: str, arguments: dict[str, Any], arrays: dict[str, NDArray[Any]] | None = None
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Send a request and wait for its answer."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise WorkerFailed(
                f"{verb}: the worker of {self.title} has exited; create a new {type(self).__name__} object"
            )
        try:
            send(self._process.stdin.fileno(), WorkerMessage({"verb": verb, "arguments": arguments}, arrays or {}))
        except Closed:
            raise self._finished(verb, "has exited") from None
        return self._await(verb)

    def _await(self, verb: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        assert self._process.stdout is not None
        try:
            answer = receive(self._process.stdout.fileno(), timeout_s=self.timeout_s)
        except Closed:
            raise self._finished(verb, "has exited") from None
        except TimeoutError:
            raise self._finished(verb, f"did not answer within {self.timeout_s:g} s (timeout_s)") from None
        except Malformed as error:
            raise self._finished(verb, f"sent an invalid answer: {error}") from None
        except BaseException:
            self.close()  # after an answer was read in part, the start of the next one cannot be found
            raise
        if refused := answer.header.get("error"):
            raise WorkerFailed(f"{verb}: the worker of {self.title} reports {refused['kind']}\n{refused['trace']}")
        return dict(answer.header["values"]), dict(answer.arrays)

    def _finished(self, verb: str, what: str) -> WorkerFailed:
        """Stop the worker. Returns an error that quotes its last output."""
        # stop it before its output is read, so that the output is complete
        status = _stop(self._process, grace_s=1)
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").splitlines()
        printed = "\n".join(lines[-LAST_LINES:]) or "nothing"
        self.close()
        return WorkerFailed(f"{verb}: the worker of {self.title} {what} (status {status}). Its last output:\n{printed}")


class Parler(CodecWorker):
    """A Parler-TTS model in its own environment.

    Args:
        model, dtype, device, max_frames, timeout_s: see `CodecWorker`; without a model, `make_tiny` is possible, too.
        description_tokenizer: directory or hub id of the tokenizer of descriptions, for models that only include the
            tokenizer of prompts.
        directory: directory of the environment; None means the one that `parler setup` creates.
        command: command that starts the worker.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        description_tokenizer: str | None = None,
        directory: Path | None = None,
        command: Sequence[str] = (*WORKER, "parler"),
        **settings: Any,
    ):
        super().__init__(
            model,
            title="Parler-TTS",
            command=command,
            variables=process_environment(PARLER.ready(directory)),
            options={"description_tokenizer": description_tokenizer},
            **settings,
        )

    def make_tiny(self, directory: Path, *, seed: int = 0) -> None:
        """Write a small model with random weights: 4 codebooks of 64 codes each."""
        with replacing(Path(directory)) as temporary:
            self._ask("make_tiny", {"directory": str(temporary), "seed": seed})


class LabCodec(CodecWorker):
    """A codec language model of rlhf_lab (`model=codec`), in a worker with the installed packages.

    Args:
        model, dtype, device, max_frames, timeout_s: see `CodecWorker`.
        codec: directory of the codec that decodes the clips (`Codec.save`).
    """

    def __init__(self, model: str | Path, *, codec: Path, **settings: Any):
        super().__init__(
            model,
            title="the codec model",
            command=(*WORKER, "codec"),
            variables=lab_environment(torch.get_num_threads()),
            options={"codec": str(codec)},
            **settings,
        )


class _WorkerLogps(torch.autograd.Function):
    """Autograd function whose forward and backward pass run in the worker.

    `anchor` is a tensor that requires a gradient, so that autograd calls `backward`; its value is not used.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, worker: CodecWorker, clips: Sequence[SpokenClip], temperature: float, with_graph: bool
    ) -> tuple[Tensor, Tensor]:
        arguments = {**_by_prompt(clips), "temperature": temperature, "with_graph": with_graph}
        values, arrays = worker._ask("logps", arguments, _as_arrays(clips))
        ctx.worker, ctx.graph = worker, values.get("graph")
        return torch.tensor(arrays["logps_FK"]), torch.tensor(arrays["end_logps_N"])

    @staticmethod
    def backward(ctx: Any, codes_FK: Tensor, ends_N: Tensor) -> tuple[None, ...]:
        # the worker accumulates the gradients of the weights; the inputs on this side need none
        gradients = {"logps_FK": codes_FK.numpy(), "end_logps_N": ends_N.numpy()}
        ctx.worker._ask("backward", {"graph": ctx.graph}, gradients)
        return None, None, None, None, None


def _by_prompt(clips: Sequence[SpokenClip]) -> dict[str, Any]:
    """Return the prompts of adjacent clips, each once, and the number of clips of each."""
    groups = [(prompt, len(list(group))) for prompt, group in groupby(clip.prompt for clip in clips)]
    return {"prompts": [prompt for prompt, _ in groups], "clips_of_each": [count for _, count in groups]}


def _as_arrays(clips: Sequence[SpokenClip]) -> dict[str, NDArray[Any]]:
    return {
        "codes_FK": np.concatenate([clip.codes_TK for clip in clips]).astype(np.int64),
        "frames_N": np.array([len(clip.codes_TK) for clip in clips], dtype=np.int64),
        "is_ended_N": np.array([clip.is_finished for clip in clips], dtype=bool),
    }


def _stop(process: subprocess.Popen[bytes], *, grace_s: float) -> int:
    """Wait up to `grace_s` seconds for the process to exit, then kill it. Returns its exit status."""
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _end(process: subprocess.Popen[bytes], printed: IO[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()  # the worker exits when its standard input is closed
    _stop(process, grace_s=5)
    printed.close()

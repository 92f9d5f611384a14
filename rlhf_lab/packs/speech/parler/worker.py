"""Worker process of a codec language model: reads requests from standard input and answers on standard output.

    python -m rlhf_lab.packs.speech.parler.worker parler    with the environment of environment.py
    python -m rlhf_lab.packs.speech.parler.worker codec     with the installed packages

client.py starts it. A third codec language model needs a subclass of `ServedModel` and a line in `BACKENDS`.

Clips are transferred as three arrays: `codes_FK`, the concatenated frames of all clips, `frames_N`, the number of
frames of each clip, and `is_ended_N`. Log-probabilities are transferred as `logps_FK` and `end_logps_N`. The clips of
one prompt are adjacent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_lab.packs.speech.parler.columns import ClipLogps, CodecClip
from rlhf_lab.packs.speech.parler.protocol import Answer, Arrays, WorkerMessage, end_with, send, serve
from rlhf_lab.packs.speech.parler.served_model import ServedModel, SpokenText

BACKENDS = {
    "parler": "rlhf_lab.packs.speech.parler.model:ParlerModel",
    "codec": "rlhf_lab.packs.speech.parler.codec_model:CodecModel",
}
"""Class of each kind of model. Only one is imported, because their environments exclude each other."""


class Worker:
    """One model, and the autograd graphs of forward passes that wait for their gradients."""

    def __init__(self, backend: type[ServedModel]) -> None:
        self.backend = backend
        self.loaded: ServedModel | None = None
        self.graphs: dict[int, torch.Tensor] = {}
        self.passes = 0

    @property
    def model(self) -> ServedModel:
        if self.loaded is None:
            raise RuntimeError("no model is loaded; request `load` first")
        return self.loaded

    def make_tiny(self, arrays: Arrays, *, directory: str, seed: int) -> Answer:
        from rlhf_lab.packs.speech.parler.model import make_tiny

        make_tiny(Path(directory), seed=seed)
        return {}, {}

    def load(self, arrays: Arrays, *, directory: str, dtype: str, device: str, options: Mapping[str, Any]) -> Answer:
        self.graphs.clear()
        self.loaded = self.backend.load(directory, dtype=dtype, device=device, options=options)
        codebooks = self.model.codebooks
        values = {"codebooks": codebooks.count, "size": codebooks.size, "rate": self.model.rate}
        return values | self._sizes(), {}

    def add_adapter(self, arrays: Arrays, *, settings: Mapping[str, Any], seed: int) -> Answer:
        self.graphs.clear()
        self.model.add_adapter(settings, seed)
        return self._sizes(), {}

    def save(self, arrays: Arrays, *, directory: str, with_optimizer: bool) -> Answer:
        return self._save(self.model.save, Path(directory), with_optimizer)

    def save_adapter(self, arrays: Arrays, *, directory: str, with_optimizer: bool) -> Answer:
        return self._save(self.model.save_adapter, Path(directory), with_optimizer)

    def _save(self, write: Callable[[Path], None], directory: Path, with_optimizer: bool) -> Answer:
        write(directory)
        if with_optimizer:
            self.model.save_optimizer(directory)
        return {}, {}

    def load_adapter(self, arrays: Arrays, *, directory: str) -> Answer:
        self.model.load_adapter(Path(directory))
        return {}, {}

    def _sizes(self) -> dict[str, int]:
        parameters = sum(parameter.numel() for parameter in self.model.model.parameters())
        trained = sum(parameter.numel() for parameter in self.model.trained())
        return {"parameters": parameters, "trained": trained}

    def load_optimizer(self, arrays: Arrays, *, directory: str) -> Answer:
        self.model.load_optimizer(Path(directory))
        return {}, {}

    def generate(self, arrays: Arrays, *, prompts: Sequence[SpokenText], **settings: Any) -> Answer:
        selected = self.model.sample(prompts, **settings)
        logps = _logps_as_arrays([logps for _, logps in selected])
        return {}, _clips_as_arrays([clip for clip, _ in selected]) | _numpy(logps)

    def logps(
        self,
        arrays: Arrays,
        *,
        prompts: Sequence[SpokenText],
        clips_of_each: Sequence[int],
        temperature: float,
        with_graph: bool,
    ) -> Answer:
        logps: list[ClipLogps] = []
        with torch.set_grad_enabled(with_graph):
            for prompt, clips in zip(prompts, _clips_by_prompt(arrays, clips_of_each), strict=True):
                logps += self.model.logps(prompt, clips, temperature=temperature)
            outputs = _logps_as_arrays(logps)
        if not with_graph:
            return {}, _numpy(outputs)
        # one flat tensor per pass: `backward` then needs a single call with one flat gradient
        self.passes += 1
        self.graphs[self.passes] = torch.cat([output.flatten() for output in outputs.values()])
        return {"graph": self.passes}, _numpy(outputs)

    def kl(
        self, arrays: Arrays, *, prompts: Sequence[SpokenText], clips_of_each: Sequence[int], temperature: float
    ) -> Answer:
        kl: list[torch.Tensor] = []
        for prompt, clips in zip(prompts, _clips_by_prompt(arrays, clips_of_each), strict=True):
            kl += self.model.kl(prompt, clips, temperature=temperature)
        return {}, _numpy({"kl_N": torch.stack(kl)})

    def backward(self, arrays: Arrays, *, graph: int) -> Answer:
        output = self.graphs.pop(graph)
        gradient = np.concatenate([arrays["logps_FK"].ravel(), arrays["end_logps_N"]])
        # converted to the device and dtype of the graph
        output.backward(torch.tensor(gradient).to(output))
        return {}, {}

    def step(self, arrays: Arrays, **settings: float) -> Answer:
        self.graphs.clear()  # the graphs are invalid after the step, which changes the weights in place
        return self.model.step(**settings), {}

    def decode(self, arrays: Arrays) -> Answer:
        audio = [self.model.decode(clip.codes_TK).numpy() for clip in _clips_from_arrays(arrays)]
        samples_N = np.array([len(samples) for samples in audio], dtype=np.int64)
        return {}, {"samples": np.concatenate([*audio, np.zeros(0, np.float32)]), "samples_N": samples_N}


VERBS = (
    *("make_tiny", "load", "save", "load_optimizer", "add_adapter", "save_adapter", "load_adapter"),
    *("generate", "logps", "kl", "backward", "step", "decode"),
)


def main() -> None:
    end_with(os.getppid())
    # Libraries print to standard output. Their text is redirected to standard error, and answers are written to a
    # private copy of standard output.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, _, name = BACKENDS[sys.argv[1]].partition(":")
    backend = getattr(import_module(module), name)
    backend.import_packages()
    send(answers, WorkerMessage({"values": {"ready": True}}))
    worker = Worker(backend)
    serve(sys.stdin.fileno(), answers, {verb: getattr(worker, verb) for verb in VERBS})
    os._exit(0)  # nothing is left to write, and an orderly shutdown of torch can take seconds


def _clips_as_arrays(clips: Sequence[CodecClip]) -> Arrays:
    return {
        "codes_FK": torch.cat([clip.codes_TK for clip in clips]).numpy(),
        "frames_N": np.array([len(clip.codes_TK) for clip in clips], dtype=np.int64),
        "is_ended_N": np.array([clip.is_finished for clip in clips], dtype=bool),
    }


def _clips_from_arrays(arrays: Arrays) -> list[CodecClip]:
    codes = torch.tensor(arrays["codes_FK"]).split(arrays["frames_N"].tolist())
    return [CodecClip(codes_TK, bool(finished)) for codes_TK, finished in zip(codes, arrays["is_ended_N"], strict=True)]


def _clips_by_prompt(arrays: Arrays, clips_of_each: Sequence[int]) -> list[list[CodecClip]]:
    """Return the clips of each prompt: the first `clips_of_each[0]` clips belong to the first prompt."""
    clips = iter(_clips_from_arrays(arrays))
    return [[next(clips) for _ in range(count)] for count in clips_of_each]


def _logps_as_arrays(logps: Sequence[ClipLogps]) -> dict[str, torch.Tensor]:
    logps_FK = torch.cat([clip.codes_TK for clip in logps])
    return {"logps_FK": logps_FK, "end_logps_N": torch.stack([clip.end for clip in logps])}


def _numpy(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """Convert tensors to arrays. bfloat16 becomes float32, because NumPy has no bfloat16."""
    arrays = {}
    for name, tensor in tensors.items():
        exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        arrays[name] = exact.detach().cpu().numpy()
    return arrays


if __name__ == "__main__":
    main()

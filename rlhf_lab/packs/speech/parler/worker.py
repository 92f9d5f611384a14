"""Worker process of Parler-TTS: reads requests from standard input and answers on standard output.

    python -m rlhf_lab.packs.speech.parler.worker     with the environment of environment.py; client.py starts it

Clips are transferred as three arrays: `codes_FK`, the concatenated frames of all clips, `frames_N`, the number of
frames of each clip, and `is_ended_N`. Log-probabilities are transferred as `logps_FK` and `end_logps_N`. The clips of
one prompt are adjacent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from rlhf_lab.packs.speech.parler import model as parler_model
from rlhf_lab.packs.speech.parler.columns import ClipLogps, CodecClip
from rlhf_lab.packs.speech.parler.protocol import WorkerMessage, send
from rlhf_lab.packs.speech.parler.serving import Answer, Arrays, end_with, serve


class Worker:
    """One model, and the autograd graphs of forward passes that wait for their gradients."""

    def __init__(self) -> None:
        self.loaded: parler_model.ParlerModel | None = None
        self.graphs: dict[int, torch.Tensor] = {}
        self.passes = 0

    @property
    def model(self) -> parler_model.ParlerModel:
        if self.loaded is None:
            raise RuntimeError("no model is loaded; request `load` first")
        return self.loaded

    def make_tiny(self, arrays: Arrays, *, directory: str, seed: int) -> Answer:
        parler_model.make_tiny(Path(directory), seed=seed)
        return {}, {}

    def load(
        self, arrays: Arrays, *, directory: str, dtype: str, device: str, description_tokenizer: str | None
    ) -> Answer:
        self.graphs.clear()
        self.loaded = parler_model.ParlerModel.load(
            directory, dtype=dtype, device=device, description_tokenizer=description_tokenizer
        )
        codebooks = self.model.codebooks
        trained = sum(parameter.numel() for parameter in self.model.trained())
        values = {"codebooks": codebooks.count, "size": codebooks.size, "rate": self.model.rate, "trained": trained}
        return values, {}

    def save(self, arrays: Arrays, *, directory: str, with_optimizer: bool) -> Answer:
        self.model.save(Path(directory), with_optimizer=with_optimizer)
        return {}, {}

    def load_optimizer(self, arrays: Arrays, *, directory: str) -> Answer:
        self.model.load_optimizer(Path(directory))
        return {}, {}

    def generate(
        self,
        arrays: Arrays,
        *,
        prompts: Sequence[tuple[str, str]],
        clips: int,
        max_frames: int,
        temperature: float,
        seeds: Sequence[int],
    ) -> Answer:
        selected: list[tuple[CodecClip, ClipLogps]] = []
        for (text, description), seed in zip(prompts, seeds, strict=True):
            selected += self.model.sample(
                text, description, clips=clips, max_frames=max_frames, temperature=temperature, seed=seed
            )
        logps = _logps_as_arrays([logps for _, logps in selected])
        return {}, _clips_as_arrays([clip for clip, _ in selected]) | _numpy(logps)

    def logps(
        self,
        arrays: Arrays,
        *,
        prompts: Sequence[tuple[str, str]],
        clips_of_each: Sequence[int],
        temperature: float,
        with_graph: bool,
    ) -> Answer:
        clips = _clips_from_arrays(arrays)
        # clips are grouped by prompt: the first `clips_of_each[0]` belong to the first prompt
        logps: list[ClipLogps] = []
        with torch.set_grad_enabled(with_graph):
            for (text, description), count in zip(prompts, clips_of_each, strict=True):
                behind = len(logps)
                of_prompt = clips[behind : behind + count]
                logps += self.model.logps(text, description, of_prompt, temperature=temperature)
            outputs = _logps_as_arrays(logps)
        if not with_graph:
            return {}, _numpy(outputs)
        # one flat tensor per pass: `backward` then needs a single call with one flat gradient
        self.passes += 1
        self.graphs[self.passes] = torch.cat([output.flatten() for output in outputs.values()])
        return {"graph": self.passes}, _numpy(outputs)

    def backward(self, arrays: Arrays, *, graph: int) -> Answer:
        output = self.graphs.pop(graph)
        gradient = np.concatenate([arrays["logps_FK"].ravel(), arrays["end_logps_N"]])
        # converted to the device and dtype of the graph
        output.backward(torch.tensor(gradient).to(output))
        return {}, {}

    def step(self, arrays: Arrays, *, lr: float, weight_decay: float, max_grad_norm: float) -> Answer:
        self.graphs.clear()  # the graphs are invalid after the step, which changes the weights in place
        return self.model.step(lr=lr, weight_decay=weight_decay, max_grad_norm=max_grad_norm), {}

    def decode(self, arrays: Arrays) -> Answer:
        audio = [self.model.decode(clip.codes_TK).numpy() for clip in _clips_from_arrays(arrays)]
        samples_N = np.array([len(samples) for samples in audio], dtype=np.int64)
        return {}, {"samples": np.concatenate([*audio, np.zeros(0, np.float32)]), "samples_N": samples_N}


VERBS = ("make_tiny", "load", "save", "load_optimizer", "generate", "logps", "backward", "step", "decode")


def main() -> None:
    parent = os.getppid()
    end_with(parent)
    # Libraries print to standard output. Their text is redirected to standard error, and answers are written to a
    # private copy of standard output.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    parler_model.import_parler()
    send(answers, WorkerMessage({"values": {"ready": True}}))
    worker = Worker()
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

"""The process that has Parler-TTS: reads requests from its standard input, answers on its standard output.

    python -m rlhf_lab.packs.speech.parler.worker     with the environment of environment.py; client.py starts it

Clips come and go as three arrays: `codes_FK`, the frames of all clips behind each other, `frames_N`, how many each clip
has, and `is_ended_N`. Log-probabilities as `logps_FK` and `end_logps_N`. The clips of one prompt follow each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from rlhf_lab.packs.speech.parler import model as parler_model
from rlhf_lab.packs.speech.parler.columns import Clip, ClipLogps
from rlhf_lab.packs.speech.parler.protocol import Message, send
from rlhf_lab.packs.speech.parler.serving import Answer, Arrays, end_with, serve


class Worker:
    """One model, and the graphs of passes whose gradients have not been given yet."""

    def __init__(self) -> None:
        self.loaded: parler_model.ParlerModel | None = None
        self.graphs: dict[int, torch.Tensor] = {}
        self.passes = 0

    @property
    def model(self) -> parler_model.ParlerModel:
        if self.loaded is None:
            raise RuntimeError("no model is loaded; ask for `load` first")
        return self.loaded

    def make_tiny(self, arrays: Arrays, *, folder: str, seed: int) -> Answer:
        parler_model.make_tiny(Path(folder), seed=seed)
        return {}, {}

    def load(
        self, arrays: Arrays, *, folder: str, dtype: str, device: str, description_tokenizer: str | None
    ) -> Answer:
        self.graphs.clear()
        self.loaded = parler_model.ParlerModel.load(
            folder, dtype=dtype, device=device, description_tokenizer=description_tokenizer
        )
        codebooks = self.model.codebooks
        trained = sum(parameter.numel() for parameter in self.model.trained())
        values = {"codebooks": codebooks.count, "size": codebooks.size, "rate": self.model.rate, "trained": trained}
        return values, {}

    def save(self, arrays: Arrays, *, folder: str) -> Answer:
        self.model.save(Path(folder))
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
        drawn: list[tuple[Clip, ClipLogps]] = []
        for (text, description), seed in zip(prompts, seeds, strict=True):
            drawn += self.model.sample(
                text, description, clips=clips, max_frames=max_frames, temperature=temperature, seed=seed
            )
        logps = _logps_as_arrays([logps for _, logps in drawn])
        return {}, _clips_as_arrays([clip for clip, _ in drawn]) | _numpy(logps)

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
        logps: list[ClipLogps] = []
        with torch.set_grad_enabled(with_graph):
            for (text, description), count in zip(prompts, clips_of_each, strict=True):
                behind = len(logps)
                of_prompt = clips[behind : behind + count]
                logps += self.model.logps(text, description, of_prompt, temperature=temperature)
            outputs = _logps_as_arrays(logps)
        if not with_graph:
            return {}, _numpy(outputs)
        self.passes += 1
        self.graphs[self.passes] = torch.cat([output.flatten() for output in outputs.values()])
        return {"graph": self.passes}, _numpy(outputs)

    def backward(self, arrays: Arrays, *, graph: int) -> Answer:
        output = self.graphs.pop(graph)
        gradient = np.concatenate([arrays["logps_FK"].ravel(), arrays["end_logps_N"]])
        output.backward(torch.tensor(gradient).to(output))
        return {}, {}

    def step(self, arrays: Arrays, *, lr: float, weight_decay: float, max_grad_norm: float) -> Answer:
        self.graphs.clear()  # their weights are about to change
        return self.model.step(lr=lr, weight_decay=weight_decay, max_grad_norm=max_grad_norm), {}

    def decode(self, arrays: Arrays) -> Answer:
        audio = [self.model.decode(clip.codes_TK).numpy() for clip in _clips_from_arrays(arrays)]
        samples_N = np.array([len(samples) for samples in audio], dtype=np.int64)
        return {}, {"samples": np.concatenate([*audio, np.zeros(0, np.float32)]), "samples_N": samples_N}


VERBS = ("make_tiny", "load", "save", "generate", "logps", "backward", "step", "decode")


def main() -> None:
    parent = os.getppid()
    end_with(parent)
    # Libraries print: their words go to standard error, and answers to a copy of standard output that only we know.
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    parler_model.import_parler()
    send(answers, Message({"values": {"ready": True}}))
    worker = Worker()
    serve(sys.stdin.fileno(), answers, {verb: getattr(worker, verb) for verb in VERBS})
    os._exit(0)  # nothing is left to write, and taking torch down in order can take seconds


def _clips_as_arrays(clips: Sequence[Clip]) -> Arrays:
    return {
        "codes_FK": torch.cat([clip.codes_TK for clip in clips]).numpy(),
        "frames_N": np.array([len(clip.codes_TK) for clip in clips], dtype=np.int64),
        "is_ended_N": np.array([clip.is_ended for clip in clips], dtype=bool),
    }


def _clips_from_arrays(arrays: Arrays) -> list[Clip]:
    codes = torch.tensor(arrays["codes_FK"]).split(arrays["frames_N"].tolist())
    return [Clip(codes_TK, bool(ended)) for codes_TK, ended in zip(codes, arrays["is_ended_N"], strict=True)]


def _logps_as_arrays(logps: Sequence[ClipLogps]) -> dict[str, torch.Tensor]:
    logps_FK = torch.cat([clip.codes_TK for clip in logps])
    return {"logps_FK": logps_FK, "end_logps_N": torch.stack([clip.end for clip in logps])}


def _numpy(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    """As arrays; bfloat16, which NumPy lacks, as float32."""
    arrays = {}
    for name, tensor in tensors.items():
        exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
        arrays[name] = exact.detach().cpu().numpy()
    return arrays


if __name__ == "__main__":
    main()

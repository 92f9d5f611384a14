"""Workers of a run: rlhf_lab's codec model or Parler-TTS, and their forms of a prompt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_lab.core.errors import ConfigError
from rlhf_lab.core.types import Corpus
from rlhf_lab.packs.speech.codec_dpo.served_audio import ServedAudio
from rlhf_lab.packs.speech.codec_dpo.settings import CodecDPO
from rlhf_lab.packs.speech.parler.client import CodecWorker, LabCodec, Parler, SpeechPrompt
from rlhf_lab.packs.speech.parler.settings import ParlerTTS
from rlhf_lab.packs.speech.sound.stream_renderer import StreamRenderer
from rlhf_lab.packs.speech.world.clip_world import ClipWorld
from rlhf_lab.training.run import Run


def open_worker(settings: CodecDPO, run: Run) -> CodecWorker:
    """Start the worker of the run's model, with a new adapter if `model.lora.rank` is set."""
    model = run.config.model
    # fully trained weights are float32, as in every other stage
    dtype = model.stored("policy") if model.lora.rank else "float32"
    common: dict[str, Any] = {"dtype": dtype, "device": run.device, "max_frames": settings.max_frames}
    worker: CodecWorker
    if isinstance(model, ParlerTTS):
        worker = Parler(
            model.path, description_tokenizer=model.description_tokenizer, timeout_s=model.timeout_s, **common
        )
    else:
        worker = LabCodec(run.needs["policy"], codec=_write_codec(run), **common)
    if model.lora.rank:
        worker.add_adapter(model.lora, seed=run.seed("adapter"))
    return worker


def served_corpus(run: Run, worker: CodecWorker) -> Corpus:
    """Return the run's data with the audio that the worker decodes.

    The data keep their oracle only with `model=codec`: Parler-TTS has other codes than those that the oracle grades.
    """
    renderer = run.data.renderer
    assert renderer is not None, "data with the capability AUDIO have a renderer"
    served = ServedAudio((worker.size,) * worker.codebooks, renderer)
    oracle = None if isinstance(run.config.model, ParlerTTS) else run.data.oracle
    return replace(run.data, renderer=served, oracle=oracle)


class PromptReader:
    """Reader of the prompts of a speech world, in the form that the run's model expects."""

    def __init__(self, run: Run):
        world = run.data.oracle
        if not isinstance(world, ClipWorld):
            raise ConfigError(
                f"algorithm=codec_dpo needs the prompts of a speech world, which data={run.data.name} does not have; "
                "use data=speech or data=espeak"
            )
        self.world = world
        self.speaks_english = isinstance(run.config.model, ParlerTTS)

    def __call__(self, prompt: str) -> SpeechPrompt:
        utterance = self.world.read_prompt(prompt)
        if self.speaks_english:
            return SpeechPrompt(utterance.text, self.world.metadata(utterance)["description"])
        # a model of the lab was trained on the transcript itself: "low dark lively question : ta ko ma ne"
        content = prompt.removeprefix("\n\nHuman: ").removesuffix("\n\nAssistant:")
        description, _, text = content.partition(" : ")
        return SpeechPrompt(text, description)


def _write_codec(run: Run) -> Path:
    renderer = run.data.renderer
    if not isinstance(renderer, StreamRenderer):
        raise ConfigError(
            f"model=codec needs the codec of a speech world, which data={run.data.name} does not have; use data=speech"
        )
    directory = run.directory / "codec"
    renderer.codec.save(directory)
    return directory

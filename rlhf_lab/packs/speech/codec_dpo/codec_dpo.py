"""Stage that trains a codec language model in a worker process with rounds of DPO on the reward of the run.

After each round the progress is written to `progress/`, and the policy is evaluated on held-out prompts. A repeated
stage continues after the last complete round, to the same weights as without an interruption. `model/` is the result
in Hugging Face's format, and `adapter/` its adapter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core.episodes import Episode, Segment
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.core.media import Audio, Renderer
from rlhf_lab.core.types import Corpus
from rlhf_lab.evaluations.evaluator import REFERENCE_NAME, EpisodeLog
from rlhf_lab.packs.speech.codec_dpo.settings import CodecDPO
from rlhf_lab.packs.speech.parler.client import CodecWorker, LabCodec, Parler, SpeechPrompt, SpokenClip
from rlhf_lab.packs.speech.parler.rounds import (
    ClipScores,
    DpoSettings,
    RoundMetrics,
    TrainingProgress,
    run_round,
    why_no_pairs,
)
from rlhf_lab.packs.speech.parler.served_model import OPTIMIZER
from rlhf_lab.packs.speech.parler.settings import ParlerTTS
from rlhf_lab.packs.speech.sound.audio import RATE, change_rate, write_wav
from rlhf_lab.packs.speech.sound.codec import StreamRenderer
from rlhf_lab.packs.speech.sound.stream import write_stream
from rlhf_lab.packs.speech.world.clip_world import clip_world_of
from rlhf_lab.rewards.graph import GraphReward, build_reward
from rlhf_lab.training.run import Result, Run


class ServedAudio:
    """Renderer of clips that a worker has decoded. Other responses are rendered by the renderer of the data.

    Args:
        sizes: number of codes of each codebook of the worker's model.
        of_data: renderer of the data, which decodes the clips of its pairs.
    """

    def __init__(self, sizes: tuple[int, ...], of_data: Renderer):
        self.sizes = sizes
        self.of_data = of_data
        self._audio: dict[str, Audio] = {}

    @property
    def fingerprint(self) -> str:
        return self.of_data.fingerprint

    def require_model(self, config: Any) -> None:
        self.of_data.require_model(config)

    def write(self, path: Path, audio: Audio) -> None:
        write_wav(path, audio)

    def keep(self, responses: Sequence[str], audio: Sequence[Audio]) -> None:
        """Keep the audio of these responses instead of that of earlier ones, at the rate that rewards expect."""
        self._audio = {}
        for response, clip in zip(responses, audio, strict=True):
            samples_N = clip.samples_N if clip.rate == RATE else change_rate(clip.samples_N, clip.rate, RATE)
            self._audio[response] = Audio(samples_N, RATE)

    def render(self, responses: Sequence[str]) -> list[Audio]:
        """Return the audio of each response."""
        others = [response for response in responses if response not in self._audio]
        rendered = dict(zip(others, self.of_data.render(others), strict=True)) if others else {}
        return [self._audio.get(response) or rendered[response] for response in responses]


def episodes_of(corpus: Corpus, prompts: Sequence[str], clips: Sequence[SpokenClip]) -> list[Episode]:
    """Return clips as episodes whose response is the stream of their codes. A token is a code, or the end of a clip."""
    episodes = []
    for prompt, clip in zip(prompts, clips, strict=True):
        tokens = [*clip.codes_TK.flatten().tolist(), *([-1] if clip.is_finished else [])]
        logps = [*clip.logps_TK.flatten().tolist(), *([clip.end_logp] if clip.is_finished else [])]
        episodes.append(
            Episode(
                corpus.task(prompt),
                prompt,
                write_stream(clip.codes_TK),
                segments=(Segment(tokens, sampled=True, logps=logps),),
                finished=clip.is_finished,
            )
        )
    return episodes


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


def prompt_reader(run: Run) -> Callable[[str], SpeechPrompt]:
    """Return a function that reads a prompt of the run's speech world in the form that the run's model expects."""
    world = clip_world_of(run.data, "codec_dpo")
    speaks_english = isinstance(run.config.model, ParlerTTS)

    def read(prompt: str) -> SpeechPrompt:
        if speaks_english:
            utterance = world.read_prompt(prompt)
            return SpeechPrompt(utterance.text, utterance.metadata()["description"])
        # a model of the lab was trained on the transcript itself: "low dark lively question : ta ko ma ne"
        content = prompt.removeprefix("\n\nHuman: ").removesuffix("\n\nAssistant:")
        description, _, text = content.partition(" : ")
        return SpeechPrompt(text, description)

    return read


def _write_codec(run: Run) -> Path:
    renderer = run.data.renderer
    if not isinstance(renderer, StreamRenderer):
        raise ConfigError(
            f"model=codec needs the codec of a speech world, which data={run.data.name} does not have; use data=speech"
        )
    directory = run.directory / "codec"
    renderer.codec.save(directory)
    return directory


class ClipJudge:
    """Scores the clips of a worker with a reward graph. Clips that one of its gates refuses are never preferred."""

    def __init__(self, run: Run, audio: ServedAudio, reward: GraphReward):
        self.run, self.audio, self.reward = run, audio, reward

    def __call__(self, prompts: Sequence[str], clips: Sequence[SpokenClip], audio: Sequence[Audio]) -> ClipScores:
        """Score the clips. Raises DataError for a clip that the reward does not score."""
        episodes = episodes_of(self.run.data, prompts, clips)
        self.audio.keep([episode.response for episode in episodes], audio)
        batch = self.reward(episodes)
        unscored = np.flatnonzero(~np.isfinite(batch.total_N))
        if len(unscored):
            prompt = prompts[unscored[0]].strip()
            raise DataError(f"the reward did not score a clip of {prompt!r}; training needs the score of every clip")
        is_refused_N = np.zeros(len(clips), dtype=bool)
        for name, gate in self.run.config.reward.gates.items():
            is_refused_N |= batch.parts[name] < gate.floor
        return ClipScores(batch.total_N, is_refused_N)


class ClipEvaluator(EpisodeLog):
    """Evaluates the policy in a worker on held-out prompts."""

    def __init__(
        self, run: Run, worker: CodecWorker, judge: ClipJudge, spoken: Callable[[str], SpeechPrompt], temperature: float
    ):
        super().__init__(run, judge.reward)
        self.temperature, self.worker, self.audio = temperature, worker, judge.audio
        self.prompts = run.data.prompts("test")[: self.settings.prompts]
        self.spoken = [spoken(prompt) for prompt in self.prompts]

    def evaluate(self, name: str) -> None:
        """Sample and score clips of the held-out prompts, unless an earlier attempt has done so."""
        if self.find(name):
            return
        samples = self.settings.samples_per_prompt
        seed = self.run.seed(f"evaluation/{name}", self.settings.seed)
        clips = self.worker.generate(self.spoken, clips=samples, seed=seed, temperature=self.temperature)
        repeated = [prompt for prompt in self.prompts for _ in range(samples)]
        episodes = episodes_of(self.run.data, repeated, clips)
        self.audio.keep([episode.response for episode in episodes], self.worker.decode(clips))
        collected = [episodes[start : start + samples] for start in range(0, len(episodes), samples)]
        rows = self._episode_rows(name, collected, self._kl(name, clips))
        self._reference_rows = self._reference_rows or rows
        self.add(name, rows, self._summarise(rows))

    def _kl(self, name: str, clips: Sequence[SpokenClip]) -> list[float | None]:
        if name == REFERENCE_NAME:
            return [0.0] * len(clips)
        if not self.worker.has_adapter:
            return [None] * len(clips)
        kl_N: list[float | None] = self.worker.kl(clips, temperature=self.temperature).tolist()
        return kl_N


class CodecRounds:
    """Trains in rounds."""

    def __init__(self, settings: CodecDPO, run: Run):
        self.settings, self.run = settings, run

    def finish(self) -> Result:
        settings, run = self.settings, self.run
        spoken = prompt_reader(run)
        with open_worker(settings, run) as worker:
            served = run.with_data(served_corpus(run, worker))
            reward = build_reward(served)
            if reward is None:
                raise ConfigError("needs.reward is not set, but algorithm=codec_dpo ranks clips by it; set it")
            audio = served.data.renderer
            assert isinstance(audio, ServedAudio)
            judge = ClipJudge(served, audio, reward)
            evaluator = ClipEvaluator(served, worker, judge, spoken, settings.temperature)
            progress = TrainingProgress(run.directory / "progress", {})
            rounds = [RoundMetrics(**row) for row in progress.rounds]
            if rounds:
                self._resume(worker, progress)
            # a process may have been killed between a round and its evaluation
            evaluator.evaluate(name_of(len(rounds)) if rounds else REFERENCE_NAME)
            for metrics in rounds:
                self._log(metrics)
            while len(rounds) < settings.rounds:
                metrics = self._round(worker, judge, spoken, len(rounds))
                rounds.append(metrics)
                progress.save(worker, metrics, is_last=False)
                self._log(metrics)
                evaluator.evaluate(name_of(len(rounds)))
            self._save(worker)
            totals = {
                "parameters": worker.parameters,
                "parameters/trained": worker.trained,
                "refused": rounds[-1].refused,
            }
        return Result(evaluator.policies, totals)

    def _round(
        self, worker: CodecWorker, judge: ClipJudge, spoken: Callable[[str], SpeechPrompt], index: int
    ) -> RoundMetrics:
        settings, run = self.settings, self.run
        rng = np.random.default_rng(run.seed("codec_dpo/prompts", index))
        available = run.data.prompts("train")
        prompts = [available[i] for i in rng.permutation(len(available))[: settings.prompts_per_round]]
        repeated = [prompt for prompt in prompts for _ in range(settings.samples_per_prompt)]
        shared = ("rounds", "beta", "lr", "epochs", "pairs_per_step", "temperature", "max_grad_norm")
        dpo_settings = DpoSettings(
            **{name: getattr(settings, name) for name in shared},
            clips=settings.samples_per_prompt,
            length=settings.logps,
            seed=run.seed("codec_dpo"),
        )

        def score(clips: Sequence[SpokenClip], audio: Sequence[Audio]) -> ClipScores:
            return judge(repeated, clips, audio)

        metrics = run_round(worker, [spoken(prompt) for prompt in prompts], score, dpo_settings, index)
        if not metrics.pairs:
            run.note(f"round {metrics.round} trained nothing: {why_no_pairs(metrics, dpo_settings)}")
        return metrics

    def _resume(self, worker: CodecWorker, progress: TrainingProgress) -> None:
        if worker.has_adapter:
            worker.load_adapter(progress.model)
        else:
            worker.load(progress.model)
        if (progress.model / OPTIMIZER).is_file():  # a round without pairs takes no step, so it has no optimizer
            worker.load_optimizer(progress.model)
        self.run.note(f"resumed after round {len(progress.rounds)}")

    def _log(self, metrics: RoundMetrics) -> None:
        values = dataclasses.asdict(metrics)
        del values["steps"]
        values |= {"audio_seconds": values.pop("seconds"), "finished": 1 - values.pop("cut")}
        self.run.log(metrics.round - 1, **values)

    def _save(self, worker: CodecWorker) -> None:
        """Write the result. `forget_attempts` removes the progress once the stage is recorded as complete."""
        worker.save(self.run.directory / "model")
        if worker.has_adapter:
            worker.save_adapter(self.run.directory / "adapter")


def name_of(rounds: int) -> str:
    """Return the name of the policy after this number of rounds."""
    return f"round {rounds}"


def build(settings: CodecDPO, run: Run) -> CodecRounds:
    return CodecRounds(settings, run)

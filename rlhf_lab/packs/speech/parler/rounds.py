"""Rounds of DPO in a worker: sample clips, score their audio, pair the best and worst clip of each prompt, train.

The loss is the one of `losses/preference.py`. The worker computes the log-probabilities and their gradients. The
reference policy of a round is the policy at the start of the round.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_lab.algorithms.preference.dpo_iterative import best_and_worst
from rlhf_lab.core.errors import ConfigError, DataError, LabError, NumericError
from rlhf_lab.core.files import make_dir, read_json, write_text
from rlhf_lab.core.media import Audio
from rlhf_lab.core.ranges import CheckedSettings, Finite, Ge, Gt
from rlhf_lab.losses.preference import PairLogps, dpo
from rlhf_lab.packs.speech.parler.client import CodecWorker, SpeechPrompt, SpokenClip

AudioReward = Callable[[Sequence[SpeechPrompt], Sequence[Audio]], Sequence[float]]
"""Function from prompts and the audio of each prompt to scores; higher is better."""


class ClipScores(NamedTuple):
    """Scores of N clips.

    Attributes:
        scores_N: reward of each clip; higher is better.
        is_refused_N: True for clips that a guard refuses. They are never preferred to another clip.
    """

    scores_N: NDArray[np.float64]
    is_refused_N: NDArray[np.bool_]


ClipScorer = Callable[[Sequence[SpokenClip], Sequence[Audio]], ClipScores]
"""Function from clips and the audio of each clip to their scores."""


class NoPairs(LabError, RuntimeError):
    """All clips of each prompt have the same score, so a round has no pairs to train on."""


@dataclass(frozen=True)
class DpoSettings(CheckedSettings):
    """Settings of the rounds of DPO; those of `codec_dpo.settings.CodecDPO`, with other names for some.

    Args:
        clips: number of clips sampled for each prompt; the best and the worst clip form a pair.
        length: log-probability of a clip: `sum` over its codes and its end, or their `mean` (`algorithm.logps`).
        floor: minimum value of the guard, such as −0.5 for minus a word error rate. Clips below it rank below all other
            clips and equal to each other; used only with a guard.
        seed: seed of sampling and of the order of pairs.
    """

    rounds: Annotated[int, Ge(1)] = 3
    clips: Annotated[int, Ge(2, hint="the best and the worst clip make a pair")] = 4
    beta: Annotated[float, Gt(0)] = 0.1
    lr: Annotated[float, Gt(0)] = 1e-5
    epochs: Annotated[int, Ge(1)] = 1
    pairs_per_step: Annotated[int, Ge(1)] = 4
    length: Literal["sum", "mean"] = "sum"
    temperature: Annotated[float, Gt(0)] = 1.0
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    floor: Annotated[float, Finite()] = -0.5
    seed: Annotated[int, Ge(0)] = 0


ClipPair = tuple[SpokenClip, SpokenClip]
"""Two clips of one prompt: the chosen one, which has the higher score, and the rejected one."""


@dataclass(frozen=True)
class RoundMetrics:
    """Metrics of one round.

    Attributes:
        round: number of the round, from 1.
        reward: mean score of all clips that the policy sampled at the start of the round.
        reward_best, reward_worst: mean score of the best and of the worst clip of each prompt.
        refused: fraction of clips below the floor of the guard; 0 without a guard.
        seconds: mean duration of a clip in seconds.
        cut: fraction of clips that reached `max_frames`.
        pairs: number of prompts whose clips have different scores.
        steps: number of optimizer steps.
        loss, margin: DPO loss and margin, means over all pairs of the last epoch, measured before each step. In the
            first step of a round the policy equals the reference, so they are log 2 and 0.
        grad_norm: mean gradient norm over all steps, before clipping.

    Loss, margin and gradient norm are NaN if there are no pairs.
    """

    round: int
    reward: float
    reward_best: float
    reward_worst: float
    refused: float
    seconds: float
    cut: float
    pairs: int
    steps: int
    loss: float
    margin: float
    grad_norm: float


def run_dpo(
    worker: CodecWorker,
    prompts: Sequence[SpeechPrompt],
    reward: AudioReward,
    settings: DpoSettings,
    guard: AudioReward | None = None,
    *,
    finished: int = 0,
) -> Iterator[RoundMetrics]:
    """Train the model in the worker; `worker.save` writes it. Yields the metrics of each finished round.

    Args:
        finished: number of rounds that the model and the optimizer in the worker have been trained already. Random
            numbers depend on the seed and the number of the round, so a resumed training equals an uninterrupted one.
        guard: function like `reward`, such as minus the word error rate of a recogniser. A clip whose value is below
            `settings.floor` is never chosen over another one.
    """

    def scorer(clips: Sequence[SpokenClip], audio: Sequence[Audio]) -> ClipScores:
        prompts_N = [clip.prompt for clip in clips]
        scores_N = score(reward, prompts_N, audio)
        is_refused_N = np.zeros(len(clips), bool) if guard is None else score(guard, prompts_N, audio) < settings.floor
        return ClipScores(scores_N, is_refused_N)

    for index in range(finished, settings.rounds):
        metrics = run_round(worker, prompts, scorer, settings, index)
        if not metrics.pairs:
            raise NoPairs(f"round {index + 1}: {why_no_pairs(metrics, settings)}; increase clips or temperature")
        yield metrics


def why_no_pairs(metrics: RoundMetrics, settings: DpoSettings) -> str:
    """Return why a round had no pairs."""
    refused = f", or the guard refused them ({metrics.refused:.0%} of all)" if metrics.refused else ""
    return f"the reward gave all {settings.clips} clips of each prompt the same score{refused}, so there are no pairs"


def score(reward: AudioReward, prompts: Sequence[SpeechPrompt], audio: Sequence[Audio]) -> NDArray[np.float64]:
    """Return the scores of the reward, (N,). Raises DataError unless there is a finite number for each clip."""
    scores_N = np.asarray(reward(prompts, audio), dtype=np.float64)
    if scores_N.shape != (len(audio),):
        raise DataError(
            f"the reward returned scores of shape {scores_N.shape} for {len(audio)} clips; expected one score per clip"
        )
    if not np.isfinite(scores_N).all():
        number = int(np.flatnonzero(~np.isfinite(scores_N))[0])
        clip = f"{audio[number].seconds:.2f} s for {prompts[number].text!r}"
        raise DataError(f"the reward returned {scores_N[number]} for clip {number} ({clip}); expected a finite number")
    return scores_N


def run_round(
    worker: CodecWorker, prompts: Sequence[SpeechPrompt], scorer: ClipScorer, settings: DpoSettings, index: int
) -> RoundMetrics:
    """Run one round of DPO. It trains nothing if no prompt has clips with different scores.

    Args:
        index: index of the round, from 0. It decides the random numbers, together with the seed.
    """
    # independent seeds for sampling and for the order of pairs, derived from the seed and the index of the round
    sampling_seed, order_seed = np.random.SeedSequence([settings.seed, index]).generate_state(2)
    clips = worker.generate(prompts, clips=settings.clips, seed=int(sampling_seed), temperature=settings.temperature)
    audio = worker.decode(clips)
    scores_N, is_refused_N = scorer(clips, audio)
    # clips of a prompt are adjacent: (P · G,) → (P, G)
    shape_PG = (len(prompts), settings.clips)
    ranked = best_and_worst(np.where(is_refused_N, -np.inf, scores_N).reshape(shape_PG))
    pairs = [(clips[p * settings.clips + best], clips[p * settings.clips + worst]) for p, best, worst in ranked]
    steps = list(_train(worker, pairs, settings, np.random.default_rng(order_seed)))
    steps_an_epoch = len(steps) // settings.epochs
    last_epoch = [pair for trained, _ in steps[-steps_an_epoch:] for pair in trained]
    scores_PG = scores_N.reshape(shape_PG)
    return RoundMetrics(
        round=index + 1,
        reward=float(scores_N.mean()),
        reward_best=float(scores_PG.max(1).mean()),
        reward_worst=float(scores_PG.min(1).mean()),
        refused=float(is_refused_N.mean()),
        seconds=float(np.mean([sound.seconds for sound in audio])),
        cut=float(np.mean([not clip.is_finished for clip in clips])),
        pairs=len(pairs),
        steps=len(steps),
        loss=_mean([loss for loss, _ in last_epoch]),
        margin=_mean([margin for _, margin in last_epoch]),
        grad_norm=_mean([norm for _, norm in steps]),
    )


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _train(
    worker: CodecWorker, pairs: Sequence[ClipPair], settings: DpoSettings, rng: np.random.Generator
) -> Iterator[tuple[list[tuple[float, float]], float]]:
    """Train on the pairs. Yields loss and margin of each pair of an optimizer step, and the gradient norm."""
    # computed before the first step: the reference policy is the policy at the start of the round
    reference = [_pair_logps(worker, [pair], settings.length, with_graph=False) for pair in pairs]
    for _ in range(settings.epochs):
        order = rng.permutation(len(pairs))
        for start in range(0, len(pairs), settings.pairs_per_step):
            # indices of the pairs in this step
            chosen = order[start : start + settings.pairs_per_step]
            step_pairs = [pairs[i] for i in chosen]
            policy = _pair_logps(worker, step_pairs, settings.length, with_graph=True)
            sides = zip(*(reference[i] for i in chosen), strict=True)
            before = PairLogps(*(torch.cat(side) for side in sides))
            output = dpo(policy, before, beta=settings.beta)
            loss = output.per_pair_B.mean()
            # checked before the backward pass, so that no invalid gradient reaches the weights
            if not torch.isfinite(loss):
                raise NumericError(f"the DPO loss is {float(loss)}; lower the learning rate lr={settings.lr:g}")
            loss.backward()
            norms = worker.step(lr=settings.lr, max_grad_norm=settings.max_grad_norm)
            values = zip(output.per_pair_B.tolist(), output.margin_B.tolist(), strict=True)
            yield list(values), norms["all"]


def _pair_logps(worker: CodecWorker, pairs: Sequence[ClipPair], length: str, *, with_graph: bool) -> PairLogps:
    """Return the log-probabilities of both clips of each pair; both share the prompt and are computed together."""
    logps = worker.logps([clip for pair in pairs for clip in pair], with_graph=with_graph)
    clips_N = logps.means_N if length == "mean" else logps.clips_N
    return PairLogps(clips_N[0::2], clips_N[1::2])  # chosen and rejected clips alternate


PROGRESS = "training.json"
"""File next to the weights: the settings of the training and the metrics of its finished rounds."""


class TrainingProgress:
    """Finished rounds of a training in a directory: `model/` with PROGRESS, and `rounds.jsonl`.

    The model and its progress are one directory that is replaced as a whole, so they always belong to the same round.
    If an adapter is trained, `model/` contains only the adapter.

    Args:
        directory: directory of the training; new, empty or of an interrupted training.
        origin: setting → JSON value of everything that decides the result.
    """

    def __init__(self, directory: Path, origin: dict[str, Any]):
        self.directory, self.origin = directory, origin
        self.model = directory / "model"
        self.rounds: list[dict[str, Any]] = []
        # Names with a dot are files that a killed process did not finish.
        others = [path for path in directory.glob("*") if not path.name.startswith(".")]
        if (self.model / PROGRESS).is_file():
            self._read()
        elif others:
            raise ConfigError(
                f"to={directory} is not empty and has no {self.model.name}/{PROGRESS}; name a new directory"
            )
        make_dir(directory)

    def save(self, worker: CodecWorker, metrics: RoundMetrics, *, is_last: bool) -> None:
        """Write the model, or its adapter, after a round.

        The last one has no optimizer, because nothing continues from it.
        """
        self.rounds.append(dataclasses.asdict(metrics))
        progress = json.dumps({"origin": self.origin, "rounds": self.rounds}, indent=1)
        write = worker.save_adapter if worker.has_adapter else worker.save
        write(self.model, with_optimizer=not is_last, files={PROGRESS: progress})
        self._write_rounds()

    def _read(self) -> None:
        stored = read_json(self.model / PROGRESS)
        # Stored values have passed through JSON, so the present ones do too before they are compared.
        present = json.loads(json.dumps(self.origin))
        keys = sorted({*stored["origin"], *present})
        changed = [key for key in keys if stored["origin"].get(key) != present.get(key)]
        if changed:
            raise ConfigError(
                f"to={self.directory} has a training with other values of {', '.join(changed)}; repeat its command to "
                "continue it, or name a new directory"
            )
        self.rounds = stored["rounds"]
        self._write_rounds()  # a process may have been killed between the model and this file

    def _write_rounds(self) -> None:
        write_text(self.directory / "rounds.jsonl", "".join(json.dumps(row) + "\n" for row in self.rounds))

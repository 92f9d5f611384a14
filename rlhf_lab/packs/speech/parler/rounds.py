"""Rounds of DPO for Parler-TTS: sample clips, score their audio, pair the best of each prompt with the worst, train.

The losses are the lab's (`losses/preference.py`); the worker computes the log-probabilities and their gradients. The
reference of a round is the policy as the round begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_lab.core.errors import DataError, LabError, NumericError
from rlhf_lab.core.media import Audio
from rlhf_lab.core.ranges import CheckedSettings, Ge, Gt
from rlhf_lab.losses.preference import PairLogps, dpo
from rlhf_lab.packs.speech.parler.client import Parler, Prompt, SpokenClip

AudioReward = Callable[[Sequence[Prompt], Sequence[Audio]], Sequence[float]]
"""Prompts and what was said to each of them → scores, higher is better."""


class NoPairs(LabError, RuntimeError):
    """A round's clips all have one score: there is nothing to learn from."""


@dataclass(frozen=True)
class DpoSettings(CheckedSettings):
    """Rounds of DPO.

    Args:
        rounds: each samples anew.
        clips: of each prompt, of which the best and the worst become a pair.
        beta: β of DPO.
        lr: of AdamW; its state goes on from round to round.
        epochs: over the pairs of a round.
        pairs_per_step: a step's; the loss is their mean.
        length: log-probability of a clip: the sum over its codes and its end, or the mean. Where the reward depends on
            how long a clip is, the sum can teach the opposite: the log-ratio of a long clip has more terms.
        temperature: of sampling.
        max_grad_norm: gradients are scaled down to it.
        seed: of sampling and of the order of pairs.
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
    seed: Annotated[int, Ge(0)] = 0


class ClipPair(NamedTuple):
    """Two clips of one prompt, of which `chosen` has the higher score."""

    chosen: SpokenClip
    rejected: SpokenClip


@dataclass(frozen=True)
class RoundMetrics:
    """What a round came to.

    Attributes:
        round: from 1.
        reward: mean score of all clips that the policy sampled as the round began.
        reward_best, reward_worst: of the best and of the worst clip of each prompt.
        seconds: mean length of a clip.
        cut: share of clips that reached the most frames.
        pairs: prompts with clips of different scores.
        steps: of the optimiser.
        loss, margin: of DPO, means over all pairs of the last epoch, each before its step. In the first step of a round
            the policy is the reference, and they are log 2 and 0.
        grad_norm: mean over all steps, before clipping.
    """

    round: int
    reward: float
    reward_best: float
    reward_worst: float
    seconds: float
    cut: float
    pairs: int
    steps: int
    loss: float
    margin: float
    grad_norm: float


def run_dpo(
    parler: Parler, prompts: Sequence[Prompt], reward: AudioReward, settings: DpoSettings
) -> Iterator[RoundMetrics]:
    """Train the model in the worker, which `parler.save` keeps. Yields the metrics of each round when it is over."""
    for index in range(settings.rounds):
        yield _round(parler, prompts, reward, settings, index)


def best_and_worst(clips: Sequence[SpokenClip], scores_N: NDArray[np.floating], clips_of_each: int) -> list[ClipPair]:
    """A pair for each prompt; none for a prompt whose clips all have one score.

    Args:
        clips: the clips of a prompt follow each other, `clips_of_each` of every prompt.
    """
    pairs = []
    for start in range(0, len(clips), clips_of_each):
        scores = scores_N[start : start + clips_of_each]
        best, worst = int(scores.argmax()), int(scores.argmin())
        if scores[best] > scores[worst]:
            pairs.append(ClipPair(clips[start + best], clips[start + worst]))
    return pairs


def score(reward: AudioReward, prompts: Sequence[Prompt], audio: Sequence[Audio]) -> NDArray[np.float64]:
    """The reward's scores, (N,). Raises DataError unless there is a finite number for each clip."""
    scores_N = np.asarray(reward(prompts, audio), dtype=np.float64)
    if scores_N.shape != (len(audio),):
        raise DataError(
            f"the reward returned scores of shape {scores_N.shape} for {len(audio)} clips; expected one each"
        )
    if not np.isfinite(scores_N).all():
        number = int(np.flatnonzero(~np.isfinite(scores_N))[0])
        clip = f"{audio[number].seconds:.2f} s to {prompts[number].text!r}"
        raise DataError(f"the reward returned {scores_N[number]} for clip {number} ({clip}); expected a finite number")
    return scores_N


def _round(
    parler: Parler, prompts: Sequence[Prompt], reward: AudioReward, settings: DpoSettings, index: int
) -> RoundMetrics:
    sampling_seed, order_seed = np.random.SeedSequence([settings.seed, index]).generate_state(2)
    clips = parler.generate(prompts, clips=settings.clips, seed=int(sampling_seed), temperature=settings.temperature)
    audio = parler.decode(clips)
    scores_N = score(reward, [clip.prompt for clip in clips], audio)
    pairs = best_and_worst(clips, scores_N, settings.clips)
    if not pairs:
        same = f"the reward gave all {settings.clips} clips of each prompt one score"
        raise NoPairs(f"round {index + 1}: {same}, so there are no pairs; raise clips or temperature")
    steps = list(_train(parler, pairs, settings, np.random.default_rng(order_seed)))
    steps_an_epoch = len(steps) // settings.epochs
    last_epoch = [pair for step in steps[-steps_an_epoch:] for pair in step.pairs]
    scores_PG = scores_N.reshape(len(prompts), settings.clips)
    return RoundMetrics(
        round=index + 1,
        reward=float(scores_N.mean()),
        reward_best=float(scores_PG.max(1).mean()),
        reward_worst=float(scores_PG.min(1).mean()),
        seconds=float(np.mean([sound.seconds for sound in audio])),
        cut=float(np.mean([not clip.is_ended for clip in clips])),
        pairs=len(pairs),
        steps=len(steps),
        loss=float(np.mean([loss for loss, _ in last_epoch])),
        margin=float(np.mean([margin for _, margin in last_epoch])),
        grad_norm=float(np.mean([step.grad_norm for step in steps])),
    )


class _Step(NamedTuple):
    """(loss, margin) of each pair of a step, and the gradient's norm."""

    pairs: list[tuple[float, float]]
    grad_norm: float


def _train(
    parler: Parler, pairs: Sequence[ClipPair], settings: DpoSettings, rng: np.random.Generator
) -> Iterator[_Step]:
    reference = [_pair_logps(parler, [pair], settings.length, with_graph=False) for pair in pairs]
    for _ in range(settings.epochs):
        order = rng.permutation(len(pairs))
        for start in range(0, len(pairs), settings.pairs_per_step):
            chosen = order[start : start + settings.pairs_per_step]
            policy = _pair_logps(parler, [pairs[i] for i in chosen], settings.length, with_graph=True)
            before = PairLogps(*(torch.cat(side) for side in zip(*(reference[i] for i in chosen), strict=True)))
            output = dpo(policy, before, beta=settings.beta)
            loss = output.per_pair_B.mean()
            if not torch.isfinite(loss):
                raise NumericError(f"the loss of DPO is {float(loss)}; lower lr={settings.lr:g}")
            loss.backward()
            norms = parler.step(lr=settings.lr, max_grad_norm=settings.max_grad_norm)
            values = zip(output.per_pair_B.tolist(), output.margin_B.tolist(), strict=True)
            yield _Step(list(values), norms["all"])


def _pair_logps(parler: Parler, pairs: Sequence[ClipPair], length: str, *, with_graph: bool) -> PairLogps:
    """Log-probabilities of both clips of each pair, which have one prompt and are computed together."""
    logps = parler.logps([clip for pair in pairs for clip in pair], with_graph=with_graph)
    clips_N = logps.means_N if length == "mean" else logps.clips_N
    return PairLogps(clips_N[0::2], clips_N[1::2])

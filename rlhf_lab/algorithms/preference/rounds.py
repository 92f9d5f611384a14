"""One round of iterative preference optimisation: sample, score, and pair the best response with the worst.

A round is stored as JSON, so that a resumed run trains on exactly the same pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rlhf_lab.algorithms.preference.settings import IterativeDPO
from rlhf_lab.core.episodes import Episode
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import fingerprint, read_json, write_json
from rlhf_lab.core.types import Reward
from rlhf_lab.losses.preference import PairLogps, consistency_rate
from rlhf_lab.models.pair_rows import PairRows, sequence_logps
from rlhf_lab.monitoring.monitor import Watch, disagreement, unverified
from rlhf_lab.sampling.episodes import EpisodeCollector
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.training.run import Run


@dataclass
class Round:
    """Pairs that one round labelled, and their metrics. All fields except `index` are keys of the round's JSON file.

    Attributes:
        index: index of the round, from 1.
        metrics: metrics of the round (definitions: metrics.py).
        pairs: (prompt, chosen, rejected) token ids of each pair.
        consistency: CREAM's C of these labels; 1 leaves the labels unweighted.
        watched: monitor row over all sampled responses of the round; None if the monitor is off.
        previous: [chosen, rejected] log-probabilities under the policy at the start of the round, over all training
            pairs of the round (the buffer's, then the corpus's); None if the loss does not need them.
    """

    index: int
    metrics: dict[str, float]
    pairs: list[list[list[int]]]
    consistency: float = 1.0
    watched: dict[str, Any] | None = None
    previous: list[list[float]] | None = None

    def rows(self) -> list[PairRows]:
        return [((prompt, chosen), (prompt, rejected)) for prompt, chosen, rejected in self.pairs]

    def previous_logps(self) -> PairLogps | None:
        if self.previous is None:
            return None
        return PairLogps(*(torch.tensor(side) for side in self.previous))


class RoundFiles:
    """rounds/round_<index>.json of a run directory."""

    def __init__(self, run: Run):
        self.directory = run.directory / "rounds"

    def path(self, index: int) -> Path:
        return self.directory / f"round_{index}.json"

    def read(self, index: int) -> Round:
        """Read a round. Raise ArtifactError if the file is missing or differs from what `write` stored."""
        values = read_json(self.path(index))
        digest = values.pop("sha256", None) if isinstance(values, dict) else None
        if digest is None or digest != fingerprint(values):
            state = "damaged" if self.path(index).exists() else "missing"
            raise ArtifactError(
                f"{self.path(index)} is {state}, and the policy has trained on its pairs; restore it from a copy, or "
                f"delete {self.directory.parent} to run the stage again"
            )
        return Round(index, **values)

    def write(self, current: Round) -> None:
        self.directory.mkdir(exist_ok=True)
        values = {"metrics": current.metrics, "pairs": current.pairs, "consistency": current.consistency}
        optional = {"previous": current.previous, "watched": current.watched}
        # Empty fields are omitted, so that they do not change the digest of rounds without them.
        values |= {key: value for key, value in optional.items() if value}
        write_json(self.path(current.index), values | {"sha256": fingerprint(values)})


@dataclass
class RollOut:
    """Sampler of rounds: samples, scores and pairs responses. Contains everything that is the same in all rounds."""

    settings: IterativeDPO
    run: Run
    collector: EpisodeCollector
    reward: Reward
    monitor: Watch

    def make(self, index: int, model: nn.Module, reference: nn.Module) -> Round:
        """Sample G responses per prompt, score them, and pair the best with the worst."""
        settings, group_size = self.settings, self.settings.samples_per_prompt
        all_prompts = self.run.corpus.prompts("train")
        generator = torch.Generator().manual_seed(self.run.seed("dpo_iterative/prompts", index))
        selected = torch.randperm(len(all_prompts), generator=generator)[: settings.prompts_per_round].tolist()
        tasks = [self.run.corpus.task(all_prompts[i]) for i in selected]
        # The round's file stores the number of truncated prompts, because a resumed run does not roll out again.
        cut_before = self.collector.prompts_cut
        collected = self.collector.collect(model, tasks, group_size, self.run.seed("dpo_iterative/rollout", index))
        # Score all responses at once; row b·G + g is response g to prompt b.
        episodes = list(chain.from_iterable(collected))
        rewards = self.reward(episodes)
        scores_BG = rewards.total_N.reshape(len(tasks), group_size)
        ranked = best_and_worst(scores_BG)
        pairs = []
        for b, best, worst in ranked:
            chosen = collected[b][best]
            rejected = collected[b][worst]
            pairs.append([chosen.prompt_ids, chosen.token_ids, rejected.token_ids])
        metrics = self._metrics(scores_BG, ranked, episodes)
        metrics["prompts_cut"] = float(self.collector.prompts_cut - cut_before)
        consistency = 1.0
        if settings.consistency == "cream":
            consistency = self._consistency_rate(index, scores_BG, episodes, model, reference)
            metrics["consistency"] = consistency
        monitor_row = None
        if self.monitor.on:
            monitor_row = self.monitor.row(episodes, rewards.total_N, disagreement(rewards), unverified(rewards))
        return Round(index, metrics, pairs, consistency, monitor_row)

    def _metrics(
        self,
        scores_BG: NDArray[np.float64],
        ranked: list[tuple[int, int, int]],
        episodes: Sequence[Episode],
    ) -> dict[str, float]:
        """Return the metrics of a round. `episodes` are all B·G sampled responses, grouped by prompt."""
        group_size = scores_BG.shape[1]
        best = [b * group_size + i for b, i, _ in ranked]
        worst = [b * group_size + j for b, _, j in ranked]
        scores_N = scores_BG.reshape(-1)
        metrics = {
            "pairs": float(len(ranked)),
            "ties": float(len(scores_BG) - len(ranked)),
        }
        if ranked:  # if all prompts tie, there is no best and no worst response
            metrics["reward_best"] = float(scores_N[best].mean())
            metrics["reward_worst"] = float(scores_N[worst].mean())
        gold_N = self.run.measure_samples(episodes).get("gold")
        if ranked and gold_N is not None:
            agreement = win_or_tie(gold_N[best] - gold_N[worst])
            metrics["pair_gold_agreement"] = float(np.nanmean(agreement))
        return metrics

    def _consistency_rate(
        self,
        index: int,
        scores_BG: NDArray[np.float64],
        episodes: Sequence[Episode],
        model: nn.Module,
        reference: nn.Module,
    ) -> float:
        """Return CREAM's C: agreement of the reward's rankings with those of the previous iterate's implicit reward.

        The implicit reward is log π_t − log π_ref of the policy at the start of the round. In the first round this
        policy is the reference, all implicit rewards are 0, and C is set to 1.
        """
        if index == 1:
            return 1.0
        rows = [(episode.prompt_ids, episode.token_ids) for episode in episodes]
        with self.run.autocast():
            implicit_N = sequence_logps(model, rows, self.run.device) - sequence_logps(reference, rows, self.run.device)
        return consistency_rate(torch.from_numpy(scores_BG), implicit_N.reshape(scores_BG.shape))


def best_and_worst(scores_BG: NDArray[np.float64]) -> list[tuple[int, int, int]]:
    """Return (prompt, best, worst) positions of every prompt whose responses differ in score, without NaN scores."""
    ranked = []
    for b, scores_G in enumerate(scores_BG):
        if np.isnan(scores_G).all():  # nanmax of an empty set would warn
            continue
        if np.nanmax(scores_G) != np.nanmin(scores_G):
            best = int(np.nanargmax(scores_G))
            worst = int(np.nanargmin(scores_G))
            ranked.append((b, best, worst))
    return ranked

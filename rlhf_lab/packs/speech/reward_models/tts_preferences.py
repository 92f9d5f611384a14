"""Stage that ranks clips of a policy by a reward of their audio, and writes the best and the worst as pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rlhf_lab.core.arrays import FloatArray
from rlhf_lab.core.errors import ConfigError
from rlhf_lab.data.generated import rejections, write_generated
from rlhf_lab.packs.speech.reward_models.settings import TTSPreferences
from rlhf_lab.packs.speech.world.clip_world import clip_world_of
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.sampling.policy_responses import PolicyResponses
from rlhf_lab.statistics.estimates import win_or_tie
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.training.run import Result, Run

IDENTICAL = "identical clips"
TIE = "equal scores"
UNSCORED = "fewer than two scored clips"
PRIMARY = ("made/rows", "made/label_agreement", "made/score_gap")
COLUMNS = ("sentence", "style", "voice")
"""Columns of the row of a prompt that become columns of its pair."""
TRUTH = ("gold", "garble")
"""Measures of the world that become columns of both clips."""

Row = dict[str, Any]


class ClipPreferences:
    """Samples clips, ranks those of each prompt, and writes the corpus of pairs."""

    def __init__(self, settings: TTSPreferences, run: Run):
        self.settings, self.run = settings, run
        self.world = clip_world_of(run.data, "tts_preferences")
        reward = build_reward(run)
        if reward is None:
            raise ConfigError("needs.reward is not set, but algorithm=tts_preferences ranks clips by it; set it")
        self.reward = reward
        self.responses = PolicyResponses(run)

    def finish(self) -> Result:
        samples = self.settings.samples
        seed = self.run.seed("tts_preferences/prompts")
        prompts = self.world.prompt_grid(self.settings.texts_per_category, seed=seed)
        about = [self.world.read_prompt(prompt).metadata() for prompt in prompts]
        # a reward may read the row of a prompt, which the data have only for their own prompts
        metadata = {**self.run.data.metadata, **dict(zip(prompts, about, strict=True))}
        corpus = replace(self.run.data, metadata=metadata)
        sampled = self.responses.sample(prompts, samples, "tts_preferences")
        # prompt-major: the clips of a prompt are adjacent
        clips_of_each = list(zip(*sampled, strict=True))
        repeated = [prompt for prompt in prompts for _ in range(samples)]
        episodes = corpus.episodes(repeated, [clip for clips in clips_of_each for clip in clips])
        scores_PG = self.reward(episodes).total_N.reshape(len(prompts), samples)
        measured = corpus.measure(episodes)
        rows = []
        for i, prompt in enumerate(prompts):
            own = slice(i * samples, (i + 1) * samples)
            row: Row = {"prompt": prompt, **{name: about[i][name] for name in COLUMNS}}
            truth = {name: measured[name][own] for name in TRUTH if name in measured}
            rows.append(row | best_and_worst(clips_of_each[i], scores_PG[i], truth))
        return Result(metrics=self._write(rows), primary=list(PRIMARY))

    def _write(self, rows: Sequence[Row]) -> Row:
        """Write the pairs, and the prompts that gave no pair. Returns the metrics."""
        kept = [{name: value for name, value in row.items() if name != "problem"} for row in rows if not row["problem"]]
        rejected = [row for row in rows if row["problem"]]
        upstream = {role: self.run.config.needs[role] for role in self.run.needs}
        about = {
            "data": self.run.data.fingerprint,
            "upstream": upstream,
            "ranked_by": list(self.run.config.reward.terms),
        }
        write_generated(self.run.directory, "pairs", kept, rejected, about)
        metrics: Row = {"made/items": len(rows), "made/rows": len(kept), **rejections(rejected)}
        if not kept:
            return metrics
        # the styles of one sentence are not independent
        texts = np.unique([self.world.read_prompt(row["prompt"]).text for row in kept], return_inverse=True)[1]
        gaps_P = np.array([row["score_chosen"] - row["score_rejected"] for row in kept])
        metrics["made/score_gap"] = clustered_mean(gaps_P, texts)
        if "gold_chosen" in kept[0]:
            metrics |= _label_quality(kept, texts)
        return metrics


def best_and_worst(clips: Sequence[str], scores_G: FloatArray, truth: dict[str, FloatArray]) -> Row:
    """Return the columns of a pair: best and worst clip of a prompt, the scores of all clips, and the world's measures.

    The scores are in descending order.

    `problem` is the reason why the prompt gives no pair, or None. A clip without a score (NaN) is not ranked.
    """
    ranked = [int(i) for i in np.argsort(-scores_G, kind="stable") if not np.isnan(scores_G[i])]
    row: Row = {"scores": [float(scores_G[i]) for i in ranked]}
    if len(ranked) < 2:
        return row | {"problem": UNSCORED}
    if scores_G[ranked[0]] == scores_G[ranked[-1]]:
        return row | {"problem": TIE}
    sides = {"chosen": ranked[0], "rejected": ranked[-1]}
    if clips[sides["chosen"]] == clips[sides["rejected"]]:
        return row | {"problem": IDENTICAL}
    for side, i in sides.items():
        row |= {side: clips[i], f"score_{side}": float(scores_G[i])}
        row |= {f"{name}_{side}": float(values_G[i]) for name, values_G in truth.items()}
    return row | {"problem": None}


def _label_quality(kept: Sequence[Row], texts: np.ndarray) -> Row:
    """Return how often the true reward agrees with the ranking, over all pairs and by category and style."""
    gap_P = np.array([row["gold_chosen"] - row["gold_rejected"] for row in kept])
    # 1 if gold agrees with the ranking, 0 if it disagrees, ½ for equal gold
    agreement_P = win_or_tie(gap_P)
    quality = {
        "made/label_agreement": clustered_mean(agreement_P, texts),
        "made/gold": clustered_mean(np.array([row["gold_chosen"] for row in kept]), texts),
        "made/gold_rejected": clustered_mean(np.array([row["gold_rejected"] for row in kept]), texts),
    }
    for column in ("sentence", "style"):
        for name in dict.fromkeys(row[column] for row in kept):
            of_name_P = np.array([row[column] == name for row in kept])
            quality[f"made/label_agreement/{name}"] = clustered_mean(agreement_P[of_name_P], texts[of_name_P])
    return quality


def build(settings: TTSPreferences, run: Run) -> ClipPreferences:
    return ClipPreferences(settings, run)

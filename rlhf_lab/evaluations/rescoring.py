"""Saved replies under other weightings of the reward: what each would have chosen, from `evaluation.jsonl` alone.

No model is called, no torch imported. What a weighting chooses is what best-of-n sampling would return: all n of N
replies are taken into account (`statistics/choice.py`). A policy trained on the weighting is another question.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.config.sections import RewardGraph
from rlhf_lab.core import seal
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.types import FloatArray
from rlhf_lab.rewards.combine import SCALES_FILE, combine, nodes, with_scales
from rlhf_lab.statistics.best_of_n import best_of_n_kl
from rlhf_lab.statistics.choice import choice_probabilities, chosen_values, chosen_win_rate, rank_correlation
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean

TRUTH = ("gold", "verbose", "garble", "correct", "tokens", "ended")
PREFIX = "reward/"


@dataclass(frozen=True)
class SavedReplies:
    """Replies of one policy as an evaluation logged them.

    Attributes:
        rows: one per reply, prompt-major.
        prompts: for each prompt, the indices of its replies.
        columns: numeric column → values, (N,); NaN is unscored.
    """

    folder: Path
    policy: str
    rows: list[dict[str, Any]]
    prompts: list[np.ndarray]
    columns: dict[str, FloatArray]

    @property
    def parts(self) -> dict[str, FloatArray]:
        """Node of the reward graph → its values."""
        return {name.removeprefix(PREFIX): v for name, v in self.columns.items() if name.startswith(PREFIX)}

    @property
    def per_prompt(self) -> int:
        """Replies that every prompt has."""
        return min(len(index) for index in self.prompts)

    def score(self, settings: RewardGraph) -> FloatArray:
        """The reward of each reply, (N,). Raises ArtifactError when a term's values were not saved."""
        parts = self.parts
        missing = [name for name in nodes(settings) if name not in parts]
        if missing:
            terms = ", ".join(sorted(name for name in parts if "/" not in name)) or "none"
            raise ArtifactError(
                f"{self.folder}/evaluation.jsonl has no column {', '.join(PREFIX + name for name in missing)} (saved "
                f"terms: {terms}); sample the replies again with these terms in reward=[…], any weight will do"
            )
        scales = read_json(self.folder / SCALES_FILE) or {}
        unknown = [n for n, term in settings.terms.items() if term.standardise == "corpus" and n not in scales]
        if unknown:
            raise ArtifactError(
                f"{self.folder}/{SCALES_FILE} has no scale of {', '.join(unknown)}, which was not standardised on the "
                "corpus when the replies were scored; write standardise=fixed with mean and sd"
            )
        return combine(parts, with_scales(settings, scales))


def read_replies(folder: str | Path, policy: str = "") -> SavedReplies:
    """The saved replies of a policy, the first in the file unless named. Raises ArtifactError when there are none."""
    folder = Path(folder)
    seal.check(folder, rebuilt=False, say=console.print)
    rows = read_jsonl(folder / "evaluation.jsonl")
    if not rows:
        raise ArtifactError(f"{folder} has no evaluation.jsonl with replies; name the run directory of an evaluation")
    names = list(dict.fromkeys(row["policy"] for row in rows))
    policy = policy or names[0]
    rows = [row for row in rows if row["policy"] == policy]
    if not rows:
        raise ArtifactError(f"{folder}/evaluation.jsonl has no policy {policy!r}; it has {', '.join(names)}")
    prompt_N = np.array([row["prompt_id"] for row in rows])
    keys = [key for key in rows[0] if key in ("proxy", *TRUTH) or key.startswith(PREFIX)]
    columns = {
        key: np.array([np.nan if row.get(key) is None else row[key] for row in rows], dtype=np.float64) for key in keys
    }
    return SavedReplies(folder, policy, rows, [np.flatnonzero(prompt_N == p) for p in dict.fromkeys(prompt_N)], columns)


@dataclass(frozen=True)
class Rescored:
    """What a weighting makes of the replies: estimates by name, and a row per prompt as best-of-n writes them."""

    name: str
    metrics: dict[str, Estimate]
    rows: list[dict[str, Any]]

    def summary(self) -> dict[str, Any]:
        """As an entry of `policies` in result.json."""
        return {"name": self.name, "metrics": {key: value.to_dict() for key, value in self.metrics.items()}}


def rescore(
    replies: SavedReplies, graphs: Mapping[str, RewardGraph], n: int = 0, first_N: FloatArray | None = None
) -> list[Rescored]:
    """The policy itself, then the choice of each weighting; see metrics.py.

    Rewards under different weightings have different units, so `proxy` is there with one weighting only.

    Args:
        graphs: label → graph.
        n: replies that are chosen from; 0 is half of those there are, so that the estimate averages over many subsets
            and opponents are left for `win_rate`.
        first_N: rewards that `rank_first` and `same_choice` compare with; None takes the first weighting's.
    """
    n = n or max(1, replies.per_prompt // 2)
    if n > replies.per_prompt:
        raise ArtifactError(f"best of {n} needs {n} replies per prompt; {replies.folder} has {replies.per_prompt}")
    scores = {label: replies.score(graph) for label, graph in graphs.items()}
    first_N = next(iter(scores.values())) if first_N is None else first_N
    table = {name: v for name, v in replies.columns.items() if name in TRUTH or name.startswith(PREFIX)}
    table = {name: values_N for name, values_N in table.items() if not np.isnan(values_N).all()}
    own = {"proxy": next(iter(scores.values()))} if len(scores) == 1 else {}
    found = [_policy(replies, {**table, **own}, own)]
    for label, score_N in scores.items():
        columns = {**table, "proxy": score_N} if own else table
        found.append(_choice(replies, label, score_N, columns, first_N, n))
    return found


def label_of(weights: Mapping[str, float]) -> str:
    """A weighting as a name: "0.7 bt + 0.3 programmatic"."""
    return " + ".join(f"{weight:g} {name}" for name, weight in weights.items() if weight)


def _policy(replies: SavedReplies, table: dict[str, FloatArray], own: dict[str, FloatArray]) -> Rescored:
    clusters_N = np.array([row["prompt_id"] for row in replies.rows])
    metrics = {name: clustered_mean(values_N, clusters_N) for name, values_N in table.items()}
    rows = [{key: value for key, value in row.items() if key != "proxy"} for row in replies.rows]
    for name, values_N in own.items():
        rows = [{**row, name: _number(value)} for row, value in zip(rows, values_N, strict=True)]
    return Rescored(replies.policy, metrics, rows)


def _choice(
    replies: SavedReplies, label: str, score_N: FloatArray, table: dict[str, FloatArray], first_N: FloatArray, n: int
) -> Rescored:
    prompts, values_NC = np.arange(len(replies.prompts)), np.stack(list(table.values()), axis=1)
    chosen_PC = np.stack([chosen_values(choice_probabilities(score_N[i], n), values_NC[i]) for i in replies.prompts])
    expected = dict(zip(table, chosen_PC.T, strict=True))
    if "gold" in table:
        wins_P = np.array([chosen_win_rate(score_N[i], table["gold"][i], n) for i in replies.prompts])
        expected |= {} if np.isnan(wins_P).all() else {"win_rate": wins_P}
    found = {name: clustered_mean(values_P, prompts) for name, values_P in expected.items()}
    if "gold" in table:
        found["rank_gold"] = rank_correlation(score_N, table["gold"], replies.prompts)
    found["rank_first"] = rank_correlation(score_N, first_N, replies.prompts)
    best, before = _best(replies, score_N, n), _best(replies, first_N, n)
    same = [np.nan if row is None else float(row == other) for row, other in zip(best, before, strict=True)]
    kl = best_of_n_kl(n)
    found |= {"same_choice": clustered_mean(same, prompts), "kl": Estimate(kl, kl, kl, len(prompts), len(prompts))}
    rows = []
    for place, row in enumerate(best):
        if row is not None:
            means = {f"expected_{name}": _number(values_P[place]) for name, values_P in expected.items()}
            own = {"proxy": _number(score_N[row])} if "proxy" in table else {}
            kept = {key: value for key, value in replies.rows[row].items() if key != "proxy"}
            rows.append({**kept, "policy": label, "kl": _number(kl), **own, **means})
    return Rescored(label, found, rows)


def _best(replies: SavedReplies, score_N: FloatArray, n: int) -> list[int | None]:
    """Row of the best of the first n replies to each prompt, the first of equals; None where none is scored."""
    first = [index[:n][~np.isnan(score_N[index[:n]])] for index in replies.prompts]
    return [int(index[np.argmax(score_N[index])]) if len(index) else None for index in first]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)

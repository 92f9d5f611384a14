"""Saved replies under other weightings of the reward: what each would have chosen, from `evaluation.jsonl` alone.

No model is called, no torch imported. What a weighting chooses is what best-of-n sampling would return, averaged over
all subsets of n among the N replies (`statistics/choice.py`). How a policy trained on the weighting would behave is not
answered here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core import measures, seal
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_json, read_jsonl
from rlhf_lab.core.types import FloatArray
from rlhf_lab.rewards.combine import SCALES_FILE, combine, nodes, with_scales
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.statistics.best_of_n import best_of_n_kl
from rlhf_lab.statistics.choice import choice_probabilities, chosen_values, chosen_win_rate, rank_correlation
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean

PREFIX = "reward/"
"""Columns that hold the values of the reward graph's nodes."""


@dataclass(frozen=True)
class SavedReplies:
    """Replies of one policy as an evaluation logged them.

    Attributes:
        rows: one per reply, prompt-major.
        prompts: for each prompt, the indices of its replies.
        columns: numeric column → values, (N,); NaN is unscored.
        truth: names of the columns that do not depend on the reward.
    """

    folder: Path
    policy: str
    rows: list[dict[str, Any]]
    prompts: list[np.ndarray]
    columns: dict[str, FloatArray]
    truth: frozenset[str]

    @property
    def parts(self) -> dict[str, FloatArray]:
        """Node of the reward graph → its values."""
        return {
            column.removeprefix(PREFIX): values_N
            for column, values_N in self.columns.items()
            if column.startswith(PREFIX)
        }

    @property
    def per_prompt(self) -> int:
        """Replies that every prompt has."""
        return min(len(index) for index in self.prompts)

    def score(self, settings: RewardGraph) -> FloatArray:
        """The reward of each reply, (N,). Raises ArtifactError when a term's values were not saved."""
        parts = self.parts
        missing = [name for name in nodes(settings) if name not in parts]
        if missing:
            terms = ", ".join(sorted(name for name in parts if "/" not in name)) or "none"  # term/part is no term
            raise ArtifactError(
                f"{self.folder}/evaluation.jsonl has no column {', '.join(PREFIX + name for name in missing)} (saved "
                f"terms: {terms}); sample the replies again with these terms in reward=[…], any weight will do"
            )
        scales = read_json(self.folder / SCALES_FILE) or {}
        on_corpus = [name for name, term in settings.terms.items() if term.standardise == "corpus"]
        unknown = [name for name in on_corpus if name not in scales]
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
    measures.recall(folder)
    truth = frozenset(("tokens", "ended", *measures.columns_of(rows[0])))
    columns = {}
    for key in rows[0]:
        if key == "proxy" or key in truth or key.startswith(PREFIX):
            values = [np.nan if row.get(key) is None else row[key] for row in rows]
            columns[key] = np.array(values, dtype=np.float64)
    prompt_N = np.array([row["prompt_id"] for row in rows])
    prompts = [np.flatnonzero(prompt_N == prompt) for prompt in dict.fromkeys(prompt_N)]
    return SavedReplies(folder, policy, rows, prompts, columns, truth)


@dataclass(frozen=True)
class Rescored:
    """The choices of one weighting: estimates by name, and a row per prompt in the form of best-of-n sampling."""

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
        n: replies that are chosen from; 0 is half of the saved ones, so that the estimate averages over many subsets
            and opponents are left for `win_rate`.
        first_N: rewards that `rank_first` and `same_choice` compare with; None takes the first weighting's.
    """
    n = n or max(1, replies.per_prompt // 2)
    if n > replies.per_prompt:
        raise ArtifactError(f"best of {n} needs {n} replies per prompt; {replies.folder} has {replies.per_prompt}")
    scores = {label: replies.score(graph) for label, graph in graphs.items()}
    if first_N is None:
        first_N = next(iter(scores.values()))
    table = {
        name: values_N
        for name, values_N in replies.columns.items()
        if (name in replies.truth or name.startswith(PREFIX)) and not np.isnan(values_N).all()
    }
    proxy_N = next(iter(scores.values())) if len(scores) == 1 else None
    if proxy_N is not None:
        table["proxy"] = proxy_N
    policies = [_score_policy(replies, table, proxy_N)]
    for label, score_N in scores.items():
        policies.append(_score_choice(replies, label, score_N, table, first_N, n))
    return policies


def label_of(weights: Mapping[str, float]) -> str:
    """A weighting as a name: "0.7 bt + 0.3 programmatic"."""
    return " + ".join(f"{weight:g} {name}" for name, weight in weights.items() if weight)


def _score_policy(replies: SavedReplies, table: dict[str, FloatArray], proxy_N: FloatArray | None) -> Rescored:
    """The policy itself: means over all its replies, and its rows with the re-scored reward in place of the saved."""
    clusters_N = np.array([row["prompt_id"] for row in replies.rows])
    metrics = {name: clustered_mean(values_N, clusters_N) for name, values_N in table.items()}
    rows = [_without_proxy(row) for row in replies.rows]
    if proxy_N is not None:
        rows = [{**row, "proxy": _number(value)} for row, value in zip(rows, proxy_N, strict=True)]
    return Rescored(replies.policy, metrics, rows)


def _score_choice(
    replies: SavedReplies, label: str, score_N: FloatArray, table: dict[str, FloatArray], first_N: FloatArray, n: int
) -> Rescored:
    """What best of n by `score_N` gets of every column of `table`."""
    expected = _expected_values(replies, score_N, table, n)
    prompts = np.arange(len(replies.prompts))
    metrics = {name: clustered_mean(values_P, prompts) for name, values_P in expected.items()}
    if "gold" in table:
        metrics["rank_gold"] = rank_correlation(score_N, table["gold"], replies.prompts)
    metrics["rank_first"] = rank_correlation(score_N, first_N, replies.prompts)
    best = _best_rows(replies, score_N, n)
    first_best = _best_rows(replies, first_N, n)
    same = [np.nan if row is None else float(row == other) for row, other in zip(best, first_best, strict=True)]
    kl = best_of_n_kl(n)
    metrics["same_choice"] = clustered_mean(same, prompts)
    metrics["kl"] = Estimate(kl, kl, kl, len(prompts), len(prompts))
    rows = []
    for prompt, best_row in enumerate(best):
        if best_row is None:
            continue
        row = {**_without_proxy(replies.rows[best_row]), "policy": label, "kl": _number(kl)}
        if "proxy" in table:
            row["proxy"] = _number(score_N[best_row])
        for name, values_P in expected.items():
            row[f"expected_{name}"] = _number(values_P[prompt])
        rows.append(row)
    return Rescored(label, metrics, rows)


def _expected_values(
    replies: SavedReplies, score_N: FloatArray, table: dict[str, FloatArray], n: int
) -> dict[str, FloatArray]:
    """Column → its mean over the best of all subsets of n replies to each prompt, (P,); `win_rate` by gold."""
    values_NC = np.stack(list(table.values()), axis=1)
    chosen_PC = np.stack(
        [chosen_values(choice_probabilities(score_N[index], n), values_NC[index]) for index in replies.prompts]
    )
    expected = dict(zip(table, chosen_PC.T, strict=True))
    if "gold" in table:
        gold_N = table["gold"]
        wins_P = np.array([chosen_win_rate(score_N[index], gold_N[index], n) for index in replies.prompts])
        if not np.isnan(wins_P).all():
            expected["win_rate"] = wins_P
    return expected


def _best_rows(replies: SavedReplies, score_N: FloatArray, n: int) -> list[int | None]:
    """Row of the best of the first n replies to each prompt, the first of equals; None where none is scored."""
    best: list[int | None] = []
    for index in replies.prompts:
        first = index[:n]
        scored = first[~np.isnan(score_N[first])]
        best.append(int(scored[np.argmax(score_N[scored])]) if len(scored) else None)
    return best


def _without_proxy(row: Mapping[str, Any]) -> dict[str, Any]:
    """A saved row without its reward, which was computed under another weighting."""
    return {key: value for key, value in row.items() if key != "proxy"}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)

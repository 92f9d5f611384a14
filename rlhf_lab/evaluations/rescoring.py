"""Re-scoring: the selections of other weightings of the reward among saved responses, from `evaluation.jsonl` alone.

No model is called and no torch imported. The selection of a weighting is the result of best-of-n sampling, averaged
over all subsets of n among the N responses (`statistics/best_of_n.py`). It does not show how a policy trained with the
weighting would behave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_lab.core import checksums as seal
from rlhf_lab.core import measures
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.core.files import read_jsonl, read_object
from rlhf_lab.core.types import FloatArray
from rlhf_lab.rewards.combine import SCALES_FILE, combine, nodes, with_scales
from rlhf_lab.rewards.settings import RewardGraph
from rlhf_lab.statistics.best_of_n import (
    best_of_n_kl,
    choice_probabilities,
    chosen_values,
    chosen_win_rate,
    rank_correlation,
)
from rlhf_lab.statistics.estimates import Estimate
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.rows import column

PREFIX = "reward/"
"""Prefix of columns with the values of the reward graph's nodes."""


@dataclass(frozen=True)
class SavedResponses:
    """Responses of one policy, as an evaluation logged them.

    Attributes:
        directory: run directory of the evaluation.
        policy: name of the policy.
        rows: one row per response, prompt-major.
        prompts: indices of the responses to each prompt.
        columns: numeric column → values, (N,); NaN is unscored.
        truth: names of the columns that do not depend on the reward.
    """

    directory: Path
    policy: str
    rows: list[dict[str, Any]]
    prompts: list[np.ndarray]
    columns: dict[str, FloatArray]
    truth: frozenset[str]

    @property
    def parts(self) -> dict[str, FloatArray]:
        """Values of the reward graph's nodes, by node."""
        return {
            column.removeprefix(PREFIX): values_N
            for column, values_N in self.columns.items()
            if column.startswith(PREFIX)
        }

    @property
    def per_prompt(self) -> int:
        """Minimum number of responses to a prompt."""
        return min(len(index) for index in self.prompts)

    def score(self, settings: RewardGraph) -> FloatArray:
        """Return the reward of each response, (N,). Raise ArtifactError if a term's values were not saved."""
        parts = self.parts
        missing = [name for name in nodes(settings) if name not in parts]
        if missing:
            # "term/part" is a part of a term
            terms = ", ".join(sorted(name for name in parts if "/" not in name)) or "none"
            raise ArtifactError(
                f"{self.directory}/evaluation.jsonl has no column {', '.join(PREFIX + name for name in missing)} "
                f"(saved terms: {terms}); sample the responses again with these terms in reward=[…], with any weights"
            )
        scales = read_object(self.directory / SCALES_FILE)
        # mean and sd of these terms were measured on the corpus when the responses were scored
        on_corpus = [name for name, term in settings.terms.items() if term.standardise == "corpus"]
        unknown = [name for name in on_corpus if name not in scales]
        if unknown:
            raise ArtifactError(
                f"{self.directory}/{SCALES_FILE} has no scale of {', '.join(unknown)}, which was not standardised on "
                "the corpus when the responses were scored; write standardise=fixed with mean and sd"
            )
        return combine(parts, with_scales(settings, scales))


def read_responses(directory: str | Path, policy: str = "") -> SavedResponses:
    """Return the saved responses of a policy, by default the first one. Raise ArtifactError if there are none."""
    directory = Path(directory)
    # the rows must be those that the evaluation wrote
    seal.check(directory, rebuilt=False, say=console.print)
    rows = read_jsonl(directory / "evaluation.jsonl")
    if not rows:
        raise ArtifactError(
            f"{directory} has no evaluation.jsonl with responses; name the run directory of an evaluation"
        )
    names = list(dict.fromkeys(row["policy"] for row in rows))
    policy = policy or names[0]
    rows = [row for row in rows if row["policy"] == policy]
    if not rows:
        raise ArtifactError(
            f"{directory}/evaluation.jsonl has no policy {policy!r}; use one of those it has: {', '.join(names)}"
        )
    # measures of packs that are not loaded here are described in the run directory
    measures.recall(directory)
    truth = frozenset(("tokens", "ended", *measures.columns_of(rows[0])))
    columns = {}
    for key in rows[0]:
        if key == "proxy" or key in truth or key.startswith(PREFIX):
            columns[key] = column(rows, key)
    prompt_N = np.array([row["prompt_id"] for row in rows])
    prompts = [np.flatnonzero(prompt_N == prompt) for prompt in dict.fromkeys(prompt_N)]
    return SavedResponses(directory, policy, rows, prompts, columns, truth)


@dataclass(frozen=True)
class Rescored:
    """Selections of one weighting: estimates by name, and one row per prompt in the form of best-of-n sampling."""

    name: str
    metrics: dict[str, Estimate]
    rows: list[dict[str, Any]]

    def summary(self) -> dict[str, Any]:
        """Return the entry of `policies` in result.json."""
        metrics = {key: value.to_dict() for key, value in self.metrics.items()}
        return {"name": self.name, "metrics": metrics}


def rescore(responses: SavedResponses, graphs: Mapping[str, RewardGraph], n: int = 0) -> list[Rescored]:
    """Evaluate the policy itself, then the selection of each weighting; see metrics.py.

    Rewards under different weightings have different units, so `proxy` is included only if there is one weighting. It
    is then compared with the saved reward, since there is no other weighting.

    Args:
        responses: saved responses.
        graphs: label → reward graph.
        n: number of responses to select from. 0 takes half of the saved ones, so that the estimate averages over many
            subsets and opponents are left for `win_rate`.
    """
    n = n or max(1, responses.per_prompt // 2)
    if n > responses.per_prompt:
        raise ArtifactError(
            f"best of {n} needs {n} responses per prompt, but {responses.directory} has {responses.per_prompt}; "
            "lower choose_from"
        )
    scores = {label: responses.score(graph) for label, graph in graphs.items()}
    first_N = responses.columns["proxy"] if len(scores) == 1 else next(iter(scores.values()))
    table = {
        name: values_N
        for name, values_N in responses.columns.items()
        if (name in responses.truth or name.startswith(PREFIX)) and not np.isnan(values_N).all()
    }
    # rewards of several weightings have no common unit
    proxy_N = next(iter(scores.values())) if len(scores) == 1 else None
    if proxy_N is not None:
        table["proxy"] = proxy_N
    policies = [_score_policy(responses, table, proxy_N)]
    for label, score_N in scores.items():
        policies.append(_score_choice(responses, label, score_N, table, first_N, n))
    return policies


def label_of(weights: Mapping[str, float]) -> str:
    """Return the name of a weighting: "0.7 bt + 0.3 programmatic"."""
    terms = [f"{weight:g} {name}" for name, weight in weights.items() if weight]
    return " + ".join(terms)


def _score_policy(responses: SavedResponses, table: dict[str, FloatArray], proxy_N: FloatArray | None) -> Rescored:
    """Return the means over all responses of the policy, and its rows with the new reward instead of the saved one."""
    clusters_N = np.array([row["prompt_id"] for row in responses.rows])
    metrics = {name: clustered_mean(values_N, clusters_N) for name, values_N in table.items()}
    rows = [_without_proxy(row) for row in responses.rows]
    if proxy_N is not None:
        rows = [{**row, "proxy": _number(value)} for row, value in zip(rows, proxy_N, strict=True)]
    return Rescored(responses.policy, metrics, rows)


def _score_choice(
    responses: SavedResponses,
    label: str,
    score_N: FloatArray,
    table: dict[str, FloatArray],
    first_N: FloatArray,
    n: int,
) -> Rescored:
    """Return the values that best of n by `score_N` attains in every column of `table`."""
    expected = _expected_values(responses, score_N, table, n)
    prompts = np.arange(len(responses.prompts))
    metrics = {name: clustered_mean(values_P, prompts) for name, values_P in expected.items()}
    if "gold" in table:
        metrics["rank_gold"] = rank_correlation(score_N, table["gold"], responses.prompts)
    metrics["rank_first"] = rank_correlation(score_N, first_N, responses.prompts)
    best = _best_rows(responses, score_N, n)
    first_best = _best_rows(responses, first_N, n)
    same = []
    for row_index, other in zip(best, first_best, strict=True):
        same.append(np.nan if row_index is None else float(row_index == other))
    kl = best_of_n_kl(n)
    metrics["same_choice"] = clustered_mean(same, prompts)
    # the KL of best-of-n is a formula in n, so its interval has no width
    metrics["kl"] = Estimate(kl, kl, kl, len(prompts), len(prompts))
    rows = []
    for prompt, best_row in enumerate(best):
        if best_row is None:
            continue
        row = {**_without_proxy(responses.rows[best_row]), "policy": label, "kl": _number(kl)}
        if "proxy" in table:
            row["proxy"] = _number(score_N[best_row])
        for name, values_P in expected.items():
            row[f"expected_{name}"] = _number(values_P[prompt])
        rows.append(row)
    return Rescored(label, metrics, rows)


def _expected_values(
    responses: SavedResponses, score_N: FloatArray, table: dict[str, FloatArray], n: int
) -> dict[str, FloatArray]:
    """Return column → mean over the best of all subsets of n responses to each prompt, (P,); `win_rate` is by gold."""
    values_NC = np.stack(list(table.values()), axis=1)
    chosen = []
    for index in responses.prompts:
        probabilities = choice_probabilities(score_N[index], n)
        chosen.append(chosen_values(probabilities, values_NC[index]))
    chosen_PC = np.stack(chosen)
    expected = dict(zip(table, chosen_PC.T, strict=True))
    if "gold" in table:
        gold_N = table["gold"]
        wins = [chosen_win_rate(score_N[index], gold_N[index], n) for index in responses.prompts]
        wins_P = np.array(wins)
        if not np.isnan(wins_P).all():
            expected["win_rate"] = wins_P
    return expected


def _best_rows(responses: SavedResponses, score_N: FloatArray, n: int) -> list[int | None]:
    """Return the row of the best of the first n responses to each prompt (ties: the first); None if none is scored."""
    best: list[int | None] = []
    for index in responses.prompts:
        first = index[:n]
        scored = first[~np.isnan(score_N[first])]
        # argmax returns the first of several equal maxima
        best.append(int(scored[np.argmax(score_N[scored])]) if len(scored) else None)
    return best


def _without_proxy(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved row without its reward, which was computed with another weighting."""
    return {key: value for key, value in row.items() if key != "proxy"}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 6)

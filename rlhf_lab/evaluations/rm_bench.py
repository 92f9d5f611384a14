"""Public benchmarks of reward models: whatever the reward graph is, scored by the benchmark's own rule.

The rules are in `statistics/reward_bench.py`. An item of which a reply is unscored is left out of the scores and
counted. Beside `result.json` stands what the benchmark's own code writes: scores per subset for RewardBench, scores
per problem for RewardMATH, solutions with `prediction` and `match` for ProcessBench.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.files import write_json, write_text
from rlhf_lab.core.types import FloatArray, Reward
from rlhf_lab.data.benchmarks import Item, Solution, own_items, read_items, read_solutions
from rlhf_lab.evaluations.settings import RewardBenchmark
from rlhf_lab.rewards.graph import build_reward
from rlhf_lab.statistics import reward_bench as rules
from rlhf_lab.statistics.estimates import LEVEL, Estimate
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.steps import process_bench_estimates
from rlhf_lab.training.run import Result, Run

DRAWS = 1000


class Benchmarking:
    """Scores one benchmark; see metrics.py."""

    def __init__(self, settings: RewardBenchmark, run: Run):
        self.settings, self.run = settings, run
        self.reward: Reward | None = build_reward(run)

    def finish(self) -> Result:
        assert self.reward is not None, "config.check refuses a benchmark without what its reward reads"
        settings, run = self.settings, self.run
        if settings.benchmark == "process_bench":
            solutions = read_solutions(settings.path, settings.max_rows)
            found, files = process_bench(self.reward, solutions, settings.threshold)
        else:
            items = self._items()
            scores = score_items(self.reward, items)
            found, files = BENCHMARKS[settings.benchmark](items, scores)
        for name, content in files.items():
            if isinstance(content, str):
                write_text(run.folder / name, content)
            else:
                named = {"model": str(run.config.needs.get("reward")), "model_type": "+".join(run.config.reward.terms)}
                write_json(run.folder / name, named | content if isinstance(content, dict) else content)
        score = found.pop("score", None)
        first = {} if score is None else {"score": score}
        return Result(metrics=first | found, primary=[name for name in (*first, *found) if "section/" not in name])

    def _items(self) -> list[Item]:
        settings, run = self.settings, self.run
        if settings.path:
            return read_items(settings.benchmark, settings.path, settings.max_rows)
        items = own_items(run.corpus.name, list(run.corpus.test))[: settings.max_rows or None]
        run.note(f"path is empty: {len(items)} held-out pairs of data={run.corpus.name} stand in for the benchmark")
        return items


def score_items(reward: Reward, items: Sequence[Item]) -> list[FloatArray]:
    """Scores of each item's replies, right ones first."""
    prompts = [item.prompt for item in items for _ in item.replies]
    scores_N = reward(prompts, [text for item in items for text in item.replies]).total_N
    return np.split(scores_N, np.cumsum([len(item.replies) for item in items])[:-1])


def reward_bench(items: Sequence[Item], scores: Sequence[FloatArray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metrics, files) of RewardBench: accuracy per subset and section; `score` where all four sections are there."""
    wins = [math.nan if np.isnan(s).any() else float(rules.pair_wins(s[:1], s[1:])[0]) for s in scores]
    subsets = by_subset(items, wins)
    found: dict[str, Any] = {**subsets, **counts(items, scores)}
    sections = {
        section: weighted({name: subsets[name] for name in weights if name in subsets}, weights)
        for section, weights in rules.SECTIONS.items()
        if any(name in subsets for name in weights)
    }
    found |= {f"section/{name}": value for name, value in sections.items()}
    if len(sections) == len(rules.SECTIONS):
        found["score"] = weighted(sections, dict.fromkeys(sections, 1))
    rows = [
        {"id": i.name, "subset": i.subset, "results": _number(w), "scores_chosen": s[0], "scores_rejected": s[1]}
        for i, w, s in zip(items, wins, scores, strict=True)
    ]
    return found, result_files("reward_bench", subsets, rows)


def reward_bench_2(items: Sequence[Item], scores: Sequence[FloatArray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metrics, files) of RewardBench 2: best-of-4 credit per subset, Ties by its formula; `score` is their mean."""
    credit = [math.nan if np.isnan(s).any() else rules.best_of_credit(s) for s in scores]
    ties = [item.subset.lower() == "ties" for item in items]
    plain = [item for item, tie in zip(items, ties, strict=True) if not tie]
    subsets = by_subset(plain, [one for one, tie in zip(credit, ties, strict=True) if not tie])
    prompts = [
        rules.TiesPrompt(int(i.name.partition(":")[2]), i.name.startswith("tied"), *_sides(i, s))
        for i, s, tie in zip(items, scores, ties, strict=True)
        if tie and not np.isnan(s).any()
    ]
    if {p.number for p in prompts if p.tied} & {p.number for p in prompts if not p.tied}:
        subsets[rules.TIES] = ties_estimate(prompts)
    elif any(ties):  # no question has both of its prompts scored
        subsets[rules.TIES] = Estimate(math.nan, -math.inf, math.inf, 0, 0)
    found: dict[str, Any] = {"score": weighted(subsets, dict.fromkeys(subsets, 1)), **subsets, **counts(items, scores)}
    rows = [
        {
            "id": i.name,
            "subset": i.subset,
            "num_correct": len(i.right),
            "scores": s,
            "results": None if t else _number(c),
        }
        for i, s, c, t in zip(items, scores, credit, ties, strict=True)
    ]
    return found, result_files("reward_bench_2", subsets, rows)


def reward_math(items: Sequence[Item], scores: Sequence[FloatArray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metrics, files) of RewardMATH."""
    groups = [
        None if np.isnan(s).any() else rules.rewardmath_group(*_sides(i, s)) for i, s in zip(items, scores, strict=True)
    ]
    problems = np.arange(len(items))

    def mean(name: str) -> Estimate:
        return clustered_mean([math.nan if g is None else float(getattr(g, name)) for g in groups], problems)

    found: dict[str, Any] = {
        "score": mean("wins"),
        "ties_allowed": mean("wins_or_ties"),
        "mrr": mean("reciprocal_rank"),
    }
    rows = [{"problem": i.prompt, "chosen": len(i.right), "score": s} for i, s in zip(items, scores, strict=True)]
    return found | counts(items, scores), {"reward_math.json": _plain(rows)}


def process_bench(
    reward: Reward, solutions: Sequence[Solution], threshold: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(metrics, files) of ProcessBench: the solution so far is scored after every step, as a reply to the problem."""
    prompts = [one.prompt for one in solutions for _ in one.steps]
    scores_N = reward(prompts, [text for one in solutions for text in one.prefixes]).total_N
    scores = np.split(scores_N, np.cumsum([len(one.steps) for one in solutions])[:-1])
    known = [(one, s) for one, s in zip(solutions, scores, strict=True) if not np.isnan(s).any()]
    predicted = [rules.first_error(s, threshold) for _, s in known]
    found: dict[str, Any] = {}
    files: dict[str, Any] = {}
    f1: dict[str, Estimate] = {}
    for subset in dict.fromkeys(one.subset for one, _ in known):
        place = [k for k, (one, _) in enumerate(known) if one.subset == subset]
        labels = [known[k][0].label for k in place]
        estimates = process_bench_estimates([predicted[k] for k in place], labels, [known[k][0].prompt for k in place])
        found |= {f"{subset}/{name}": value for name, value in estimates.items()}
        f1[subset] = estimates["f1"]
        for kind in ("error", "correct"):
            rows = [
                {**known[k][0].values, "prediction": predicted[k], "match": predicted[k] == known[k][0].label}
                for k in place
                if (known[k][0].label == rules.NO_ERROR) == (kind == "correct")
            ]
            files[f"{subset}_{kind}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows)
    score = {"score": weighted(f1, dict.fromkeys(f1, 1))} if f1 else {}
    return score | found | counts(solutions, scores), files


BENCHMARKS = {"reward_bench": reward_bench, "reward_bench_2": reward_bench_2, "reward_math": reward_math}


def _sides(item: Item, scores_K: FloatArray) -> tuple[list[float], list[float]]:
    """Scores of the right and of the wrong replies."""
    scores = scores_K.tolist()
    return scores[: len(item.right)], scores[len(item.right) :]


def by_subset(items: Sequence[Item], values: Sequence[float]) -> dict[str, Estimate]:
    """Mean of each subset, clustered by prompt; subsets in order of appearance."""
    found = {}
    for subset in dict.fromkeys(item.subset for item in items):
        rows = [(v, item.prompt) for v, item in zip(values, items, strict=True) if item.subset == subset]
        found[subset] = clustered_mean([v for v, _ in rows], [prompt for _, prompt in rows])
    return found


def weighted(parts: Mapping[str, Estimate], weights: Mapping[str, float]) -> Estimate:
    """Weighted mean of independent estimates; half-widths add in squares."""
    total = sum(weights[name] for name in parts)
    mean = sum(part.mean * weights[name] for name, part in parts.items()) / total
    n, clusters = (sum(getattr(part, count) for part in parts.values()) for count in ("n", "clusters"))
    if math.isnan(mean) or not all(part.bounded for part in parts.values()):
        return Estimate(mean, -math.inf, math.inf, n, clusters)
    half = math.hypot(*((part.high - part.low) / 2 * weights[name] / total for name, part in parts.items()))
    return Estimate(mean, mean - half, mean + half, n, clusters)


def ties_estimate(prompts: Sequence[rules.TiesPrompt]) -> Estimate:
    """Score of Ties with the percentile interval of a bootstrap over questions."""
    numbers = sorted({prompt.number for prompt in prompts})
    groups = [[prompt for prompt in prompts if prompt.number == number] for number in numbers]
    score = rules.ties_score(prompts)
    if len(numbers) < 2:
        return Estimate(score, -math.inf, math.inf, len(prompts), len(numbers))
    rng, draws = np.random.default_rng(0), []
    for _ in range(DRAWS):
        picked = [groups[k] for k in rng.integers(len(groups), size=len(groups))]
        if any(len({prompt.tied for prompt in group}) == 2 for group in picked):
            drawn = [rules.renumbered(prompt, place) for place, group in enumerate(picked) for prompt in group]
            draws.append(rules.ties_score(drawn))
    low, high = (float(bound) for bound in np.quantile(draws, ((1 - LEVEL) / 2, (1 + LEVEL) / 2)))
    return Estimate(score, min(low, score), max(high, score), len(prompts), len(numbers))


def counts(items: Sequence[Any], scores: Sequence[FloatArray]) -> dict[str, Any]:
    return {"items": len(items), "unscored": sum(bool(np.isnan(s).any()) for s in scores)}


def result_files(name: str, subsets: Mapping[str, Estimate], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """RewardBench's two files: a score per subset; and the columns of all rows."""
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return {f"{name}.json": {key: part.mean for key, part in subsets.items()}, f"{name}_scores.json": _plain(columns)}


def _plain(value: Any) -> Any:
    """Arrays as lists, NaN as null."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, np.ndarray)):
        return [_plain(part) for part in value]
    return _number(float(value)) if isinstance(value, (float, np.floating)) else value


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def build(settings: RewardBenchmark, run: Run) -> Benchmarking:
    return Benchmarking(settings, run)

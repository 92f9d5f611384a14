"""Public benchmarks of reward models: any reward graph, scored by the benchmark's own rule.

The rules are in `statistics/reward_bench.py`. An item with an unscored response is excluded from the scores and
counted. In addition to `result.json`, the stage writes the files of the benchmark's own code: scores per subset for
RewardBench, scores per problem for RewardMATH, solutions with `prediction` and `match` for ProcessBench.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlhf_lab.core.files import finite_values, write_json, write_text
from rlhf_lab.core.types import FloatArray, TextReward
from rlhf_lab.data.benchmarks import BenchmarkItem, WorkedSolution, own_items, read_items, read_solutions
from rlhf_lab.evaluations.settings import RewardBenchmark
from rlhf_lab.rewards.graph import build_reward, text_reward
from rlhf_lab.statistics import reward_bench as rules
from rlhf_lab.statistics.estimates import LEVEL, Estimate
from rlhf_lab.statistics.inference import clustered_mean
from rlhf_lab.statistics.steps import process_bench_estimates
from rlhf_lab.training.run import Result, Run

DRAWS = 1000
"""Number of bootstrap samples for the interval of Ties."""

Report = tuple[dict[str, Any], dict[str, Any]]
"""(metrics, file name → content) of a benchmark."""


class Benchmarking:
    """Stage that scores one benchmark; see metrics.py."""

    def __init__(self, settings: RewardBenchmark, run: Run):
        self.settings = settings
        self.run = run
        reward = build_reward(run)
        self.reward = text_reward(reward, run.corpus) if reward else None

    def finish(self) -> Result:
        assert self.reward is not None, "config.check refuses a benchmark without what its reward reads"
        settings = self.settings
        if settings.benchmark == "process_bench":
            solutions = read_solutions(settings.path, settings.max_rows)
            metrics, files = process_bench(self.reward, solutions, settings.threshold)
        else:
            items = self._read_items()
            scores = score_items(self.reward, items)
            metrics, files = BENCHMARKS[settings.benchmark](items, scores)
        self._write_files(files)
        if "score" in metrics:  # the benchmark's headline number comes first
            metrics = {"score": metrics.pop("score"), **metrics}
        return Result(metrics=metrics, primary=[name for name in metrics if "section/" not in name])

    def _write_files(self, files: Mapping[str, Any]) -> None:
        """Write text unchanged and other content as JSON. An object also names the reward, as in the official files."""
        config, directory = self.run.config, self.run.directory
        header = {"model": str(config.needs.get("reward")), "model_type": "+".join(config.reward.terms)}
        for name, content in files.items():
            if isinstance(content, str):
                write_text(directory / name, content)
            else:
                write_json(directory / name, header | content if isinstance(content, dict) else content)

    def _read_items(self) -> list[BenchmarkItem]:
        settings, run = self.settings, self.run
        if settings.path:
            return read_items(settings.benchmark, settings.path, settings.max_rows)
        all_items = own_items(run.corpus.name, list(run.corpus.test))
        items = all_items[: settings.max_rows or None]
        run.note(
            f"path is empty: {len(items)} held-out pairs of data={run.corpus.name} are used instead of the benchmark"
        )
        return items


def score_items(reward: TextReward, items: Sequence[BenchmarkItem]) -> list[FloatArray]:
    """Return the scores of each item's responses, right ones first."""
    prompts = [item.prompt for item in items for _ in item.responses]
    responses = [text for item in items for text in item.responses]
    scores_N = reward(prompts, responses).total_N
    response_counts = [len(item.responses) for item in items]
    return np.split(scores_N, np.cumsum(response_counts)[:-1])


def reward_bench(items: Sequence[BenchmarkItem], scores: Sequence[FloatArray]) -> Report:
    """Score RewardBench: accuracy per subset and section; `score` if all four sections have items."""
    wins = [
        math.nan if np.isnan(scores_K).any() else float(rules.pair_wins(scores_K[:1], scores_K[1:])[0])
        for scores_K in scores
    ]
    subsets = by_subset(items, wins)
    sections = {}
    for section, weights in rules.SECTIONS.items():
        of_section = {name: subsets[name] for name in weights if name in subsets}
        if of_section:
            sections[section] = weighted(of_section, weights)
    metrics: dict[str, Any] = {**subsets, **counts(items, scores)}
    metrics |= {f"section/{name}": estimate for name, estimate in sections.items()}
    if len(sections) == len(rules.SECTIONS):
        metrics["score"] = weighted(sections, dict.fromkeys(sections, 1))
    rows = [
        {
            "id": item.name,
            "subset": item.subset,
            "results": win,
            "scores_chosen": scores_K[0],
            "scores_rejected": scores_K[1],
        }
        for item, win, scores_K in zip(items, wins, scores, strict=True)
    ]
    return metrics, result_files("reward_bench", subsets, rows)


def reward_bench_2(items: Sequence[BenchmarkItem], scores: Sequence[FloatArray]) -> Report:
    """Score RewardBench 2: best-of-4 credit per subset, Ties by its formula; `score` is their mean."""
    credit = [math.nan if np.isnan(scores_K).any() else rules.best_of_credit(scores_K) for scores_K in scores]
    in_ties = [item.subset.lower() == "ties" for item in items]
    others = [k for k, tie in enumerate(in_ties) if not tie]
    subsets = by_subset([items[k] for k in others], [credit[k] for k in others])
    if any(in_ties):
        subsets[rules.TIES] = score_ties([(items[k], scores[k]) for k, tie in enumerate(in_ties) if tie])
    score = weighted(subsets, dict.fromkeys(subsets, 1))
    rows = [
        {
            "id": item.name,
            "subset": item.subset,
            "num_correct": len(item.right),
            "scores": scores_K.tolist(),
            "results": None if tie else item_credit,
        }
        for item, scores_K, item_credit, tie in zip(items, scores, credit, in_ties, strict=True)
    ]
    return {"score": score, **subsets, **counts(items, scores)}, result_files("reward_bench_2", subsets, rows)


def score_ties(items: Sequence[tuple[BenchmarkItem, FloatArray]]) -> Estimate:
    """Score the Ties subset of RewardBench 2; NaN if no question has both of its prompts scored.

    Every question has a tied prompt (several right answers) and a reference prompt, named "tied:N" and "ref:N".
    """
    prompts = []
    for item, scores_K in items:
        if not np.isnan(scores_K).any():
            kind, _, number = item.name.partition(":")
            right, wrong = _sides(item, scores_K)
            prompts.append(rules.TiesPrompt(int(number), kind.startswith("tied"), right, wrong))
    with_tied = {prompt.number for prompt in prompts if prompt.tied}
    with_reference = {prompt.number for prompt in prompts if not prompt.tied}
    if with_tied & with_reference:
        return ties_estimate(prompts)
    return Estimate(math.nan, -math.inf, math.inf, 0, 0)


def reward_math(items: Sequence[BenchmarkItem], scores: Sequence[FloatArray]) -> Report:
    """Score RewardMATH: accuracy, accuracy if a tie at the top is allowed, and mean reciprocal rank."""
    groups = [
        None if np.isnan(scores_K).any() else rules.rewardmath_group(*_sides(item, scores_K))
        for item, scores_K in zip(items, scores, strict=True)
    ]
    problems = np.arange(len(items))

    def mean(name: str) -> Estimate:
        values = [math.nan if group is None else float(getattr(group, name)) for group in groups]
        return clustered_mean(values, problems)

    metrics: dict[str, Any] = {
        "score": mean("wins"),
        "ties_allowed": mean("wins_or_ties"),
        "mrr": mean("reciprocal_rank"),
    }
    rows = [
        {"problem": item.prompt, "chosen": len(item.right), "score": scores_K.tolist()}
        for item, scores_K in zip(items, scores, strict=True)
    ]
    return metrics | counts(items, scores), {"reward_math.json": finite_values(rows)}


def process_bench(reward: TextReward, solutions: Sequence[WorkedSolution], threshold: float) -> Report:
    """Score ProcessBench: after every step, the solution so far is scored as a response to the problem."""
    prompts = [solution.prompt for solution in solutions for _ in solution.steps]
    prefixes = [prefix for solution in solutions for prefix in solution.prefixes]
    scores_N = reward(prompts, prefixes).total_N
    step_counts = [len(solution.steps) for solution in solutions]
    scores = np.split(scores_N, np.cumsum(step_counts)[:-1])
    predictions = [
        (solution, rules.first_error(steps, threshold))
        for solution, steps in zip(solutions, scores, strict=True)
        if not np.isnan(steps).any()
    ]
    metrics: dict[str, Any] = {}
    files: dict[str, Any] = {}
    f1: dict[str, Estimate] = {}
    for subset in dict.fromkeys(solution.subset for solution, _ in predictions):
        of_subset = [(solution, predicted) for solution, predicted in predictions if solution.subset == subset]
        estimates = process_bench_estimates(
            [predicted for _, predicted in of_subset],
            [solution.label for solution, _ in of_subset],
            [solution.prompt for solution, _ in of_subset],
        )
        metrics |= {f"{subset}/{name}": estimate for name, estimate in estimates.items()}
        f1[subset] = estimates["f1"]
        # Two files per subset, as in the benchmark's own code: solutions with an error and without.
        lines: dict[str, list[str]] = {"error": [], "correct": []}
        for solution, predicted in of_subset:
            row = {**solution.values, "prediction": predicted, "match": predicted == solution.label}
            kind = "correct" if solution.label == rules.NO_ERROR else "error"
            lines[kind].append(json.dumps(row) + "\n")
        for kind, kind_lines in lines.items():
            files[f"{subset}_{kind}.jsonl"] = "".join(kind_lines)
    score = {"score": weighted(f1, dict.fromkeys(f1, 1))} if f1 else {}
    return score | metrics | counts(solutions, scores), files


BENCHMARKS = {"reward_bench": reward_bench, "reward_bench_2": reward_bench_2, "reward_math": reward_math}


def _sides(item: BenchmarkItem, scores_K: FloatArray) -> tuple[list[float], list[float]]:
    scores = scores_K.tolist()
    return scores[: len(item.right)], scores[len(item.right) :]


def by_subset(items: Sequence[BenchmarkItem], values: Sequence[float]) -> dict[str, Estimate]:
    """Return the mean of each subset, clustered by prompt. Subsets are in order of appearance."""
    estimates = {}
    for subset in dict.fromkeys(item.subset for item in items):
        positions = [k for k, item in enumerate(items) if item.subset == subset]
        estimates[subset] = clustered_mean([values[k] for k in positions], [items[k].prompt for k in positions])
    return estimates


def weighted(parts: Mapping[str, Estimate], weights: Mapping[str, float]) -> Estimate:
    """Return the weighted mean of independent estimates. Half-widths add in squares."""
    total = sum(weights[name] for name in parts)
    mean = sum(estimate.mean * weights[name] for name, estimate in parts.items()) / total
    n = sum(estimate.n for estimate in parts.values())
    clusters = sum(estimate.clusters for estimate in parts.values())
    # a part with fewer than two clusters has no finite interval, so the mean has none either
    if math.isnan(mean) or not all(estimate.bounded for estimate in parts.values()):
        return Estimate(mean, -math.inf, math.inf, n, clusters)
    half_width = math.hypot(*((part.high - part.low) / 2 * weights[name] / total for name, part in parts.items()))
    return Estimate(mean, mean - half_width, mean + half_width, n, clusters)


def ties_estimate(prompts: Sequence[rules.TiesPrompt]) -> Estimate:
    """Return the score of Ties, with the percentile interval of a bootstrap over questions."""
    numbers = sorted({prompt.number for prompt in prompts})
    questions = [[prompt for prompt in prompts if prompt.number == number] for number in numbers]
    score = rules.ties_score(prompts)
    if len(numbers) < 2:
        return Estimate(score, -math.inf, math.inf, len(prompts), len(numbers))
    # a fixed seed: the same scores always have the same interval
    rng = np.random.default_rng(0)
    scores = []
    for _ in range(DRAWS):
        indices = rng.integers(len(questions), size=len(questions))
        selected = [questions[k] for k in indices]
        # The score is undefined for a bootstrap sample in which no question has both of its prompts.
        if any(len({prompt.tied for prompt in question}) == 2 for question in selected):
            # A question sampled twice counts as two: the rule groups prompts by their number, so they are renumbered.
            sample = [rules.renumbered(prompt, k) for k, question in enumerate(selected) for prompt in question]
            scores.append(rules.ties_score(sample))
    bounds = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    low, high = (float(bound) for bound in np.quantile(scores, bounds))
    return Estimate(score, min(low, score), max(high, score), len(prompts), len(numbers))


def counts(items: Sequence[Any], scores: Sequence[FloatArray]) -> dict[str, Any]:
    unscored = [bool(np.isnan(scores_K).any()) for scores_K in scores]
    return {"items": len(items), "unscored": sum(unscored)}


def result_files(name: str, subsets: Mapping[str, Estimate], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of RewardBench's two files: a score per subset, and the columns of all rows."""
    means = {subset: estimate.mean for subset, estimate in subsets.items()}
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    return {f"{name}.json": means, f"{name}_scores.json": finite_values(columns)}


def build(settings: RewardBenchmark, run: Run) -> Benchmarking:
    return Benchmarking(settings, run)

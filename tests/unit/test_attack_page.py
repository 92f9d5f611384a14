"""The rank correlations of docs/attack.md are those of the values next to its page of results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from rlhf_lab.statistics.rank_correlation import rank_correlation

DOCS = Path(__file__).parents[2] / "docs"
OUTCOMES = ("trained_gold/ppo", "trained_gold/grpo")


def written(value: float) -> str:
    """−0.468 → "−.47", as on the page."""
    return f"{value:.2f}".replace("-", "−").replace("0.", ".", 1)


def test_the_page_has_the_correlations_of_the_results():
    values = pd.read_csv(DOCS / "results" / "attack_forecast_seeds.csv")
    assert len(values) == 48 and values["data"].nunique() == 2

    def correlations(*metrics: str) -> list[str]:
        pairs = zip(metrics, OUTCOMES, strict=True)
        return [written(rank_correlation(values[x], values[y], values["data"]).mean) for x, y in pairs]

    lines = (DOCS / "attack.md").read_text(encoding="utf-8").splitlines()
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    ppo, grpo = correlations("attack_gain", "attack_gain")
    assert f"| {ppo} [" in rows["attack gain"] and f"| {grpo} [" in rows["attack gain"]
    ppo, grpo = correlations("accuracy", "accuracy")
    assert rows["accuracy on held-out pairs (exploratory)"].endswith(f"| {ppo} | {grpo} |")
    ppo, grpo = correlations(*reversed(OUTCOMES))
    assert rows["gold after training with the other algorithm (exploratory)"].endswith(f"| {ppo} | {grpo} |")

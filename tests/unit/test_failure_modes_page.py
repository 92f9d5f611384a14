"""The table of docs/failure_modes.md has the numbers of the runs next to its page of results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

DOCS = Path(__file__).parents[2] / "docs"
ARMS = {
    "none": "none",
    "an audit that stops": "audit",
    "ten times the KL penalty": "kl",
    "exploits fed back": "exploits",
    "ensemble, penalty on the variance": "uwo",
    "ensemble, entropic mean": "entropic",
    "ensemble, averaged weights": "warm",
    "head for length": "length_head",
}


def cells_of_rows() -> dict[str, list[str]]:
    """Return the cells behind the name of each mitigation."""
    text = (DOCS / "failure_modes.md").read_text(encoding="utf-8")
    section = text.split("## Mitigations compared", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows[1:]}


def test_gold_falls_and_accuracy_are_those_of_the_runs():
    values = pd.read_csv(DOCS / "results" / "mitigations_seeds.csv")
    rows = cells_of_rows()
    assert set(rows) == set(ARMS) and set(values["study.arm"]) == set(ARMS.values())
    for name, (gold, fell, accuracy, *_) in rows.items():
        runs = values[values["study.arm"] == ARMS[name]]
        mean = float(gold.split()[0].replace("−", "-"))
        decimals = len(gold.split()[0].split(".")[1])
        assert mean == round(runs["gold"].mean(), decimals), name
        assert fell.startswith(f"{runs['gold_fell'].sum():.0f} of {runs['gold_fell'].count()}"), name
        assert accuracy == f"{runs['reward:accuracy'].mean():.3f}".removeprefix("0"), name

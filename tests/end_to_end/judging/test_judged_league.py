"""`leaderboard` from the command line: judgements and labels of people, to a table, JSON and a page."""

from __future__ import annotations

import json

import pytest
from synthetic_judgements import league, write_rows

pytestmark = pytest.mark.end_to_end


@pytest.mark.slow
def test_a_league_with_people_is_ranked_and_written(fresh):
    rows, labels = league(
        {"base": 0.0, "sft": 0.7, "dpo": 1.4}, 40, position=0.5, length=0.5, refused=0.02, labelled=0.4
    )
    write_rows(fresh.directory / "run" / "judgements.jsonl", rows)
    write_rows(fresh.directory / "labels.jsonl", labels)
    printed = fresh.run("leaderboard", "run", "truth=labels.jsonl", "judge=dpo", "to=league")
    assert "3 players, 120 comparisons on 40 prompts" in printed
    for words in (
        "corrected by",
        "Cohen's κ",
        "not counted as ties",
        "Strongest: dpo (strength ",
        "strength (logits)",
        "league/leaderboard.html",
    ):
        assert words in " ".join(printed.split()), words
    numbers = json.loads((fresh.directory / "league" / "leaderboard.json").read_text(encoding="utf-8"))
    assert numbers["ranking"]["order"] == ["dpo", "sft", "base"]
    assert sum(numbers["unscored"].values()) == sum(row["score"] is None for row in rows)
    assert "<svg" in (fresh.directory / "league" / "leaderboard.html").read_text(encoding="utf-8")


def test_a_damaged_row_is_wrong_input(fresh):
    write_rows(fresh.directory / "judgements.jsonl", [{"prompt": "x"}])
    printed = " ".join(fresh.run("leaderboard", "judgements.jsonl", status=2).split())
    assert "row 1: first is missing" in printed

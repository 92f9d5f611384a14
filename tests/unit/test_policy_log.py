"""The log of evaluated policies: what is complete is kept, and what a kill or a damage left is evaluated again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from rlhf_lab.evaluations.policy_log import PolicyLog
from rlhf_lab.statistics.estimates import Estimate

GOLD = {"gold": Estimate(1.0, 0.5, 1.5, 2, 2)}


def log_in(directory: Path) -> tuple[PolicyLog, list[str]]:
    notes: list[str] = []
    return PolicyLog(SimpleNamespace(directory=directory, note=notes.append)), notes


def rows(policy: str) -> list[dict]:
    return [{"policy": policy, "prompt": f"question {number}", "gold": 1.0} for number in range(2)]


def test_evaluated_policies_are_found_by_the_next_start_and_damaged_rows_dropped(tmp_path):
    log, _ = log_in(tmp_path)
    for name in ("sft", "dpo"):
        log.add(name, rows(name), GOLD)
    again, notes = log_in(tmp_path)
    assert [policy["name"] for policy in again.policies] == ["sft", "dpo"] and not notes
    assert again.find("dpo")["metrics"]["gold"]["mean"] == 1.0 and again.find("ppo") is None
    assert again.rows("dpo") == rows("dpo")
    # rows without a summary, and damaged rows
    file = tmp_path / "evaluation.jsonl"
    full = file.read_text()
    file.write_text(full + '{"policy": "ppo"}\n')
    assert [policy["name"] for policy in log_in(tmp_path)[0].policies] == ["sft", "dpo"]
    assert file.read_text() == full
    file.write_text(full.replace("question 1", "question 2"))  # of both policies
    again, notes = log_in(tmp_path)
    assert again.policies == [] and file.read_text() == ""
    assert "evaluated again" in notes[0]

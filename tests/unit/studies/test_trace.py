"""A saved trace is judged whatever it is called and wherever it comes from; the report shows what the monitor saw."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rlhf_lab.cli.commands import monitor_command
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.monitoring.replay import read_trace, replay, rule_rows, summary, table
from rlhf_lab.reports.report import write_report
from rlhf_lab.reports.run.samples import BUDGET_BYTES
from rlhf_lab.results.gains import five_numbers

REPLIES = 64
LIMITS = {"every": 1, "warmup": 3, "planned": 20, "z": 0.01, "kl": 0.15, "rising": 3, "budget": 0.05, "tolerance": 0.1}
LIMITS |= {"signals": ["length_z"], "seed": 7}
STRONG = "strong warning (two signals)"


def samples(iterations: int, *, grows: float = 0.0, gold: bool = True, seed: int = 0) -> list[dict]:
    """Rows of monitor.jsonl: responses and rewards grow from iteration 10 on, and the true reward falls from 20 on."""
    rng, rows = np.random.default_rng(seed), []
    for t in range(iterations):
        later = grows * max(0, t - 10)
        row = {
            "iteration": t,
            "prompt": list(range(REPLIES)),
            "tokens": np.maximum(1, 25 + 2 * later + 8 * rng.standard_normal(REPLIES)).round().tolist(),
            "reward": (0.2 * later + rng.standard_normal(REPLIES)).round(4).tolist(),
        }
        if gold:
            row["gold"] = (0.3 - 0.2 * grows * max(0, t - 20) + rng.standard_normal(REPLIES)).round(4).tolist()
        rows.append(row)
    return rows


def write_trace(directory: Path, rows: list[dict]) -> Path:
    (directory / "monitor.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def cell(found, rule: str, column: str) -> str:
    columns, rows = rule_rows(found)
    return next(row for row in rows if row[0] == rule)[columns.index(column)]


def test_a_hacked_run_is_told_from_its_trace(tmp_path):
    found = replay(write_trace(tmp_path, samples(40, grows=1.0)))
    assert 10 <= int(cell(found, "length_cusum", "first alarm")) <= 16
    assert int(cell(found, STRONG, "lead")) > 0
    assert "gold reward of the samples: best until iteration" in summary(found)
    printed = Console(width=100, record=True)
    printed.print(table(found))
    text = printed.export_text()
    assert all(rule in text for rule in ("length_z", "reward_kl", "length_cusum", STRONG))
    calm = replay(write_trace(tmp_path, samples(40, gold=False)), {"z": 5.0})
    assert cell(calm, "length_z", "first alarm") == "–" and "not known" in summary(calm)
    assert "lead" not in rule_rows(calm)[0]


def test_a_strong_warning_of_parting_alone_is_not_called_two_signals(tmp_path):
    rows = samples(20, grows=1.0)
    for row in rows:
        row["unverified"] = row["reward"]  # the outcome is 0, and the rest of the reward rises
    found = replay(write_trace(tmp_path, rows), {"z": 1e6})
    warning = cell(found, "strong warning (two signals, or parting alone)", "first alarm")
    assert warning == cell(found, "parting", "first alarm") and int(warning) > 10
    only_length = replay(tmp_path, {"signals": ["length_z"]})
    assert cell(only_length, "strong warning (one signal)", "first alarm")


def test_alarms_of_a_run_are_judged_by_its_heldout_prompts(tmp_path):
    """The samples' gold falls from iteration 20 on; the run's evaluation found its policies below the start from 30."""
    directory = write_trace(tmp_path, samples(40, grows=1.0))
    by_samples = int(cell(replay(directory), "length_cusum", "lead"))
    metrics = {"gold_fell": 1.0, "gold_undecided": 0.0, "gold_fell_at": 30.0, "gold_change": -1.25}
    (directory / "result.json").write_text(json.dumps({"metrics": metrics}))
    found = replay(directory)
    first = int(cell(found, "length_cusum", "first alarm"))
    # shown iterations count from 1, recorded ones from 0
    assert int(cell(found, "length_cusum", "lead")) == 30 - (first - 1) != by_samples
    assert "gold reward on held-out prompts: below the start from iteration 31 on (change -1.25)" in summary(found)
    (directory / "result.json").write_text(json.dumps({"metrics": metrics | {"gold_fell": None, "gold_fell_at": None}}))
    assert "held-out prompts: undecided" in summary(replay(directory))


def test_a_file_of_samples_is_read_by_any_of_its_column_names(tmp_path):
    """The same responses as rows of a CSV, under other names, and as JSON lines: the same batches."""
    rows = samples(9, gold=False)
    flat = [
        {"step": t, "prompt_id": f"p{p}", "length": n, "proxy": r}
        for t, row in enumerate(rows)
        for p, n, r in zip(row["prompt"], row["tokens"], row["reward"], strict=True)
    ]
    flat[3]["proxy"] = None
    rows[0]["reward"][3] = None
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in flat))
    lines = [",".join(flat[0]), *(",".join("" if v is None else str(v) for v in row.values()) for row in flat)]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "excel.csv").write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    expected = [batch.to_row() for batch in read_trace(write_trace(tmp_path, rows))]
    for name in ("x.jsonl", "x.csv", "excel.csv"):
        assert [batch.to_row() for batch in read_trace(tmp_path / name)] == expected


def test_a_log_of_means_still_has_lengths(tmp_path):
    """metrics.jsonl of a run that was not watched: a row per iteration, other rows left out."""
    means = [{"step": 4 * t, "tokens": 25 + t, "reward": 0.1 * t} for t in range(30)]
    rows = [row for mean in means for row in (mean, {"step": mean["step"] + 3, "loss": 0.5})]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = replay(tmp_path)
    assert len(found.batches) == 30 and int(cell(found, "length_z", "first alarm")) < 20
    assert "reward_kl" not in [row[0] for row in rule_rows(found)[1]]


def test_limits_of_the_run_are_used_and_can_be_changed(tmp_path):
    directory = write_trace(tmp_path, samples(20))
    (directory / "monitor.json").write_text(json.dumps(LIMITS | {"every": 2, "planned": 10}))
    found = replay(directory)
    one_signal = "strong warning (one signal)"
    assert found.detector.checkpoints == 7 and cell(found, one_signal, "fraction of checkpoints") == "100%"
    changed = replay(directory, {"z": 9.0, "every": 1})
    assert changed.detector.checkpoints == 17 and changed.detector.limits.planned == 20
    assert cell(changed, one_signal, "fraction of checkpoints") == "0%"


def test_changed_settings_are_checked(tmp_path):
    directory = write_trace(tmp_path, samples(20))
    with pytest.raises(ConfigError, match="z=0"):
        replay(directory, {"z": 0.0})
    with pytest.raises(ConfigError, match="action has no effect"):
        replay(directory, {"action": "stop"})


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        replay(tmp_path)
    (tmp_path / "x.jsonl").write_text('{"step": 1, "loss": 2}\n')
    with pytest.raises(DataError, match="no column tokens or length"):
        replay(tmp_path / "x.jsonl")
    (tmp_path / "x.csv").write_text("length,reward\n3,high\n")
    with pytest.raises(DataError, match="not a number"):
        replay(tmp_path / "x.csv")
    with pytest.raises(ConfigError, match="did you mean z"):
        replay(write_trace(tmp_path, samples(6)), {"zz": 1})
    with pytest.raises(ConfigError, match="monitor needs"):
        monitor_command([])


def test_infinite_rewards_leave_the_quantiles_of_the_others():
    assert five_numbers([1.0, math.inf, math.nan]) == (1.0,) * 5


@pytest.mark.slow
def test_the_report_shows_three_panels_and_stays_small(make_run):
    """A long run with many responses: the page holds lengths, rewards and gold against proxy, with the alarms."""
    directory = write_trace(make_run(prompts=400, samples=4, steps=4000), samples(300, grows=0.3))
    page = write_report(directory)
    text = page.read_text()
    assert page.stat().st_size <= BUDGET_BYTES + 200_000
    for part in ("Response length", "Distribution of the reward", "Gold and proxy reward of the"):
        assert part in text
    # in each panel twice: the label, and its outline in the colour of the page
    assert text.count(">strong warning</text>") == 6 and text.count(">gold fell</text>") == 6
    assert text.count(">iteration</text>") == 3
    without_gold = write_report(write_trace(make_run("no_gold", gold=False), samples(30, gold=False))).read_text()
    assert "Response length" in without_gold and "Gold and proxy reward of the" not in without_gold

"""Resampled studies without a difference: false verdicts on made numbers, and runs that are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

CAMPAIGN = Path(__file__).parents[1] / "campaign"
sys.path.append(str(CAMPAIGN))

from resampled import false_verdicts, is_too_many, main, on_scale, read_values  # noqa: E402

from rlhf_lab.core.errors import DataError  # noqa: E402


def write_runs(root: Path, golds, seeds=None) -> Path:
    for index, gold in enumerate(golds):
        directory = root / f"run_{index}"
        directory.mkdir(parents=True)
        metrics = {"gold": float(gold), "kl": float(np.exp(gold))}
        result = {"status": "completed", "metrics": metrics, "policies": []}
        (directory / "result.json").write_text(json.dumps(result))
        seed = index if seeds is None else seeds[index]
        (directory / "config.yaml").write_text(f"seed: {seed}\n")
    return root


def test_normal_runs_have_few_false_verdicts_and_drifting_ones_many():
    rng = np.random.default_rng(1)
    calm = false_verdicts({"gold": rng.standard_normal(80)}, 200)
    assert np.isfinite(calm).sum() <= 16 and not is_too_many(calm)
    # more than one claim: Holm keeps the family's rate
    family = {name: rng.standard_normal(80) for name in ("gold", "proxy", "win_rate")}
    assert np.isfinite(false_verdicts(family, 200)).sum() <= 16
    # 0 everywhere but in a run: never a verdict. The earliest verdict of a study has three seeds.
    assert np.isinf(false_verdicts({"gold": np.zeros(60)}, 20)).all()
    found = calm[np.isfinite(calm)]
    assert (found >= 3).all() and (found <= 40).all()


def test_the_limit():
    """P(X ≥ 17 | 200, .05) = .023 is below .025, and P(X ≥ 16) = .044 is not."""

    def decided(count: int) -> np.ndarray:
        return np.r_[np.full(count, 5.0), np.full(200 - count, np.inf)]

    assert not is_too_many(decided(16)) and is_too_many(decided(17))


def test_the_command_reads_runs(tmp_path, capsys):
    golds = np.random.default_rng(0).standard_normal(64)
    write_runs(tmp_path, golds)
    values = read_values(tmp_path, ["gold", "kl"])
    # directories are sorted by name; KL is judged by its logarithm
    assert sorted(values["gold"]) == pytest.approx(sorted(golds)) and values["kl"] == pytest.approx(values["gold"])
    assert main([str(tmp_path), "--metrics", "gold", "kl"]) == 0
    text = capsys.readouterr().out
    assert "of 200 studies without a difference" in text and "64 runs, 32 seeds per study, claims on gold, kl" in text


def test_rates_are_judged_by_logits():
    """50 of 100: (50.5/101) = .5, logit 0. 75 of 100: 75.5/101, log(75.5/25.5)."""
    logits = on_scale("accuracy", np.array([0.5, 0.75]), np.array([100.0, 100.0]))
    assert logits == pytest.approx([0, np.log(75.5 / 25.5)])


def test_other_directories_are_refused(tmp_path, capsys):
    write_runs(tmp_path / "few", np.zeros(3))
    with pytest.raises(DataError, match="has 3 completed runs; at least 60"):
        read_values(tmp_path / "few", ["gold"])
    assert main([str(tmp_path / "few"), "--metrics", "gold"]) == 2 and "at least 60" in capsys.readouterr().err
    write_runs(tmp_path / "twice", np.zeros(60), seeds=[0] * 60)
    with pytest.raises(DataError, match="same seed"):
        read_values(tmp_path / "twice", ["gold"])
    write_runs(tmp_path / "runs", np.zeros(60))
    with pytest.raises(DataError, match="metric proxy is missing"):
        read_values(tmp_path / "runs", ["gold", "proxy"])

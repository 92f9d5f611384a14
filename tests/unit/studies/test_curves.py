"""Over-optimisation curves of a synthetic study: best-of-n and training that turn, training that does not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlhf_lab.reports.report import write_study_report
from rlhf_lab.reports.study.curves import curves
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.studies.curves import curve_conclusion, fit_rows, level_curves
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import Study, read_study
from rlhf_lab.studies.table import build_sections

KL = (0.0, 0.2, 0.6, 1.2, 2.1, 3.2)
KINDS = {"bon": "best_of_n", "hot": "ppo", "cold": "dpo"}


def gold_gain(level: str, d: float) -> float:
    """bon turns at KL (1/(2·.5))² = 1; hot at exp(2(.5/.5 − 1)) = 1; cold is a line that bends up."""
    if level == "bon":
        return d * (1 - 0.5 * d)
    return d * (0.5 - 0.5 * math.log(d)) if level == "hot" and d else d * (0.5 + 0.1 * d)


@pytest.fixture
def make_curves(tmp_path: Path) -> Callable[..., Study]:
    """Write a study of three levels; `points` is the number of policies of each run after its first one."""

    def write(*, seeds: int = 3, points: int = 5, gold: bool = True, noise: float = 0.01) -> Study:
        directory = tmp_path / "study"
        directory.mkdir()
        jobs = [{"algorithm": level, "seed": seed} for level in KINDS for seed in range(seeds)]
        plan = {
            "recipe": "study/overoptimization",
            "compare": "algorithm",
            "baseline": "bon",
            "metrics": ["gold", "proxy", "kl"],
            "curves": "overoptimization",
            "replication": {"data": "redrawn", "kept": []},
            "jobs": [{"index": index, "overrides": job} for index, job in enumerate(jobs)],
        }
        (directory / "study.json").write_text(json.dumps(plan))
        rng = np.random.default_rng(0)
        for index, job in enumerate(jobs):
            run = directory / "jobs" / str(index) / "run"
            run.mkdir(parents=True)
            policies = []
            for position, kl in enumerate(KL[: points + 1]):
                d = math.sqrt(kl)
                metrics = {"proxy": -0.2 + 0.9 * d, "kl": kl}
                if gold:
                    metrics["gold"] = 1.0 + gold_gain(job["algorithm"], d) + (rng.normal(0, noise) if d else 0)
                policies.append({"name": f"policy {position}", "metrics": metrics})
            (run / "manifest.json").write_text("{}")
            (run / "config.yaml").write_text(f"algorithm: {{kind: {KINDS[job['algorithm']]}}}\n")
            (run / "result.json").write_text(json.dumps({"status": "completed", "policies": policies}))
            (run.parent / "job.json").write_text(json.dumps({"status": "completed", "run": f"jobs/{index}/run"}))
        return read_study(directory)

    return write


def test_every_level_takes_the_curve_of_its_algorithm(make_curves):
    curves = {curve.level: curve for curve in level_curves(make_curves())}
    assert {level: curve.form for level, curve in curves.items()} == {"bon": "bon", "hot": "rl", "cold": "rl"}
    assert curves["bon"].gold.over_seeds.alpha.mean == pytest.approx(1, abs=0.03)
    assert curves["bon"].gold.over_seeds.peak_kl.mean == pytest.approx(1, abs=0.05)
    assert curves["hot"].gold.over_seeds.peak_kl.mean == pytest.approx(1, abs=0.1)
    assert len(curves["bon"].points) == 3 * 5  # gains over the first policy, which itself is no point


def test_the_finding_says_where_gold_turns_and_where_it_was_not_seen_to(make_curves):
    study = make_curves()
    words = curve_conclusion(study)
    assert "Gold with bon turns at KL 0.987" in words
    assert "Gold with hot turns at KL 1.0" in words
    assert "No turn of gold is seen with cold up to KL 3.2" in words
    assert words in write_conclusion(study, build_sections(study)).sentence


def test_seeds_with_too_few_policies_are_counted(make_curves):
    study = make_curves()
    rows = study.policies
    is_short = (rows["level"] == "bon") & (rows["seed"] == 0) & (rows["position"] > 1)
    counts = {row[0]: row[2] for row in fit_rows(level_curves(replace(study, policies=rows[~is_short])))}
    assert counts == {"bon": "2 of 3 seeds", "hot": "3 seeds", "cold": "3 seeds"}


def test_seeds_that_disagree_are_counted(make_curves):
    study = make_curves()
    lifted = (study.policies["level"] == "hot") & (study.policies["seed"] == 2)
    study.policies.loc[lifted, "gold"] = 1 + study.policies.loc[lifted, "kl"]
    assert "Gold with hot turns near KL 1.03 in 2 of 3 seeds; no interval." in curve_conclusion(study)


def test_gold_that_only_falls_does_not_turn(make_curves):
    """A straight fall, bent a little: up in seed 0 (no maximum), down in the others (one near 0). In hot, 2 rises."""
    study = make_curves()
    d = np.sqrt(study.policies["kl"])
    bend = np.where(study.policies["seed"] == 0, 0.01, -0.01)
    study.policies["gold"] = 1 - d * (0.3 + 0.1 * study.policies["seed"] / 3) + bend * d**2
    rises = (study.policies["level"] == "hot") & (study.policies["seed"] == 2)
    study.policies.loc[rises, "gold"] = 1 + d[rises] * (0.5 - 0.5 * np.log(d[rises].clip(lower=1e-9)))
    words = curve_conclusion(study)
    assert "Gold with bon falls from the start. Gold with hot" in words
    assert "Gold with hot falls from the start in 2 and turns near KL 1.00 in 1 of 3 seeds; no interval." in words
    assert words.endswith("Gold with cold falls from the start.")
    rows = fit_rows(level_curves(study))
    assert rows[0][5:7] == ("3 of 3 fall from the start",) * 2
    assert rows[1][5] == "2 of 3 fall from the start"


def test_a_flat_curve_is_not_a_fall(make_curves):
    study = make_curves()
    study.policies["gold"] = 1 - np.sqrt(study.policies["kl"]) * study.policies["seed"].map({0: 0.01, 1: 0.1, 2: 0.3})
    assert "falls from the start. The interval of α contains 0, so a flat curve also fits." in curve_conclusion(study)


def test_one_policy_per_run_is_not_a_curve(make_curves):
    study = make_curves(points=1)
    assert "No curve is fitted with hot: no run has two policies away from its start" in curve_conclusion(study)
    assert all(row[2].startswith("no run has two policies") for row in fit_rows(level_curves(study)))


def test_the_report_has_figure_table_and_finding(make_curves):
    study = make_curves()
    page = write_study_report(study.path).read_text()
    table = (study.path / "table.md").read_text()
    figure = (study.path / "overoptimization.svg").read_text()
    assert "## Over-optimisation" in table and "KL at peak, nats" in table and "turns at KL" in table
    assert "KL at peak, nats" in page and "gold: solid line" in page
    assert figure.startswith('<svg xmlns="http://www.w3.org/2000/svg"') and "<desc>bon: at √KL" in figure
    # a line per level and metric; the legend has one more of each dash
    assert figure.count('stroke-dasharray="5,4"') == 3 + 1 and figure.count('stroke-width="2.2"') == 3
    assert "nan" not in figure.lower() and "infinity" not in figure.lower()
    assert (study.path / "overoptimization.png").is_file()
    section = curves(StudyResults(study))
    assert list(section.files) == ["overoptimization"] and section.table.rows[2][5] == "0 of 3 turn"

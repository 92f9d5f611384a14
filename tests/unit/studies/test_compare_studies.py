"""Two studies compared: which jobs are partners, and when there is no test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_runs import edit

from rlhf_lab.core import checksums as seal
from rlhf_lab.core.errors import DataError
from rlhf_lab.reports.comparison.report import compare
from rlhf_lab.reports.comparison.studies import compared_jobs
from rlhf_lab.studies.frame import read_study


def test_two_studies_are_compared_by_shared_level_and_seed(make_study, tmp_path):
    a = make_study(seeds=3).rename(tmp_path / "first")
    b = make_study(seeds=2, lift=3.0).rename(tmp_path / "second")
    view = compare(a, b, to=tmp_path / "page").view
    rows = {row[0]: row for row in view["tables"][0]["rows"]}
    assert list(rows) == ["current", "mixed", "stale"] and view["tables"][0]["title"] == "gold reward"
    assert float(rows["mixed"][3].split()[0].replace("−", "-")) == pytest.approx(1.8, abs=0.3)  # lifts 3.0 − 1.2
    assert "mixed: only the 2 jobs with a partner are compared (A has 3, B 2)." in view["remarks"]
    assert ("seed", "0, 1, 2", "0, 1") in view["settings"]
    edit(b / "study.json", compare="algorithm.beta")
    with pytest.raises(DataError, match=r"they share no level"):
        compare(a, b, to=tmp_path / "page")


def test_a_job_that_changed_since_it_was_completed_is_named(make_study, tmp_path):
    a, b = (make_study(seeds=2).rename(tmp_path / name) for name in ("first", "second"))
    run = b / "jobs/3/run"
    seal.write(run, (run / "result.json").read_text())
    assert not any("changed since completion" in note for note in compare(a, b, to=tmp_path / "page").view["remarks"])
    (run / "evaluation.jsonl").write_text("")
    notes = compare(a, b, to=tmp_path / "page").view["remarks"]
    assert "B: job 4 (jobs/3), mixed: evaluation.jsonl changed since completion (SHA256SUMS)." in notes


def test_proxies_of_two_rewards_are_not_tested(make_study, tmp_path):
    """A model of another recipe is another reward, and one of another seed is the same."""
    a, same, other = (make_study(seeds=2).rename(tmp_path / name) for name in ("first", "same", "other"))
    for study, recipe in ((a, "reward_model"), (same, "reward_model"), (other, "reward_model_exploits")):
        for job in range(6):
            run = study / f"jobs/{job}/run"
            (run / "config.yaml").write_text("reward: {terms: {bt: {kind: bt}}}\n")
            needs = {"reward": {"recipe": recipe, "key": f"{study.name}{job}", "dir": "gone"}}
            edit(run / "manifest.json", needs=needs)

    def tested(b: Path) -> tuple[set[str], list[str]]:
        view = compare(a, b, to=tmp_path / "page").view
        tables = {table["title"]: table["rows"] for table in view["tables"]}
        return {title for title, rows in tables.items() if rows[0][4] != "–"}, view["remarks"]

    titles, _ = tested(same)
    assert {"proxy reward", "gold reward"} <= titles
    fewer, remarks = tested(other)
    assert titles - fewer == {"proxy reward"}
    assert "mixed: proxy not tested: other rewards or sources of gold in A and B." in remarks


def test_repeats_of_one_seed_are_no_runs_of_their_own(make_study, tmp_path):
    """Three jobs of A each beside the one of B would make three pairs of one independent run."""
    a = make_study(seeds=3).rename(tmp_path / "first")
    b = make_study(seeds=1).rename(tmp_path / "second")
    jobs = json.loads((b / "study.json").read_text())["jobs"]
    for job in jobs:
        del job["overrides"]["seed"]
    edit(b / "study.json", jobs=jobs)
    view = compare(a, b, to=tmp_path / "page").view
    assert all(row[4:7] == ("–",) * 3 for table in view["tables"] for row in table["rows"])
    assert sum("not tested" in note for note in view["remarks"]) == 3
    assert "Not tested: `current`, `mixed`, `stale`." in view["finding"]


def test_a_job_with_two_partners_is_not_tested(make_study, tmp_path):
    a = make_study(seeds=2).rename(tmp_path / "first")
    b = make_study(seeds=2).rename(tmp_path / "second")
    planned = json.loads((a / "study.json").read_text())["jobs"]
    for index, job in enumerate(planned):  # A sweeps another factor within one seed, which B does not set
        job["overrides"] |= {"seed": 0, "algorithm.beta": index}
    edit(a / "study.json", jobs=planned)
    jobs = compared_jobs(read_study(a), read_study(b), "mixed")
    assert (jobs.test, len(jobs.a), len(jobs.b)) == ("none", 2, 2)

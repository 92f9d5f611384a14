"""Comparison of two runs: pairing of rows, choice of the test, notes about the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from scipy import stats

from rlhf_lab.cli.commands import compare_command
from rlhf_lab.core.console import console
from rlhf_lab.core.errors import ConfigError, DataError
from rlhf_lab.reports.comparison.compare import find_sides, run_differences, stored_numbers
from rlhf_lab.reports.comparison.report import compare
from rlhf_lab.reports.comparison.scales import setting_changes
from rlhf_lab.reports.comparison.view import cells


def write_run(
    directory: Path, rows: list[dict], *, config: str = "seed: 0\n", needs: dict | None = None, **result: object
) -> Path:
    """A run of one policy, P, with these rows."""
    directory.mkdir(parents=True)
    found = {"status": "completed", "error": None, "policies": [{"name": "P", "metrics": {}}] if rows else []}
    (directory / "result.json").write_text(json.dumps({**found, "metrics": {}, **result}))
    (directory / "manifest.json").write_text(json.dumps({"recipe": directory.name, "needs": needs or {}}))
    (directory / "config.yaml").write_text(config)
    (directory / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    rows = [{"policy": "P", "sample_id": i, "response": "yes", **row} for i, row in enumerate(rows)]
    (directory / "evaluation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def responses(*golds: float, metric: str = "gold", text: str = "Q", per_prompt: int = 1) -> list[dict]:
    ids = [position // per_prompt for position in range(len(golds))]
    return [{"prompt_id": i, "prompt": f"{text}{i}", metric: value} for i, value in zip(ids, golds, strict=True)]


def only(a: Path, b: Path):
    (found,) = run_differences(*find_sides(a, b))
    return found


def test_the_test_is_paired_by_prompt(tmp_path):
    # B − A by prompt: 1, 2, 3; mean 2, sd 1, t = 2·√3 on 2 degrees of freedom
    a = write_run(tmp_path / "a", responses(0.0, 5.0, -3.0))
    b = write_run(tmp_path / "b", responses(1.0, 7.0, 0.0))
    found = only(a, b)
    assert found.versus.difference.mean == pytest.approx(2.0)
    assert found.versus.p_value == pytest.approx(2 * stats.t.sf(2 * 3**0.5, 2))
    assert found.p_holm == found.versus.p_value  # one test is its own family
    assert (found.a.mean, found.b.mean) == pytest.approx((2 / 3, 8 / 3))
    assert cells(found)[0] == "gold reward" and cells(found)[3].startswith("+2.0")


def test_replies_to_one_prompt_are_averaged_before_pairing(tmp_path):
    a = write_run(tmp_path / "a", responses(0.0, 2.0, 4.0, 6.0, per_prompt=2))  # prompt means 1, 5
    b = write_run(tmp_path / "b", responses(2.0, 8.0))  # one response each: gains 1, 3
    found = only(a, b)
    assert found.versus.difference.mean == pytest.approx(2.0) and found.versus.difference.n == 2


def test_outcomes_of_one_reply_per_prompt_get_exact_mcnemar(tmp_path):
    # 5 prompts only B solves, none only A: p = 2 · (1/2)^5
    a = write_run(tmp_path / "a", responses(0, 0, 0, 0, 0, 1, 1, 0, metric="correct"))
    b = write_run(tmp_path / "b", responses(1, 1, 1, 1, 1, 1, 1, 0, metric="correct"))
    found = only(a, b)
    assert found.versus.p_value == pytest.approx(2 * 0.5**5)
    assert found.versus.test == "exact McNemar test, 5 prompts only B, 0 only A"
    assert found.versus.difference.mean == pytest.approx(5 / 8)


def test_outcomes_of_several_replies_per_prompt_are_clustered(tmp_path):
    rates = [0, 0, 0, 1, 1, 1, 0, 0]
    a = write_run(tmp_path / "a", responses(*rates, metric="correct", per_prompt=2))
    b = write_run(tmp_path / "b", responses(*rates[::-1], metric="correct", per_prompt=2))
    assert only(a, b).versus.test.startswith("paired t test, cluster-robust")


def test_the_same_id_of_another_prompt_is_no_pair(tmp_path):
    a = write_run(tmp_path / "a", responses(0.0, 1.0, 2.0))
    b = write_run(tmp_path / "b", responses(5.0, 6.0, 9.0, text="other question "))
    found = only(a, b)
    assert found.versus.test.startswith("unpaired t test")
    assert found.versus.p_value == pytest.approx(stats.ttest_ind([5, 6, 9], [0, 1, 2], equal_var=False).pvalue)
    notes = compare(a, b, to=tmp_path / "page").view["remarks"]
    assert any("No prompt is shared (A answered 3, B 3)" in note and "unpaired" in note for note in notes)


def test_only_shared_prompts_are_compared_and_it_is_said(tmp_path):
    a = write_run(tmp_path / "a", responses(0.0, 1.0, 2.0, 50.0))
    b = write_run(tmp_path / "b", responses(1.0, 3.0, 2.5))
    found = only(a, b)
    assert found.a.mean == pytest.approx(1.0) and found.versus.difference.mean == pytest.approx(3.5 / 3)
    notes = compare(a, b, to=tmp_path / "page").view["remarks"]
    assert "Only the 3 prompts that both answered are compared (A answered 4, B 3)." in notes


def test_holm_runs_over_all_metrics(make_run):
    found = run_differences(*find_sides(make_run("a"), make_run("b", seed=1, lift=0.2)))
    p_values = sorted(one.versus.p_value for one in found)
    assert len(found) == 7
    assert min(one.p_holm for one in found) == pytest.approx(min(1.0, 7 * p_values[0]))


def test_policies_are_chosen_by_name(make_run):
    a, b = make_run("a"), make_run("b", policies=("SFT", "PPO"))
    assert [side.policy for side in find_sides(a, b)] == ["iteration 3", "PPO"]
    assert [side.policy for side in find_sides(a, b, "SFT")] == ["SFT", "SFT"]
    assert [side.policy for side in find_sides(a, a, "SFT, iteration 1")] == ["SFT", "iteration 1"]
    with pytest.raises(DataError, match=r"policy=PPO was not evaluated by A .* evaluated SFT, one-pass DPO"):
        find_sides(a, b, "PPO")
    with pytest.raises(DataError, match=r"the same run.*policy='SFT,iteration 3'"):
        find_sides(a, a)


def test_settings_that_differ_are_listed_with_both_values(tmp_path):
    tuned = "model: {kind: scratch, tuned: {dpo: {lr: %s}}}\n"
    a = write_run(tmp_path / "a", [], config=tuned % 1 + "algorithm: {beta: 0.1, lr: 1.0}\noutputs: x\nseed: 0\n")
    b = write_run(tmp_path / "b", [], config=tuned % 2 + "algorithm: {beta: 0.3, lr: 1, epochs: [1, 2]}\nseed: 0\n")
    changes = setting_changes(*(side.run for side in find_sides(a, b)))
    assert changes == [("algorithm.beta", "0.1", "0.3"), ("algorithm.epochs", "–", "[1, 2]")]


def both(proxy: float, gold: float) -> list[dict]:
    return [{"prompt_id": i, "prompt": f"Q{i}", "proxy": proxy * i, "gold": gold * i, "kl": 0.1 * i} for i in range(4)]


@pytest.mark.parametrize(
    ("role", "titles"), [("reward", ["proxy reward"]), ("policy", ["KL, nats"]), ("reference", ["KL, nats"])]
)
def test_what_is_not_on_one_scale_is_shown_and_not_tested(tmp_path, role, titles):
    sides = [
        write_run(tmp_path / name, both(*scores), needs={role: {"key": name}})
        for name, scores in (("a", (1.0, 1.0)), ("b", (9.0, 2.0)))
    ]
    found = {one.metric: one for one in run_differences(*find_sides(*sides))}
    tested = [one for one in found.values() if one.tested]
    assert len(found) == 3 and len(tested) == 2
    assert found["gold"].p_holm == pytest.approx(min(1.0, 2 * found["gold"].versus.p_value))  # a family of two
    view = compare(*sides, to=tmp_path / "page").view
    rows = [row for row in view["rows"] if row[3:7] == ("–",) * 4]
    assert [row[0] for row in rows] == titles and not rows[0][-1]
    assert "Of the 1 other metrics" in view["finding"] and titles[0] not in view["finding"]
    assert sum("not tested" in note for note in view["remarks"]) == 1
    assert any(line.startswith("Detectable") and "Holm" in line for line in view["tests"])


def test_runs_of_which_nothing_is_on_one_scale(tmp_path):
    rows = [{"prompt_id": i, "prompt": f"Q{i}", "proxy": float(i)} for i in range(4)]
    sides = [write_run(tmp_path / name, rows, needs={"reward": {"key": name}}) for name in "ab"]
    view = compare(*sides, to=tmp_path / "page").view
    assert "share no metric of responses with the same scale" in view["finding"]
    assert view["scope"] == "" and view["tests"] == []


def test_the_page_lies_beside_the_runs_and_two_stores_do_not_meet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [
        write_run(tmp_path / store / "runs" / name, responses(0.0, 1.0))
        for store, name in (("one", "a"), ("one", "b"), ("two", "b"), ("three", "b"))
    ]
    pages = [compare(runs[0], other).page for other in runs[1:]]
    assert pages[0] == Path("one/comparisons/a-vs-b/compare.html")
    assert len(set(pages)) == 3 and all(page.is_relative_to("one/comparisons") for page in pages)


def test_runs_without_replies_are_compared_by_their_intervals(tmp_path):
    def accuracy(mean: float) -> dict:
        return {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "n": 50, "clusters": 50}

    metrics = [{"accuracy": accuracy(mean), "ece": accuracy(0.5), "rows": 9} for mean in (0.6, 0.9)]
    a = write_run(tmp_path / "a", [], metrics=metrics[0], seconds=10.0)
    b = write_run(tmp_path / "b", [], metrics=metrics[1], seconds=25.0)
    view = compare(a, b, to=tmp_path / "page").view
    assert [(row[0], row[3]) for row in view["stored"]] == [
        ("accuracy", "unpaired z 4.16, p < 0.001"),  # 0.3 / (√2 · 0.1 / 1.96)
        ("calibration error", "equal"),
    ]
    assert "accuracy: 0.60 ±0.10 and 0.90 ±0.10, unpaired z 4.16, p < 0.001" in view["finding"]
    assert ("training time, s", "10.0", "25.0", "× 2.50") in view["costs"]
    assert [name for name, _ in view["charts"]] == ["loss"] and view["bare"][0][0] == "rows"
    assert [row[0] for row, _ in stored_numbers(*find_sides(a, b), tested=("accuracy", "ece"))] == ["rows"]


@pytest.mark.parametrize("missing", ["evaluation.jsonl", "metrics.jsonl", "config.yaml", "manifest.json"])
def test_an_unfinished_run_is_compared_as_far_as_it_came(make_run, tmp_path, missing):
    a, b = make_run("a"), make_run("b", seed=1, status="interrupted")
    (b / missing).unlink()
    found = compare(a, b, to=tmp_path / "page")
    assert any("B is interrupted" in note for note in found.view["remarks"])
    assert bool(found.view["rows"]) == (missing != "evaluation.jsonl")
    assert bool(found.view["charts"]) == (missing != "metrics.jsonl")


def test_a_job_stands_for_its_run(make_study, tmp_path, monkeypatch):
    study = make_study(seeds=2)
    monkeypatch.chdir(tmp_path)
    found = compare(study / "jobs/0", study / "jobs/2")
    assert found.page.is_file()
    assert re.fullmatch(
        r"outputs/comparisons/study-job0-\w{6}-vs-study-job2-\w{6}/compare\.html", found.page.as_posix()
    )
    gold = found.view["rows"][0]
    assert gold[0] == "gold reward" and gold[3].startswith("+1.")  # `mixed` lifts gold by 1.2
    (study / "jobs/1/job.json").write_text('{"status": "failed", "run": null, "error": "boom"}')
    with pytest.raises(DataError, match=r"started no run \(failed: boom\)"):
        compare(study / "jobs/0", study / "jobs/1")


def test_folders_that_cannot_be_compared_are_refused(make_run, make_study, tmp_path):
    run, study = make_run("a"), make_study(seeds=1)
    with pytest.raises(DataError, match=r"does not exist\. Nearby"):
        compare(run, tmp_path / "absent")
    for a, b in ((study, run), (run, study), (study, study)):
        with pytest.raises(DataError, match=r"study is a study; compare takes two runs, or jobs of .*study/jobs/0"):
            compare(a, b)
    for arguments in ([], [str(run)], [str(run)] * 3, ["policy=SFT", str(run)]):
        with pytest.raises(ConfigError, match="two runs, or jobs of studies"):
            compare_command(arguments)
    empty = [write_run(tmp_path / name, []) for name in "xy"]
    for directory in empty:
        (directory / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match="share no metric of responses, no result and no training curve"):
        compare(*empty)
    with pytest.raises(ConfigError, match=r"polcy is not an option of compare; did you mean policy\?"):
        compare_command(["a", "b", "polcy=x"])


def test_the_console_shows_what_the_page_shows(make_run, tmp_path):
    a, b = make_run("a"), make_run("b", seed=1)
    (b / "config.yaml").write_text("algorithm:\n  kind: dpo_iterative\n  beta: 0.2\nseed: 0\n")
    with console.capture() as shown:
        compare_command([str(a), str(b), f"to={tmp_path / 'page'}"])
    words = " ".join(shown.get().split())
    for part in ("algorithm.beta 0.1 → 0.2", "gold reward", "detectable", "cost", "not the settings", "compare.html"):
        assert part in words, part

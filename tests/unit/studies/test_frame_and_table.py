"""Study directories become frames, tables and findings; failed and missing jobs stay visible."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats
from synthetic_runs import edit, edited

from rlhf_lab.config.overrides import level_name
from rlhf_lab.core import checksums as seal
from rlhf_lab.core.errors import DataError
from rlhf_lab.reports.report import write_study_report
from rlhf_lab.results.answer import Conclusion
from rlhf_lab.results.rundir import read_run
from rlhf_lab.results.wording import signed
from rlhf_lab.studies import table
from rlhf_lab.studies.claims import without_seeds
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.table import build_sections, changed_lines, markdown, rich_table, table_frame, write_tables


def test_every_job_is_a_row_whatever_became_of_it(make_study):
    study = read_study(make_study(failed=(5,), missing=(11,)))
    assert len(study.frame) == 12
    assert study.frame["status"].value_counts().to_dict() == {"completed": 10, "failed": 1, "not run": 1}
    assert study.frame.loc[5, "error"].endswith("NaN at step 40")
    assert math.isnan(study.frame.loc[11, "gold"])
    assert study.levels == ["current", "mixed", "stale"] and study.has_gold


def test_a_study_says_what_its_gold_is(make_study):
    directory = make_study()
    assert table.label(read_study(directory)) == "measured, in a simulated world whose true reward is known"
    for job in sorted((directory / "jobs").iterdir())[:2]:
        (job / "run" / "config.yaml").write_text("needs: {gold: models/rm}\n")
    study = read_study(directory)
    score, truth = "the score of the reward model models/rm", "the true reward of a simulated world"
    assert study.gold_source == f"{score} or {truth}"
    assert table.label(study) == f"measured; gold is {score} or {truth}"


def test_the_page_lists_the_settings_of_arms(make_study):
    directory = make_study(seeds=2)
    assert table.arm_markdown(read_study(directory)) == ""
    edit(directory / "study.json", arms={"current": {}, "mixed": {"algorithm.beta": 0.3, "reward.temperature": 2}})
    assert table.arm_markdown(read_study(directory)).splitlines()[2:4] == [
        "- buffer current: the recipe as it is",
        "- buffer mixed: `algorithm.beta=0.3`, `reward.temperature=2`",
    ]


def test_metrics_come_from_the_last_policy_unless_the_run_has_its_own(make_study):
    directory = make_study(seeds=2)
    study = read_study(directory)
    result = json.loads((directory / "jobs/0/run/result.json").read_text())
    last = result["policies"][-1]["metrics"]["gold"]
    row = study.frame.loc[0]
    assert (row["gold"], row["gold/low"], row["gold/n"]) == (last["mean"], last["low"], last["n"])
    assert row["staleness"] == 1.5  # only in result.metrics
    assert set(study.policies["policy"]) == {policy["name"] for policy in result["policies"]}


def test_a_job_without_its_run_counts_as_failed(make_study):
    directory = make_study(seeds=2)
    (directory / "jobs/0/job.json").write_text(json.dumps({"status": "completed", "run": "jobs/0/gone"}))
    (directory / "jobs/1/job.json").write_text('{"status": "comp')
    (directory / "jobs/2/run/result.json").unlink()
    frame = read_study(directory).frame
    assert frame.loc[0, "status"] == "failed" and "missing" in frame.loc[0, "error"]
    assert frame.loc[1, "status"] == "unreadable" and "not readable" in frame.loc[1, "error"]
    assert frame.loc[2, "status"] == "unfinished"


def test_unreadable_studies_say_what_is_wrong(tmp_path):
    with pytest.raises(DataError, match=r"study\.json is missing"):
        read_study(tmp_path)
    (tmp_path / "study.json").write_text(json.dumps({"compare": "a", "metrics": ["gold"]}))
    with pytest.raises(DataError, match=r"lacks 'replication'; study\.json lacks 'jobs'"):
        read_study(tmp_path)


def test_differences_are_paired_by_seed(make_study):
    study = read_study(make_study(failed=(5,)))
    row = build_sections(study)[0].rows[1]
    done = study.completed.set_index(["level", "seed"])["gold"]
    shared = [0, 2, 3]  # seed 1 of `mixed` failed
    a, b = done["mixed"][shared], done["current"][shared]
    assert row.level == "mixed" and row.versus is not None
    assert row.versus.difference.mean == pytest.approx((a - b).mean())
    assert row.versus.p_value == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert row.versus.difference.n == 3


def test_other_swept_factors_are_part_of_the_pair(make_study):
    directory = make_study(seeds=4)
    with edited(directory / "study.json") as plan:
        for job in plan["jobs"]:
            number = job["overrides"]["seed"]
            job["overrides"] |= {"seed": number % 2, "lr": number // 2}
    row = build_sections(read_study(directory))[0].rows[1]
    assert row.versus is not None
    assert (row.versus.difference.n, row.versus.difference.clusters) == (4, 2)  # 4 pairs, 2 seeds


def test_the_finding_names_what_it_can_and_cannot_tell(make_study):
    study = read_study(make_study(failed=(11,)))
    sections = build_sections(study)
    conclusion = write_conclusion(study, sections)
    mixed, stale = (signed(row.versus.difference) for row in sections[0].rows[1:])
    differences = f"The difference from it is {mixed} with buffer mixed and {stale} with buffer stale."
    assert f" with buffer current. {differences} This is exploratory: no claim" in conclusion.sentence
    assert "p\u00a0" not in conclusion.sentence
    assert "1 of 12 jobs have no result (1 failed)" in conclusion.caveat


def test_what_nobody_scored_is_not_one_shared_seed(make_study):
    """Both seeds of both levels are there, the metric is not: no number of seeds would help."""
    directory = make_study(seeds=2)
    edit(directory / "study.json", metrics=["accuracy"], primary="accuracy")
    study = read_study(directory)
    conclusion = write_conclusion(study, build_sections(study)).sentence
    assert "ne shared seed" not in conclusion and "three or more" not in conclusion
    assert "no seed has both sides scored: buffer mixed and buffer stale." in conclusion


def test_a_metric_that_no_job_has_is_named_with_the_closest_name(make_study):
    """A misspelt metric gave an empty column without a word."""
    directory = make_study(seeds=2)
    assert table.missing_metric_lines(read_study(directory)) == []
    edit(directory / "study.json", metrics=["gold", "verbos", "accuracy"])
    study = read_study(directory)
    lines = [
        "No completed job has the metric verbos; did you mean verbose?",
        "No completed job has the metric accuracy",  # the spelling is right
    ]
    assert table.missing_metric_lines(study) == lines
    sections = build_sections(study)
    assert all(line in markdown(study, sections, Conclusion("")) for line in lines)


def test_a_study_in_which_nothing_completed_still_has_tables(make_study):
    study = read_study(make_study(seeds=2, missing=tuple(range(6))))
    sections = build_sections(study)
    assert write_conclusion(study, sections) == Conclusion("No finding: none of the 6 jobs completed.")
    assert "unscored" in markdown(study, sections, Conclusion(""))


def test_tables_agree_across_formats(make_study):
    study = read_study(make_study(failed=(5,)))
    sections = build_sections(study)
    text, rows = write_tables(study, sections, Conclusion("The finding.", "The caveat."))
    table = pd.read_csv(rows).fillna({"bound": ""})
    pd.testing.assert_frame_equal(table, table_frame(study, sections), check_dtype=False)
    np.testing.assert_array_equal(table["seeds"].iloc[:3], [4, 3, 4])
    page = text.read_text()
    order = ["The finding.", "The caveat.", "gold reward (primary)", "proxy reward (exploratory)"]
    assert [page.index(words) for words in order] == sorted(page.index(words) for words in order)
    assert "Hypothesis: On-policy" in page and "job 6 (jobs/5), mixed: failed: NumericError" in page
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(rich_table(study, sections))
    shown = console.export_text()
    assert "difference" in shown and "job 6 (jobs/5), mixed: failed" in shown
    # Only claims have p-values.
    assert not {"p", "p_holm"} & set(table) and "| p |" not in page and "p (Holm)" not in shown


def test_a_metric_at_its_bound_is_said_to_be_there(make_study):
    study = read_study(make_study(seeds=2))
    claim = {"metric": "verbose", "level": "mixed", "direction": "lower", "versus": None, "margin": 0.0, "by": None}

    def page(values: dict[str, float], metric: str = "verbose") -> str:
        frame = study.frame.assign(**{metric: study.frame["level"].map(values), f"{metric}/n": 50})
        bounds = {f"{metric}/{side}": frame[metric] for side in ("low", "high")}
        bounded = replace(
            study, frame=frame.assign(**bounds), metrics=(metric,), predicts=(claim | {"metric": metric},)
        )
        return markdown(bounded, build_sections(bounded), write_conclusion(bounded, build_sections(bounded)))

    everywhere = page({"current": 1.0, "mixed": 1.0, "stale": 0.5})
    assert everywhere.count("both at the ceiling |") == 1 and "| buffer mixed | 2 | 1.0" in everywhere
    assert everywhere.count("; both are at the ceiling of the metric, which cannot show a difference there") == 2
    assert "both at the floor" in page({"current": 0.0, "mixed": 0.0, "stale": 0.5})
    assert "both at the floor" in page({"current": 0.0, "mixed": 0.0, "stale": 1.0}, "kl")
    assert "both at" not in page({"current": 1.0, "mixed": 0.99, "stale": 1.0}).partition("buffer stale")[0]
    # Gold has no known bounds, and neither has the upper end of an amount.
    assert "both at" not in page({"current": 1.0, "mixed": 1.0, "stale": 1.0}, "gold")
    assert "both at" not in page({"current": 1.0, "mixed": 1.0, "stale": 1.0}, "kl")


def seal_jobs(directory: Path) -> None:
    for run in directory.glob("jobs/*/run"):
        seal.write(run, (run / "result.json").read_text())


@pytest.mark.slow
def test_a_job_that_changed_since_it_was_completed_is_named(make_study):
    directory = make_study(failed=(5,))
    seal_jobs(directory)
    write_study_report(directory)
    pages = [(directory / name).read_text() for name in ("table.md", "report.html")]
    assert not any("since completion" in page or "after completion" in page for page in pages)
    result = directory / "jobs/4/run/result.json"
    result.write_text(result.read_text().replace('"staleness": 1.5', '"staleness": 9.5'))
    (directory / "jobs/9/run/metrics.jsonl").unlink()
    write_study_report(directory)
    study = read_study(directory)
    lines = changed_lines(study)
    assert lines == [
        "job 5 (jobs/4), mixed: result.json changed since completion (SHA256SUMS)",
        "job 10 (jobs/9), stale: metrics.jsonl changed since completion (SHA256SUMS)",
    ]
    table, page = ((directory / name).read_text() for name in ("table.md", "report.html"))
    assert all(f"- {line}\n" in table for line in lines)
    assert all(page.count(line.partition(": ")[2]) == 1 for line in lines)
    assert all("Files of 2 of 12 jobs changed after completion" in text for text in (table, page))
    assert len(study.completed) == 11 and study.frame.loc[4, "staleness"] == 9.5  # said, not left out


def test_markup_and_pipes_in_level_names_are_text(make_study):
    directory = make_study(seeds=2)
    plan = (directory / "study.json").read_text().replace('"mixed"', '"[red]a|b"')
    (directory / "study.json").write_text(plan)
    study = read_study(directory)
    sections = build_sections(study)
    assert r"[red]a\|b" in markdown(study, sections, Conclusion(""))
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(rich_table(study, sections))
    assert "[red]a|b" in console.export_text()


def test_levels_have_one_spelling():
    values = (0.1, "0.1", True, None, [1, 2], {"by": "all", "keep": 0.5})
    assert "; ".join(map(level_name, values)) == "0.1; 0.1; true; default; [1, 2]; by all, keep 0.5"


@pytest.mark.parametrize("record", [None, {"status": "interrupted", "run": None, "error": "stopped"}])
def test_a_job_whose_result_is_stored_is_complete_after_an_interruption(make_study, record):
    """Ctrl-C at the second run of a study: an earlier run has stored what this one had not yet come to."""
    directory = make_study(seeds=2)
    before = read_study(directory).frame
    with edited(directory / "study.json") as plan:
        plan["jobs"][1]["run"] = str(directory / "jobs/1/run")
    for index in (1, 2):
        file = directory / f"jobs/{index}/job.json"
        file.unlink()
        if record:
            file.write_text(json.dumps(record))
    after = read_study(directory).frame
    assert after.loc[1, "status"] == "completed" and after.loc[1, "gold"] == before.loc[1, "gold"]
    assert after.loc[2, "status"] == ("interrupted" if record else "not run")


def test_a_cut_off_log_line_is_left_out_and_noted(make_run):
    run = read_run(make_run(truncated=True, steps=30))
    assert len(run.metrics) == 30
    assert any("metrics.jsonl: 1 of 31 lines are cut off (line 31)" in problem for problem in run.problems)


def test_an_impossible_estimate_is_refused(make_run):
    directory = make_run()
    with edited(directory / "result.json") as result:
        result["policies"][0]["metrics"]["gold"] |= {"mean": 9.0, "low": 0.0, "high": 1.0}
    run = read_run(directory)
    assert "gold" not in run.policies[0].metrics
    assert any("gold is rejected" in problem for problem in run.problems)


def test_a_single_seed_of_the_command_line_is_known(make_study):
    """`seed=7` is in no job's overrides, but a claim may have been written after seed 7 was seen."""
    directory = make_study(seeds=1)
    with edited(directory / "study.json") as plan:
        for job in plan["jobs"]:
            del job["overrides"]["seed"]
            job["seed"] = 7
    study = read_study(directory)
    assert "seed" not in study.frame  # it is not a factor
    assert without_seeds(study, [7]).frame.empty

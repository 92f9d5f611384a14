"""Registered claims: changed ones count only seeds that were not seen, and withdrawn ones stay in their family."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_runs import write_study

from rlhf_lab.config import command_line
from rlhf_lab.config.overrides import level_name
from rlhf_lab.core.errors import ArtifactError
from rlhf_lab.reports.report import write_study_report
from rlhf_lab.reports.study.claims import correlations as correlation_section
from rlhf_lab.reports.study.results import StudyResults
from rlhf_lab.studies.claims import (
    AFTER_LOOK,
    CONFIRMED,
    REFUTED,
    UNTESTED,
    family_holm,
    panel_of_claim,
    withdrawn_in_family,
)
from rlhf_lab.studies.correlations import correlation_markdown, correlations_of
from rlhf_lab.studies.finding import write_conclusion
from rlhf_lab.studies.frame import Study, read_study
from rlhf_lab.studies.registration import (
    SEQUENTIAL,
    Registration,
    baseline_level,
    claim_meaning,
    correlation_meaning,
    rate_meaning,
    record_look,
    register,
)
from rlhf_lab.studies.registration_text import registration_lines
from rlhf_lab.studies.table import build_sections
from rlhf_lab.studies.verdict import claim_level, verdicts
from rlhf_lab.sweeps.sweep import registration_name

NAME = "buffers-0123456789"
HIGHER = {"metric": "gold", "level": "mixed", "direction": "higher", "versus": None, "margin": 0.0, "by": None}
LOWER = HIGHER | {"direction": "lower"}
STALE = HIGHER | {"level": "stale", "direction": "same", "margin": 0.3}
RANKED = {"metric": "gold", "outcome": "proxy", "direction": "positive", "stronger_than": None}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of three buffers and six seeds, all of which have runs. `mixed` is better."""
    return write_study(tmp_path_factory.mktemp("outputs") / "studies", seeds=6, lift=3.0)


@pytest.fixture
def directory(written: Path, tmp_path: Path) -> Path:
    """A copy of the study in a store of its own; its runs are those of `written`."""
    copy = tmp_path / "studies" / "study"
    copy.mkdir(parents=True)
    (copy / "jobs").symlink_to(written / "jobs")
    (copy / "full.json").write_text((written / "study.json").read_text())
    return copy


def start(
    directory: Path,
    *claims: dict,
    seeds: range = range(3),
    until: str | None = None,
    settings: dict[str, str] | None = None,
    seen_seeds: tuple[int, ...] = (),
) -> None:
    """Do what a command does before its first job: register the claims and write study.json.

    Args:
        settings: buffer → hash of its jobs' settings; None for the buffer itself.
    """
    plan = json.loads((directory / "full.json").read_text())
    jobs = [job | {"seed": job["overrides"]["seed"]} for job in plan["jobs"]]
    if settings:
        jobs = [job | {"settings": settings[job["overrides"]["algorithm.buffer"]]} for job in jobs]
    plan |= {"predicts": list(claims), "until": until, "command": "python -m rlhf_lab +recipe=study/buffers seed=0,1,2"}
    plan["jobs"] = [job for job in jobs if job["seed"] in seeds]
    plan["seen_seeds"] = list(seen_seeds)
    plan["registration"] = register(directory, NAME, plan).to_dict()
    (directory / "study.json").write_text(json.dumps(plan))


def run(directory: Path, *claims: dict, seeds: range = range(3), settings: dict[str, str] | None = None) -> Study:
    """Run a study, and look at its results."""
    start(directory, *claims, seeds=seeds, settings=settings)
    study = read_study(directory)
    return replace(study, registration=record_look(directory, study.completed["index"]))


def stored(directory: Path) -> Registration:
    path = directory.parents[1] / "registrations" / f"{NAME}.json"
    return Registration.from_dict(json.loads(path.read_text()))


def test_a_claim_is_registered_once(directory):
    study = run(directory, HIGHER, STALE)
    assert [row.verdict for row in verdicts(study)] == [CONFIRMED, CONFIRMED]
    assert [entry.seen for entry in study.registration.claims] == [(), ()]
    assert [look.seeds for look in study.registration.looks] == [(0, 1, 2)]
    assert study.registration == stored(directory)
    # The same command again, with claims in another order and values in another spelling: nothing is new.
    again = run(directory, STALE, HIGHER | {"versus": "current", "margin": 0.7})
    assert again.registration.claims == study.registration.claims[::-1]
    assert again.registration.looks == study.registration.looks
    more = run(directory, HIGHER, STALE, seeds=range(4))
    assert more.registration.claims == study.registration.claims
    lines = registration_lines(more)
    hashes = [entry.hash[:12] for entry in more.registration.claims]
    assert lines[0].startswith(f"Claims 1 ({hashes[0]}) and 2 ({hashes[1]}) were registered on ")
    assert lines[1].startswith("Looked at n = 3, 4 seeds (0, 1, 2, 3), first on ")
    assert "do not account for more than one look" in lines[1]


def test_a_changed_claim_is_not_judged_by_seeds_that_were_seen(directory):
    first = run(directory, LOWER)
    assert [row.verdict for row in verdicts(first)] == [REFUTED]
    study = run(directory, HIGHER)
    (row,) = verdicts(study)
    assert row.verdict == AFTER_LOOK and row.comparison is None
    command = "python -m rlhf_lab +recipe=study/buffers seed=3,4,5"
    assert f"after the results of seeds 0, 1, 2 had been seen, and no other seeds have enough results; `{command}`" in (
        row.sentence
    )
    (entry,) = study.registration.claims
    assert entry.seen == (0, 1, 2) and study.registration.withdrawn[0].hash == first.registration.claims[0].hash
    assert "The claim is written after the look." in write_conclusion(study, build_sections(study)).sentence
    write_study_report(directory)
    table = (directory / "table.md").read_text()
    assert "| **written after the look** | other seeds test it: `seed=3,4,5` |  |" in table
    assert "gold reward is lower with buffer mixed than with buffer current" in table  # the withdrawn claim
    assert "other seeds test it: <code>seed=3,4,5</code>" in (directory / "report.html").read_text()
    # The proposed command decides it.
    (row,) = verdicts(run(directory, HIGHER, seeds=range(3, 6)))
    assert row.verdict == CONFIRMED and row.comparison.difference.clusters == 3
    assert "without seeds" not in row.sentence  # this study has none of the seeds 0, 1 and 2


def test_settings_of_jobs_that_change_after_a_look_make_a_new_claim(directory):
    before = {"current": "a", "mixed": "b", "stale": "c"}
    first = run(directory, HIGHER, STALE, settings=before)
    higher, stale = first.registration.claims
    changed = before | {"mixed": "d"}  # for example another learning rate
    study = run(directory, HIGHER, STALE, settings=changed)
    row, unchanged = verdicts(study)
    assert row.verdict == AFTER_LOOK and unchanged.verdict == CONFIRMED
    new, same = study.registration.claims
    assert (new.seen, same) == ((0, 1, 2), stale) and study.registration.withdrawn[0].hash == higher.hash
    # More seeds of the same jobs, and levels that the claim does not compare, change nothing.
    more = run(directory, HIGHER, STALE, seeds=range(6), settings=changed | {"stale": "e"})
    assert more.registration.claims[0] == new and more.registration.claims[1] != stale


def test_seeds_of_a_pilot_in_another_store_do_not_count(directory):
    start(directory, HIGHER, seeds=range(5), seen_seeds=(0, 1))
    study = read_study(directory)
    study = replace(study, registration=record_look(directory, study.completed["index"]))
    (row,) = verdicts(study)
    assert row.comparison.difference.clusters == 3  # seeds 2, 3 and 4
    assert "after the results of seeds 0, 1 had been seen" in registration_lines(study)[0]
    # The same command again registers nothing new.
    start(directory, HIGHER, seeds=range(5), seen_seeds=(0, 1))
    assert stored(directory).claims == study.registration.claims


def test_only_unseen_seeds_count_beside_seen_ones(directory):
    run(directory, LOWER)
    study = run(directory, LOWER, HIGHER, seeds=range(6))
    old, new = verdicts(study)
    assert old.comparison.difference.clusters == 6 and new.comparison.difference.clusters == 3
    assert "; without seeds 0, 1, 2, which had been seen when the claim was registered on " in new.sentence
    panel = panel_of_claim(study, study.predicts[1])
    assert sorted(set(panel.frame["seed"])) == [3, 4, 5]
    gold = panel.completed.set_index(["level", "seed"])["gold"]
    assert new.comparison.difference.mean == pytest.approx((gold["mixed"] - gold["current"]).mean())
    # Each family is adjusted by itself.
    assert old.p_holm == old.comparison.p_value and new.p_holm == new.comparison.p_value


def test_a_withdrawn_claim_stays_in_its_family(directory):
    run(directory, HIGHER, STALE)
    study = run(directory, HIGHER)
    (row,) = verdicts(study)
    assert row.p_holm == pytest.approx(2 * row.comparison.p_value)
    assert claim_level(study, study.predicts[0]) == 0.025
    assert family_holm(study, {0: 0.02}) == {0: 0.04}
    assert any(line.startswith("Withdrawn on ") and "within 0.3" in line for line in registration_lines(study))
    # It can come back with its first registration.
    again = run(directory, STALE, HIGHER)
    assert not again.registration.withdrawn and [entry.seen for entry in again.registration.claims] == [(), ()]


def test_before_the_first_look_claims_may_change_freely(directory):
    start(directory, LOWER, seeds=range(6, 9))  # these seeds have no results
    start(directory, HIGHER)
    (entry,) = stored(directory).claims
    assert (entry.seen, stored(directory).withdrawn) == ((), ())


def test_a_killed_command_has_shown_its_finished_jobs(directory):
    """No page was written, so no look was recorded; the jobs printed their results."""
    start(directory, LOWER)
    start(directory, HIGHER)
    assert [entry.seen for entry in stored(directory).claims] == [(0, 1, 2)]
    assert [look.seeds for look in stored(directory).looks] == [(0, 1, 2)]


def test_studies_of_the_same_jobs_share_a_registration(directory):
    """Claims that are typed on the command line give the study another directory."""
    run(directory, LOWER)
    other = directory.with_name("study-typed")
    other.mkdir()
    for name in ("jobs", "full.json"):
        (other / name).symlink_to(directory / name)
    assert verdicts(run(other, HIGHER))[0].verdict == AFTER_LOOK


def test_the_name_depends_on_the_jobs_alone():
    def name(*words: str) -> str:
        return registration_name(command_line.check_command(["+recipe=study/ensemble_lambda", *words]))

    claim = "study.predicts=[{metric:kl,level:0.5,direction:lower}]"
    assert name() == name(claim) == name("study.until=decided") == name("seed=100,101") == name("seed=7")
    assert name().startswith("ensemble_lambda-")
    # The stored results are the same, so a study with a tracker must know which of them were seen.
    for word in ("tracker=tensorboard", "artifacts.code=ignore", "runtime.threads=1", "checkpoint.every_steps=7"):
        assert name() == name(word), word
    assert name("runtime.dtype=bfloat16") != name()
    assert len({name(), name("size=smoke"), name("model=small"), name("study.size=quick")}) == 4


def test_the_meaning_of_a_claim():
    plan = {"compare": "beta", "baseline": 0.1, "by": "model", "until": None, "jobs": []}
    claim = {"metric": "kl", "level": 1.0, "direction": "lower", "versus": None, "margin": 0.5, "by": "small"}
    meaning = claim_meaning(plan, claim)
    assert list(meaning) == sorted(meaning)
    # A margin says nothing about a direction; levels and baseline have one spelling.
    assert meaning == claim_meaning(plan, claim | {"level": "1", "versus": 0.1, "margin": 0.0, "published": None})
    for change in ({"by": None}, {"direction": "higher"}, {"level": 2}, {"metric": "gold"}, {"published": 0.5}):
        assert claim_meaning(plan, claim | change) != meaning
    assert claim_meaning(plan | {"baseline": 0.2}, claim) != meaning
    assert claim_meaning(plan | {"until": "decided"}, claim)["method"] == SEQUENTIAL


def test_an_arm_with_other_settings_is_another_claim():
    arms = {"none": {}, "strict": {"algorithm.beta": 0.3}, "lax": {"algorithm.beta": 0.01}}
    plan = {"compare": "study.arm", "baseline": "none", "by": "", "until": None, "jobs": [], "arms": arms}
    claim = {"metric": "gold", "level": "strict", "direction": "higher", "versus": None, "margin": 0.0}
    meaning = claim_meaning(plan, claim)
    assert meaning["arms"] == {"none": {}, "strict": {"algorithm.beta": 0.3}} and list(meaning) == sorted(meaning)
    assert claim_meaning(plan | {"arms": arms | {"lax": {}}}, claim) == meaning  # an arm that it does not compare
    assert claim_meaning(plan | {"arms": arms | {"strict": {"algorithm.beta": 0.4}}}, claim) != meaning
    # Pooled over arms, and over all runs, a claim is about every arm.
    pooled = plan | {"compare": "beta", "by": "study.arm", "correlations": [RANKED]}
    rate = {"metric": "gold_fell", "direction": "lower", "than": 0.5}
    for of, statement in ((claim_meaning, claim), (correlation_meaning, RANKED), (rate_meaning, rate)):
        assert of(pooled, statement)["arms"] == arms, of


def test_null_can_be_the_baseline():
    jobs = [{"overrides": {"algorithm.muon_lr": value}} for value in (0.02, None)]
    plan = {"compare": "algorithm.muon_lr", "baseline": None, "jobs": jobs}
    assert baseline_level(plan) == level_name(None)
    assert baseline_level(plan | {"jobs": jobs[:1]}) == "0.02"  # without one, the first level


def test_a_damaged_registration_is_refused(directory):
    run(directory, HIGHER)
    path = directory.parents[1] / "registrations" / f"{NAME}.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(ArtifactError, match="restore it from a copy"):
        start(directory, HIGHER)


def test_a_study_without_registration_records_no_look(make_study):
    directory = make_study(seeds=2)
    assert record_look(directory, [0]) == Registration()
    assert registration_lines(read_study(directory)) == []


def test_correlations_are_registered_with_the_settings_of_the_sweep(directory):
    def run_ranked(claim: dict, seeds: range = range(3), levels: tuple[str, ...] = ("current", "mixed", "stale")):
        full = directory / "full.json"
        content = full.read_text()
        plan = json.loads(content)
        plan |= {"correlations": [claim]}
        plan["jobs"] = [job for job in plan["jobs"] if job["overrides"]["algorithm.buffer"] in levels]
        full.write_text(json.dumps(plan))
        try:
            return run(directory, HIGHER, seeds=seeds)
        finally:
            full.write_text(content)

    first = run_ranked(RANKED)
    (entry,) = first.registration.correlations
    assert entry.seen == () and entry.meaning["settings"] == {"algorithm.buffer": ["current", "mixed", "stale"]}
    assert first.registration == stored(directory) and len(first.registration.claims) == 1
    # Three settings are too few for ranks, but the claim was written before the look.
    assert [row.verdict for row in correlations_of(first)] == [UNTESTED]
    # The same claim again is not new. The opposite one is, and so is a sweep without one of the settings.
    assert run_ranked(RANKED, seeds=range(4)).registration.correlations == (entry,)
    for changed in (
        run_ranked(RANKED | {"direction": "negative"}, seeds=range(4)),
        run_ranked(RANKED, seeds=range(4), levels=("current", "mixed")),
    ):
        (later,) = changed.registration.correlations
        assert later.seen == (0, 1, 2, 3) and later.hash != entry.hash
        (row,) = correlations_of(changed)
        assert row.verdict == AFTER_LOOK and "registered on" in row.sentence and row.seen == later.seen
        assert "other seeds test it: `seed=4,5,6" in correlation_markdown(changed)
        assert correlation_section(StudyResults(changed)).files == {}  # no seed counts, so nothing is plotted
    lines = registration_lines(changed)
    assert any(line.startswith("Correlation 1 (") for line in lines)
    withdrawn = [line for line in lines if line.startswith("Withdrawn on ") and entry.hash[:12] in line]
    assert len(withdrawn) == 1 and "rank correlation of +0.7" in withdrawn[0] and "Holm" not in withdrawn[0]
    # A withdrawn correlation does not count in the family of the other claims.
    assert withdrawn_in_family(changed, HIGHER) == 0 and claim_level(changed, changed.predicts[0]) == 0.05
    # With seeds that were not seen, the changed claim is tested like any other.
    (row,) = correlations_of(run_ranked(RANKED, seeds=range(6), levels=("current", "mixed")))
    assert row.seen == (0, 1, 2, 3)

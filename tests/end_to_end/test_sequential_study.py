"""A study that stops when its claims are decided: it runs seed by seed, is interrupted, goes on, and stops."""

from __future__ import annotations

import json
import signal
import time

import pytest
from sizes import overrides

from rlhf_lab.studies.frame import read_study
from rlhf_lab.studies.look_log import LookLog

CLAIM = "study.predicts=[{metric:heldout_nll,level:0.01,direction:lower}]"


@pytest.mark.slow
def test_a_study_is_interrupted_goes_on_and_stops_when_decided(fresh):
    """A learning rate of .01 learns at once and one of 1e-6 does not: the difference is many standard deviations."""
    command = (
        *("+recipe=sft", *overrides("sft"), "algorithm.lr=1e-6,1e-2", "study.processes=1"),
        *("study.until=decided", "study.metrics=[heldout_nll]", CLAIM),
    )
    process = fresh.start(*command, "study.max_seeds=6")
    studies = fresh.directory / "outputs" / "studies"
    end = time.monotonic() + 600
    while not list(studies.glob("sft-*/jobs/2/job.json")):  # both levels of seed 0 and one of seed 1
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=600)[0]
    assert process.returncode == 130, out
    assert "1 of at most 6 seeds done" in out and "the first look is after 3 seeds" in out
    directory = next(studies.glob("sft-*"))
    log = LookLog.from_dict(json.loads((directory / "study.json").read_text())["looks"])
    assert log == LookLog((0, 1, 2, 3, 4, 5))
    assert "The claims were not looked at yet." in (directory / "table.md").read_text()

    out = fresh.inside(*command, "study.max_seeds=8")  # other limits continue the same study
    assert list(studies.iterdir()) == [directory]
    study = read_study(directory)
    assert study.log is not None and study.log.stopped == "every claim is decided"
    decided = study.log.looks[-1].seeds
    assert [look.seeds for look in study.log.looks] == list(range(3, decided + 1)) and decided < 8
    assert sorted(set(study.frame["seed"])) == list(range(decided)) and not len(study.incomplete)
    assert "0 of 1 claims open; every claim is decided" in out
    assert out.count("confirmed     held-out loss is lower") == 1
    counts = ", ".join(map(str, range(3, decided + 1)))
    table = (directory / "table.md").read_text()
    assert f"looked at n = {counts}; every claim is decided." in table
    assert f"decided at {decided} seeds" in table
    assert f"looked at n = {counts}" in (directory / "report.html").read_text()

    out = fresh.inside(*command)  # nothing is left to do, and the looks stay
    assert read_study(directory).log.looks == study.log.looks
    assert "build  " not in out


@pytest.mark.slow
def test_a_claim_that_changes_after_the_look_needs_other_seeds(fresh):
    """The claim is typed, so the changed command has another directory and reuses the stored runs."""
    command = ("+recipe=sft", *overrides("sft"), "algorithm.lr=1e-6,1e-2", "study.metrics=[heldout_nll]")
    studies = fresh.directory / "outputs" / "studies"

    def table(claim: str, seeds: str) -> str:
        fresh.inside(*command, "study.processes=1", claim, seeds)
        newest = max(studies.glob("*/table.md"), key=lambda path: path.stat().st_mtime)
        return newest.read_text()

    wrong = CLAIM.replace("lower", "higher")
    assert "| **not confirmed** |" in table(wrong, "seed=0,1,2")
    changed = table(CLAIM, "seed=0,1,2")
    assert "| **written after the look** | other seeds test it: `seed=3,4,5` |" in changed
    assert "Withdrawn on " in changed and "Looked at n = 3 seeds (0, 1, 2)" in changed
    assert "| **confirmed** |" in table(CLAIM, "seed=3,4,5")
    assert len(list((fresh.directory / "outputs" / "registrations").iterdir())) == 1

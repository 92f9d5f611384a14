"""The mutation campaign finds the location of a fault, keeps outcomes that still hold, and writes its page."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CAMPAIGN = ROOT / "tests" / "campaign"


def _campaign(name):
    """A module of the campaign by its path: another directory of tests has a `mutations.py` too."""
    spec = importlib.util.spec_from_file_location(name, CAMPAIGN / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    if name in sys.modules:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sys.modules["anchors"] = anchors = _campaign("anchors")  # the table imports it by this name
MUTANTS = _campaign("mutations").MUTANTS


CODE = """
class Loss:
    def mean(self, values_N, weight_N):
        return (
            values_N * weight_N
        ).sum() / weight_N.sum()

    def other(self, values_N):
        return values_N.sum() / values_N.sum()
"""


@pytest.fixture
def position(monkeypatch):
    """Makes a mutant of a module that holds `CODE`."""
    monkeypatch.setattr(anchors, "definitions", lambda: [("rlhf_lab/toy.py", f"rlhf_lab.toy.{name}") for name in names])
    names = ["Loss", "Loss.mean", "Loss.other", "loss.mean"]
    return lambda before, after, where="Loss.mean": anchors.Mutant("toy", where, before, after, "harm").apply(CODE)


def test_a_place_is_found_whatever_its_formatting_and_lines_keep_their_numbers(position):
    mutated = position("values_N * weight_N", "values_N")
    assert mutated == CODE.replace("values_N * weight_N", "(values_N)")


def test_a_statement_is_replaced_on_as_many_lines(position):
    mutated = position("return (values_N * weight_N).sum() / weight_N.sum()", "return values_N.mean()")
    assert mutated.splitlines()[3] == "        return values_N.mean()"
    assert mutated.splitlines()[7:] == CODE.splitlines()[7:]


def test_a_place_is_found_after_its_names_changed(position):
    mutated = position("(scores_B * mask_B).sum() / mask_B.sum()", "scores_B.sum() / mask_B.sum()")
    assert "return (values_N.sum() / weight_N.sum()" in mutated


def test_changed_names_are_changed_alike(position):
    """a·b / a and a·b / b differ in structure, whatever the names are; only the second stands in the code."""
    with pytest.raises(ValueError, match="matches 0 places"):
        position("(scores_B * mask_B).sum() / scores_B.sum()", "scores_B")


def test_wildcards_stand_for_expressions(position):
    assert "return (weight_N.sum() / (values_N * weight_N).sum()" in position("_1 / _2", "_2 / _1")
    with pytest.raises(ValueError, match="matches 0 places"):
        position("_1 / _1", "_1")
    assert position("_1 / _1", "_1", "Loss.other").endswith("return (values_N.sum())\n")


@pytest.mark.parametrize(
    ("before", "where", "message"),
    [
        ("weight_N.mean()", "Loss.mean", "matches 0 places in Loss.mean of rlhf_lab/toy.py: 'weight_N.mean"),
        ("_1.sum()", "Loss.mean", "matches 2 places"),
        ("_1.sum()", "Loss.median", "0 definitions of the package are called Loss.median: none"),
        ("_1.sum()", "mean", "2 definitions of the package are called mean: rlhf_lab.toy.Loss.mean, rlhf_lab.toy.loss"),
    ],
)
def test_a_place_that_is_missing_or_ambiguous_is_refused(position, before, where, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        position(before, "1", where)


def test_a_replacement_with_an_unknown_name_is_refused(position):
    """It would end in a NameError, which any test notices."""
    with pytest.raises(ValueError, match=r"has names that rlhf_lab/toy.py has not: mask_N"):
        position("weight_N.sum()", "mask_N.sum()")


@pytest.fixture
def campaign(monkeypatch):
    """The campaign's script as a module."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "mutations", _campaign("mutations"))
    monkeypatch.setitem(sys.modules, "mutants", None)  # its dataclasses look themselves up there
    return _campaign("mutants")


def test_an_outcome_holds_while_the_fault_its_module_and_its_test_are_as_they_were(campaign, tmp_path):
    first, second, third = MUTANTS[:3]
    test = "tests/numeric/test_policy_losses.py::test_kl_estimators_by_hand"
    digest = campaign.digest(first, test)
    record = campaign.Record(tmp_path / "mutants.json")
    record.keep(campaign.Outcome(first.name, test, 1.0, digest))
    record.keep(campaign.Outcome(second.name, test, 1.0, "of an earlier version"))
    record.keep(campaign.Outcome(third.name, None, 1.0, campaign.digest(third, None)))
    stored = campaign.Record(tmp_path / "mutants.json")
    assert list(stored.outcomes) == [first.name, second.name, third.name]
    assert list(stored.valid()) == [first.name], "a survivor may be noticed by now"
    assert (stored.noticed_by(second), stored.noticed_by(third)) == (test, None)
    assert campaign.digest(first._replace(after="ref + logp"), test) != digest
    assert campaign.digest(first, test.replace("test_policy_losses", "test_ppo")) != digest


def test_the_page_has_rows_for_what_was_not_run(campaign):
    outcome = campaign.Outcome(MUTANTS[1].name, "tests/numeric/test_x.py::test_y", 2.0, "")
    page = campaign.render({MUTANTS[1].name: outcome}, 2.0)
    assert f"**1 of {len(MUTANTS)} noticed (" in page and f"{len(MUTANTS) - 1} not run." in page
    assert page.count("| not run |") == len(MUTANTS) - 1
    assert "| `numeric/test_x.py::test_y` | 2 |" in page


def test_the_page_counts_rows_of_an_earlier_version(campaign, tmp_path):
    """One of two noticed mutants has the digest of today."""
    test = "tests/numeric/test_policy_losses.py::test_kl_estimators_by_hand"
    record = campaign.Record(tmp_path / "mutants.json")
    record.keep(campaign.Outcome(MUTANTS[0].name, test, 1.0, campaign.digest(MUTANTS[0], test), controlled=True))
    record.keep(campaign.Outcome(MUTANTS[1].name, test, 1.0, "of an earlier version", controlled=True))
    campaign.write_page(tmp_path / "mutants.md", record)
    page = (tmp_path / "mutants.md").read_text(encoding="utf-8")
    assert f"**2 of {len(MUTANTS)} noticed" in page
    assert "1 rows are of an earlier version of their module or test." in page


def test_given_test_files_run_alone(campaign, monkeypatch):
    """A fault that they do not notice has survived them, and no further test runs."""
    copy = campaign.Copy.__new__(campaign.Copy)
    copy.tests = ("tests/unit/test_mutants.py",)
    ran = []
    monkeypatch.setattr(copy, "first_failure", lambda tests, without=(): ran.append(list(tests)), raising=False)
    assert copy._noticed_by(MUTANTS[0], None) is None
    assert ran == [["tests/unit/test_mutants.py"]]

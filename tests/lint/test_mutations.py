"""The table of the mutation campaign keeps up with the code and its page: each fault has one place in the code."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
from support import check_each

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "mutants.md"


@pytest.fixture(scope="module")
def mutants():
    """The rows of `tests/campaign/mutations.py`."""
    modules = ("mutations", "anchors")
    with pytest.MonkeyPatch.context() as patch:
        for name in modules:  # another folder of tests has a `mutations.py` too
            patch.delitem(sys.modules, name, raising=False)
        patch.syspath_prepend(str(ROOT / "tests" / "campaign"))
        yield importlib.import_module("mutations").MUTANTS
        for name in modules:
            sys.modules.pop(name, None)


def test_a_mutant_has_one_place_and_changes_code(mutants):
    def check(name: str) -> None:
        mutant = by_name[name]
        text = (ROOT / mutant.file).read_text(encoding="utf-8")
        mutated = mutant.apply(text)
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text))
        assert mutated.count("\n") == text.count("\n")

    by_name = {mutant.name: mutant for mutant in mutants}
    assert len(by_name) == len(mutants) >= 150, "names are distinct"
    check_each(by_name, check)


def test_the_page_has_a_row_for_each_mutant(mutants):
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \|", page, re.MULTILINE)[1:]
    assert sorted(rows) == sorted(mutant.name for mutant in mutants)
    noticed, count = map(int, re.search(r"\*\*(\d+) of (\d+) noticed", page).groups())
    assert count == len(mutants)
    outcomes = json.loads(PAGE.with_suffix(".json").read_text(encoding="utf-8"))
    assert noticed <= sum(outcome["noticed_by"] is not None for outcome in outcomes)

"""The table of the mutation campaign keeps up with the code: each fault still has its place, and changes what runs."""

from __future__ import annotations

import ast
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _table():
    spec = spec_from_file_location("mutations", ROOT / "tests" / "campaign" / "mutations.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MUTATIONS = _table()


@pytest.mark.parametrize("mutant", MUTATIONS.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_has_one_place_and_changes_code(mutant):
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert ast.dump(ast.parse(mutant.apply(text))) != ast.dump(ast.parse(text))


def test_names_are_distinct():
    names = [mutant.name for mutant in MUTATIONS.MUTANTS]
    assert len(set(names)) == len(names) >= 45


@pytest.mark.parametrize(("text", "count"), [("x = 1\n", 0), ("y = 2\ny = 2\n", 2)])
def test_text_that_is_missing_or_ambiguous_is_refused(text, count):
    mutant = MUTATIONS.Mutant("twice", "module.py", "y = 2", "y = 3", "harm")
    with pytest.raises(ValueError, match=f"stands {count} times in module.py"):
        mutant.apply(text)

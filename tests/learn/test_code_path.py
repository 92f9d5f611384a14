"""The lines that docs/code_path.md says a step runs are those that it runs."""

from __future__ import annotations

import code_path
import pytest


@pytest.mark.parametrize("what", code_path.STEPS)
def test_the_page_names_the_files_that_a_step_runs(what):
    recorder = code_path.follow(what)
    counted = {name: len(lines) for name, lines in recorder.lines.items()}
    stated = code_path.stated(code_path.PAGE.read_text(encoding="utf-8"), what)
    assert counted.keys() == stated.keys(), "run `make path`"
    # A few lines more or less are no reason to count again.
    far = {name: (stated[name], lines) for name, lines in counted.items() if abs(stated[name] - lines) > 5}
    assert not far, f"run `make path`: {far}"
    assert sum(counted.values()) == pytest.approx(sum(stated.values()), rel=0.05), "run `make path`"

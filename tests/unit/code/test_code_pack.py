"""Additions of the code pack to the core; the problems of its sandbox/preflight.py are in test_sandbox_preflight.py."""

from __future__ import annotations

from rlhf_lab.core.packs import load, packs
from rlhf_lab.packs.code import PACK
from rlhf_lab.packs.code.sandbox import doctor as sandbox_check


def test_it_is_found_and_what_it_names_is_there():
    assert PACK in packs()
    references = [*PACK.commands.values(), *PACK.answers.values(), *PACK.preflight, *PACK.code_files, *PACK.doctor]
    assert {"rlhf_lab.packs.code.commands:sandbox_command"} <= {*references}
    for reference in references:
        assert load(reference) is not None, reference


def test_the_check_of_the_sandbox_names_the_level_that_works_or_why_none_does(monkeypatch):
    monkeypatch.setattr(sandbox_check, "why_not", lambda level: "")
    assert sandbox_check.CHECK.ask(None).measured == f"{sandbox_check.AUTOMATIC[0]} works"
    monkeypatch.setattr(sandbox_check, "why_not", lambda level: "no user namespaces")
    conclusion = sandbox_check.CHECK.ask(None)
    assert conclusion.status == "skip" and conclusion.measured == "no isolation works: no user namespaces"

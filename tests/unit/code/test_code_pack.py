"""Additions of the code pack to the core are found there."""

from __future__ import annotations

from support import checked

from rlhf_lab.core.packs import load, packs
from rlhf_lab.packs.code import PACK
from rlhf_lab.packs.code.sandbox import doctor as sandbox_check
from rlhf_lab.packs.code.sandbox import preflight as sandbox_preflight


def test_it_is_found_and_what_it_names_is_there():
    assert PACK in packs()
    references = [*PACK.commands.values(), *PACK.answers.values(), *PACK.preflight, *PACK.code_files, *PACK.doctor]
    assert {"rlhf_lab.packs.code.commands:sandbox_command"} <= {*references}
    for reference in references:
        assert load(reference) is not None, reference


def test_a_level_that_does_not_work_is_a_problem_of_stages_that_run_code(monkeypatch):
    monkeypatch.setattr(sandbox_preflight, "choose_level", refuse)
    assert sandbox_preflight.problems(checked("sft")) == []
    run_code = (
        "data=humaneval",
        "data.path=none.jsonl",
        "data.test_fraction=0.1",
        "reward=code_tests",
        "needs.reward=null",
    )
    assert sandbox_preflight.problems(checked("grpo", *run_code)) == ["no level works"]


def refuse(settings):
    raise sandbox_preflight.SandboxUnavailable("no level works")


def test_the_check_of_the_sandbox_names_the_level_that_works_or_why_none_does(monkeypatch):
    monkeypatch.setattr(sandbox_check, "why_not", lambda level: "")
    assert sandbox_check.CHECK.ask(None).measured == f"{sandbox_check.AUTOMATIC[0]} works"
    monkeypatch.setattr(sandbox_check, "why_not", lambda level: "no user namespaces")
    conclusion = sandbox_check.CHECK.ask(None)
    assert conclusion.status == "skip" and conclusion.measured == "no isolation works: no user namespaces"

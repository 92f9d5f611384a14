"""HumanEval through the grader: its own solutions pass, and fail with one mutation."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from mutations import mutations, without_result
from support import checked

from rlhf_lab.config.registry import build
from rlhf_lab.data.transcript import to_conversation
from rlhf_lab.packs.code.sandbox.grader import HiddenTests, ProgramGrader
from rlhf_lab.packs.code.sandbox.sandbox import Sandbox
from rlhf_lab.packs.code.sandbox.settings import Sandboxing

DATA = Path(os.environ.get("RLHF_LAB_DATA", Path(__file__).parents[4] / "shared" / "data"))
FILE = "HumanEval.jsonl.gz"
FEW = (0, 32, 33, 38, 50, 103, 129, 160)
"""Tests that use helpers of the prompt, the name of the function itself, values of two types, large inputs."""


@pytest.fixture(scope="module")
def rows():
    if not (DATA / FILE).is_file():
        pytest.skip(f"{FILE} is not in {DATA}; set RLHF_LAB_DATA to the folder with the public data sets")
    with gzip.open(DATA / FILE, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def grader(best):
    return ProgramGrader(Sandbox(Sandboxing(level=best.level, timeout_s=10.0)))


def job(row, code):
    """A program and the tests of a row, as `reward=code_tests` grades it."""
    return code, HiddenTests((f"{row['test']}\ncheck({row['entry_point']})\n",), row["entry_point"], row["prompt"])


def solution(row):
    return row["prompt"] + row["canonical_solution"]


def statuses(grader, jobs):
    return [grade.status for grade in grader.grade_many(jobs)]


def test_few_solutions_pass_and_their_mutants_fail(rows, grader):
    few = [rows[index] for index in FEW]
    assert statuses(grader, [job(row, solution(row)) for row in few]) == ["passed"] * len(few)
    broken = [job(row, without_result(solution(row), row["entry_point"])) for row in few]
    assert "passed" not in statuses(grader, broken)


@pytest.mark.slow
@pytest.mark.long
def test_all_solutions_pass_and_fail_without_their_last_result(rows, grader):
    grades = statuses(grader, [job(row, solution(row)) for row in rows])
    assert [row["task_id"] for row, status in zip(rows, grades, strict=True) if status != "passed"] == []
    broken = [job(row, without_result(solution(row), row["entry_point"])) for row in rows]
    assert "passed" not in statuses(grader, broken)


@pytest.mark.slow
@pytest.mark.long
def test_every_program_has_a_mutation_that_is_noticed(rows, grader):
    """A program that still passes is tried with its next mutation, in the order of `mutations`.

    Some first mutations change nothing that the tests look at. In 116 it changes nothing at all but for zero, which has
    no ones to count: `bin(x)[3:].count("1")` for `bin(x)[2:].count("1")` counts one less for every number.
    """
    mutants = {row["task_id"]: list(mutations(solution(row), row["entry_point"])) for row in rows}
    passing, noticed = rows, []
    while passing:
        tried = len(noticed)
        assert all(len(mutants[row["task_id"]]) > tried for row in passing), "every mutation passes"
        grades = statuses(grader, [job(row, mutants[row["task_id"]][tried]) for row in passing])
        still = [row for row, status in zip(passing, grades, strict=True) if status == "passed"]
        noticed.append(len(passing) - len(still))
        passing = still
    assert sum(noticed) == len(rows) == 164 and noticed[0] == 162


def test_rows_become_prompts_and_programs_that_compile(rows):
    data = checked("compare_policies", "data=humaneval", f"data.path={DATA / FILE}").data
    corpus = build("data", data)
    assert corpus.report["all"].kept == 164 == len(corpus.test)
    assert len(corpus.metadata) == 164
    for pair in (*corpus.train, *corpus.test):
        metadata = corpus.metadata[pair.prompt]
        assert set(metadata) == {"task_id", "entry_point", "test"}
        program = to_conversation(pair.prompt).messages[0]["content"] + pair.chosen
        compile(program, metadata["task_id"], "exec")  # indentation is there, on both sides of the joint

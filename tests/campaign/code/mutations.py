"""Faults of the sandbox, its grader, and programs that are repaired."""

from __future__ import annotations

from anchors import Mutant

MUTANTS = (
    Mutant(
        "grader_believes_any_report",
        "_Conversation._hear_tests",
        "line.startswith(self._nonce.encode())",
        "line.startswith(self._nonce.encode()) or b'messages' in line",
        "a program that prints a report passes its hidden tests",
    ),
    Mutant(
        "no_message_is_a_pass",
        "grader._grade",
        "messages.count('')",
        "len(messages)",
        "every test of a failing program counts as passed",
    ),
    Mutant(
        "ptrace_allowed",
        "seccomp.REFUSED",
        "(101, 117)",
        "(None, None)",
        "a program can read the memory of the one that grades it",
    ),
    Mutant(
        "loop_reads_the_last_element",
        "_loop.statement",
        "list(values['v'])",
        "list(values['v'])[:-1]",
        "programs are judged without the last number of their list",
    ),
    Mutant(
        "swapped_operands",
        "_parse_assignment.assign",
        "compute(first, second)",
        "compute(second, first)",
        "a subtraction in a repaired program has the wrong sign",
    ),
    Mutant(
        "partial_credit_of_tests",
        "CodeVerifier._credit",
        "grade.passed / grade.total",
        "float(grade.passed > 0)",
        "one passed test of ten earns the whole reward",
    ),
)

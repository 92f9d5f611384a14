"""Faults of the sandbox, its grader, and programs that are repaired."""

from __future__ import annotations

from anchors import read_mutants

MUTANTS = read_mutants("""
grader_believes_any_report in _Conversation._hear_tests
    a program that prints a report passes its hidden tests
    - line.startswith(self._nonce.encode())
    + line.startswith(self._nonce.encode()) or b'messages' in line
no_message_is_a_pass in grader._grade
    every test of a failing program counts as passed
    - messages.count('')
    + len(messages)
ptrace_allowed in seccomp.REFUSED
    a program can read the memory of the one that grades it
    - (101, 117)
    + (None, None)
loop_reads_the_last_element in _loop.statement
    programs are judged without the last number of their list
    - list(values['v'])
    + list(values['v'])[:-1]
swapped_operands in _parse_assignment.assign
    a subtraction in a repaired program has the wrong sign
    - compute(first, second)
    + compute(second, first)
partial_credit_of_tests in CodeVerifier._credit
    one passed test of ten earns the whole reward
    - grade.passed / grade.total
    + float(grade.passed > 0)
""")

"""Sandbox for untrusted Python: programs that a model wrote, and their tests.

Read sandbox.py (`Sandbox.run`), outcome.py (limits and results), levels.py (levels of isolation), process.py (started
programs and their pipes), then jail/, the launcher that isolates programs. grader.py runs hidden tests against code
that cannot see them; harness/ runs inside its two sandboxes. probes/ attacks the sandbox and the grader.
docs/code/sandbox.md lists the guarantees.
"""

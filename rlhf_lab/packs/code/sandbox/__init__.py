"""Runs Python that nobody has read: what a model wrote, and the tests of it.

Start at sandbox.py (`Sandbox.run`), then outcome.py (limits and results), levels.py (how much isolation the machine
allows), process.py (started programs, their pipes and their end) and jail/ (what isolates them). grader.py runs hidden
tests against code that does not see them. probes/ has attacks on all of it.
docs/code/sandbox.md has the guarantees.
"""

"""Attacks on the sandbox: escape, access to secrets, excessive resource use, and undeserved grades.

Read table.py, which runs all attacks at a level and reports what stopped each of them. targets.py creates the targets,
reach.py and use.py contain the probes of the sandbox, and candidates.py those of the grader. The results are in
docs/code/sandbox.md.
"""

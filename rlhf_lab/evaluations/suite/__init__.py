"""Suites: golden sets that a policy has to answer, and thresholds that `gate` checks for a run.

Read suite_file.py (the YAML file), responses.py (requirements on a response), harness.py (tasks of
lm-evaluation-harness), then eval_suite.py, the stage that evaluates a policy. suites/ has suites for the dialogue
world. The gate is in `gates/`.
"""

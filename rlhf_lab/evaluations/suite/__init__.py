"""Golden sets and thresholds of a suite: what a policy has to answer, and what `gate` holds a run to.

Read suite_file.py (the YAML file), replies.py (what a reply has to be), harness.py (tasks of lm-evaluation-harness),
then eval_suite.py, the stage that asks a policy. suites/ has the suite of the embedded world. The gate itself runs no
model: `rlhf_lab/gates/`.
"""

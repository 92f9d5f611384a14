"""Stages that train nothing, and the evaluator that training stages use as well.

Read evaluator.py (policies on the same held-out prompts) and policy_log.py (the log from which an interrupted
evaluation resumes). The stages are compare.py, best_of_n.py, test_time.py, rm_report.py, rm_probe.py, rm_bench.py,
step_report.py, design_report.py and rescore.py; their settings are in settings.py. reward_audit.py measures a reward on
labelled pairs, and refusals.py recognises refusals by their phrases. suite/ evaluates a policy on the golden sets that
`gate` checks, and attack/ searches for responses that fool a reward.
"""

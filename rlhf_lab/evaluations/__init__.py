"""Stages that train nothing, and the evaluator that training stages share.

Read evaluator.py (policies on the same held-out prompts; policy_log.py resumes it). compare.py, best_of_n.py,
rm_report.py, rm_bench.py, step_report.py and rescore.py are stages; their settings are in settings.py. reward_audit.py
judges a reward on pairs. safety/ asks what a policy refuses, suite/ runs the golden sets that `gate` judges.
"""

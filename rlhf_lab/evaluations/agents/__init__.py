"""Benchmarks of agents: what they answer, how they came to it, and what that took.

Read attempts.py (what is asked, and which attempts are the same), trajectory_log.py (what was done, kept by content),
scores.py (a row per attempt, numbers per agent, agents against each other), injections.py (tools whose results carry
orders), then agent_bench.py, the stage.
"""

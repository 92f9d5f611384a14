"""Benchmarks of agents: what they answer, how they came to it, and what that took.

Read attempts.py (what is asked, and which attempts are the same), trajectory_log.py (what was done, kept by content),
benchmark.py (a row per attempt, numbers per agent) with comparisons.py (agents against each other), then the stages:
agent_bench.py with injections.py (tools whose results carry orders), and gaia.py with gaia_tasks.py (its tasks, tools
and scores). gaia_settings.py is what can be chosen of GAIA; web_search.py and web_pages.py are the live web for it.
"""

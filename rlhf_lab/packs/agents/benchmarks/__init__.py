"""Stages that measure agents: their success, their process and their cost.

Read attempts.py (which attempts exist, and when two of them are the same), trajectory_log.py (the stored attempts) and
benchmark.py (rows per attempt, metrics per agent, comparisons between agents). Then read the stages: agent_bench.py
with injections.py (tool results that contain orders), code_bench.py, and gaia.py. web.py, web_search.py, web_pages.py
and html_text.py access the live web.
"""

"""Worlds of tools: facts that can only be looked up, tasks that need several calls, and calls as text.

Start at text_calls.py (how a call is written and read) and task_set.py (what a task knows of itself).
"""

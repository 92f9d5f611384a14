"""AgentBench-Mini: hand-written tasks with tools, and the siblings that are drawn from the same templates.

Start at one of tasks/*.yml, then templates.py (how a task is filled), fixtures.py (its tools), task_sets.py.
"""

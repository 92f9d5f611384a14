"""AgentBench-Mini: hand-written tasks with tools, and siblings that are sampled from the same templates.

Read one of the files in tasks/, then templates.py (how a template is filled), fixtures.py (its tools) and task_sets.py.
"""

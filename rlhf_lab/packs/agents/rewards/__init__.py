"""The reward of tool calls.

Read settings.py, then tool_calls.py.
"""

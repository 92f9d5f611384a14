"""Reward of tool calls, turn by turn.

Read settings.py, then tool_calls.py.
"""

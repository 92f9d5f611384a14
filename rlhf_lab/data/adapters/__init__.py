"""Adapters that run environments of other libraries as environments of rlhf_lab.

The libraries are imported only when they are used. Read sessions.py (common to all adapters), then tool_methods.py
(TRL), openenv.py and verifiers.py.
"""

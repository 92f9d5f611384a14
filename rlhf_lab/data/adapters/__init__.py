"""Environments that were written for other libraries, as environments of the lab. None of these libraries is imported
before it is used.

In reading order: sessions.py (what all of them come down to), tool_methods.py (TRL), openenv.py, verifiers.py.
"""

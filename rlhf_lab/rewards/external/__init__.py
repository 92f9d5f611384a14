"""Rewards from elsewhere: a Python function of the user, or a service.

Read settings.py, then callable.py, and remote.py with post.py (HTTP requests).
trial.py calls a function on two rows before anything is built; rewards/checked.py rejects malformed values.
"""
